//! A folder of a test's own, small models from `testdata` in it, and the program run there.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

#[path = "../../../train/tests/support/folder.rs"]
mod folder;
#[allow(unused_imports, reason = "each test file uses its own part")]
pub(crate) use folder::names;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_plimsoll");

/// A command that sees no home, caches, hub or notes but those in `home`: the developer's measured times, tokenised data
/// and downloads must not affect a test.
pub(crate) fn hermetic(mut command: Command, home: &Path) -> Command {
    for (name, _) in std::env::vars_os() {
        let known = name.to_string_lossy();
        if known.starts_with("HF_") || known.starts_with("PLIMSOLL_") {
            command.env_remove(&name);
        }
    }
    command
        .env("HOME", home)
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env("HF_HOME", home.join("huggingface"))
        // Times of this machine must not decide what a test sees.
        .env("PLIMSOLL_COSTS", "modelled");
    command
}

/// The program with caches that are this test file's own and new, where no folder is needed otherwise.
pub(crate) fn plimsoll(arguments: &str) -> Command {
    static HOME: OnceLock<PathBuf> = OnceLock::new();
    let home = HOME.get_or_init(|| {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(concat!("home-", env!("CARGO_CRATE_NAME")));
        let _ = fs::remove_dir_all(&home);
        fs::create_dir_all(&home).unwrap();
        home
    });
    let mut command = hermetic(Command::new(PROGRAM), home);
    command.args(arguments.split_whitespace());
    command
}

/// Writes a file into the folder that the build gives its tests.
pub(crate) fn file(name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, contents).unwrap();
    path
}

/// The longest that a test waits for anything. A busy machine stays far below it, so only a fault gets there.
pub(crate) const PATIENCE: Duration = Duration::from_mins(5);
/// Time from one look to the next.
const LOOK: Duration = Duration::from_millis(2);

/// Looks until `look` finds something; nothing if it finds nothing for as long as a test waits.
pub(crate) fn in_time<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        let found = look();
        if found.is_some() || Instant::now() > end {
            return found;
        }
        sleep(LOOK);
    }
}

/// Looks until `look` finds something, which must come; `what` says what it is.
pub(crate) fn awaited<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    in_time(look).unwrap_or_else(|| panic!("{what}: not within {PATIENCE:?}"))
}

/// Waits until something holds, which must come to hold.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    awaited(what, || holds().then_some(()));
}

/// Settings of every run here: small, and inside a stated budget.
pub(crate) const SMALL: &str = "--seq-len 16 --global-batch 4 --memory 64MiB --threads 1 --report-to none";

/// The folder in which a test runs the program, so that paths in messages are short and known.
pub(crate) struct Home {
    folder: TempDir,
}

impl Home {
    pub(crate) fn new() -> Home {
        let home = Home { folder: TempDir::new().unwrap() };
        let lines: Vec<String> = (0..150).map(|n| format!("line {n} counts {} bytes.\n", n * n)).collect();
        home.write("text.txt", lines.concat());
        home
    }

    /// A home with a Llama of `testdata` in `model`, and a tokenizer that suits it.
    pub(crate) fn with_model() -> Home {
        let home = Home::new();
        home.copy("hf/llama", "model");
        home.copy("tokenizer/bert", "model");
        home
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        fs::write(self.path(name), contents).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(name)).unwrap()
    }

    /// Sets one key of a JSON file.
    pub(crate) fn set(&self, name: &str, key: &str, value: Value) {
        let mut json = self.json(name);
        json[key] = value;
        self.write(name, json.to_string());
    }

    /// Copies the files of a folder of `testdata`, but for the numbers that tests compare with.
    pub(crate) fn copy(&self, testdata: &str, to: &str) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(testdata);
        self.copy_from(&from, to);
    }

    /// Copies the files of a folder.
    pub(crate) fn copy_from(&self, from: &Path, to: &str) {
        fs::create_dir_all(self.path(to)).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
            if path.is_file() && name != "golden.safetensors" {
                fs::copy(&path, self.path(to).join(name)).unwrap();
            }
        }
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = hermetic(Command::new(PROGRAM), self.folder.path());
        command.current_dir(self.folder.path()).args(arguments.split_whitespace());
        command
    }

    /// The program, started by a shell that does `first` before.
    pub(crate) fn limited(&self, first: &str, arguments: &str) -> Command {
        let mut command = hermetic(Command::new("bash"), self.folder.path());
        command.args(["-c", &format!("{first}; exec \"$0\" \"$@\""), PROGRAM]);
        command.current_dir(self.folder.path()).args(arguments.split_whitespace());
        command
    }

    /// Runs a command that must succeed; returns what it wrote to standard output and standard error.
    pub(crate) fn done(&self, arguments: &str) -> (String, String) {
        let output = self.command(arguments).output().unwrap();
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{arguments}: {err}");
        (out, err)
    }

    /// Runs a command that must fail as the user's mistake, with exactly this sentence. The lines about the data may stand
    /// before it.
    pub(crate) fn refused(&self, arguments: &str, expected: &str) {
        let output = self.command(arguments).output().unwrap();
        let (out, err) = texts(&output);
        let of_data =
            |line: &&str| line.starts_with("data: ") || line.contains(" longer than --seq-len 16: ");
        let err: String = err.split_inclusive('\n').filter(|line| !of_data(line)).collect();
        assert_eq!(err.trim_end(), format!("error: {expected}"), "{arguments}");
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(out.is_empty(), "{arguments}");
    }

    /// Losses of the steps of a run, as its `metrics.jsonl` has them.
    pub(crate) fn losses(&self, run: &str) -> Vec<f64> {
        let text = String::from_utf8(self.read(&format!("{run}/metrics.jsonl"))).unwrap();
        let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        records.filter_map(|record| record["loss"].as_f64()).collect()
    }
}

/// `mpirun` as it works for root, on a machine with fewer cores than ranks.
pub(crate) fn mpirun(home: &Home, ranks: usize, arguments: &str) -> Command {
    let mut command = hermetic(Command::new("mpirun"), &home.path(""));
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", &ranks.to_string()]);
    command.arg(PROGRAM).args(arguments.split_whitespace());
    command.current_dir(home.path(""));
    command
}

/// The id of the process that `mpirun` started as a rank of a run in this home.
pub(crate) fn process_of_rank(home: &Home, rank: usize) -> Option<String> {
    let wanted = [format!("OMPI_COMM_WORLD_RANK={rank}"), format!("HOME={}", home.path("").display())];
    let mut folders = fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let found = folders.find(|folder| {
        let environment = fs::read(folder.join("environ")).unwrap_or_default();
        let entries = environment.split(|&byte| byte == 0);
        entries.filter(|entry| wanted.iter().any(|text| text.as_bytes() == *entry)).count() == wanted.len()
    })?;
    Some(found.file_name()?.to_string_lossy().into_owned())
}

/// A run of four steps with two checkpoints, of which `rest` may leave a part for later.
pub(crate) fn training(rest: &str) -> String {
    format!("train --model model --data text.txt --max-steps 4 --save-steps 2 {SMALL} {rest}")
}

/// A home with a run in `out` that stands after its second step.
pub(crate) fn begun() -> Home {
    let home = Home::with_model();
    home.done(&training("--output-dir out --stop-after 2"));
    home
}

/// Standard output and standard error, without the progress lines of a start on a slow machine.
pub(crate) fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let said = text(&output.stderr);
    let slow = ["planning, ", "opening the device, "];
    let said = said.split_inclusive('\n').filter(|line| !slow.iter().any(|begin| line.starts_with(begin)));
    (text(&output.stdout), said.collect())
}
