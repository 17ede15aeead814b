//! The shim that counts, fails and kills: compiled once with the machine's own C compiler, loaded into the program.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use crate::support::{Home, in_time};

/// The folder below a home whose files are watched.
pub(crate) const WATCHED: &str = "run";

/// The compiled shim; none, with a printed note, on a machine without a C compiler.
pub(crate) fn shim() -> Option<&'static Path> {
    static SHIM: OnceLock<Option<PathBuf>> = OnceLock::new();
    SHIM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crash/shim.c");
        let library =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("crash-shim-{}.so", std::process::id()));
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(source)
            .args(["-ldl", "-lpthread"]);
        match compiler.output() {
            Ok(output) if output.status.success() => Some(library),
            Ok(output) => panic!("cc: {}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => {
                // Past the capture of the test's output.
                let said = format!("\n*** crash tests NOT RUN: there is no C compiler `cc` ({error}) ***\n");
                std::io::stderr().write_all(said.as_bytes()).unwrap();
                None
            }
        }
    })
    .as_deref()
}

/// The fate of a command's calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Strike {
    /// No call is struck; calls are only counted.
    Never,
    /// The process is killed at the call of this number.
    Kill(u64),
    /// The call of this number fails with this error code.
    Fail(u64, i32),
    /// From the call of this number on, every call on a path that contains the text fails with the error code.
    Last(u64, i32, &'static str),
}

/// Runs a command under the shim; returns its result and its number of calls.
pub(crate) fn run(
    home: &Home,
    shim: &Path,
    arguments: &str,
    strike: Strike,
    log: Option<&Path>,
) -> (Output, u64) {
    let (counter, root) = (home.path("counter"), home.path(WATCHED));
    fs::write(&counter, [0; 8]).unwrap();
    let mut command = home.command(arguments);
    command.env("LD_PRELOAD", shim).env("CRASH_ROOT", root).env("CRASH_COUNTER", &counter);
    let (at, how, only) = match strike {
        Strike::Never => (0, String::new(), ""),
        Strike::Kill(at) => (at, "kill".to_owned(), ""),
        Strike::Fail(at, error) => (at, error.to_string(), ""),
        Strike::Last(at, error, only) => {
            command.env("CRASH_LASTING", "1");
            (at, error.to_string(), only)
        }
    };
    command.env("CRASH_AT", at.to_string()).env("CRASH_HOW", how).env("CRASH_ONLY", only);
    if let Some(log) = log {
        command.env("CRASH_LOG", log);
    }
    let output = finished(command, arguments, strike);
    let calls = u64::from_le_bytes(fs::read(counter).unwrap().try_into().unwrap());
    (output, calls)
}

/// Waits for a command, but not for ever: a fault must not make it hang.
fn finished(mut command: Command, arguments: &str, strike: Strike) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    if in_time(|| child.try_wait().unwrap()).is_none() {
        let threads = threads(child.id());
        child.kill().unwrap();
        let said = String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr).into_owned();
        panic!("{strike:?}: `{arguments}` hangs\n{threads}{said}");
    }
    child.wait_with_output().unwrap()
}

/// The places where the threads of a process wait.
fn threads(process: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().filter_map(Result::ok);
    let of = |task: &Path, file: &str| fs::read_to_string(task.join(file)).unwrap_or_default();
    let line = |task: PathBuf| format!("{} {}\n", of(&task, "comm").trim(), of(&task, "syscall").trim());
    tasks.map(|task| line(task.path())).collect()
}
