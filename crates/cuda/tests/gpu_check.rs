//! `scripts/gpu_check.sh` on programs that answer as this crate's would: it finds its memory checker and a place for
//! folders of runs by itself, and a run that breaks its promise fails its stage.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use tempfile::TempDir;

/// The program: steps of a run with equal losses and `MEMORY` bytes each, one text, one verdict. A folder that a run writes is
/// listed in `folders`.
const PROGRAM: &str = r#"
first=1 last=0 out=
command=$1
while [ $# -gt 0 ]; do
    case "$1" in
        --max-steps) last=${last/#0/$2} ;;
        --stop-after) last=$2 ;;
        --resume) first=6 ;;
        --output-dir) out=$2 ;;
    esac
    shift
done
case "$command" in
    check) echo "7 of 7 cases hold on a GPU" ;;
    generate) echo "of a ship" ;;
    train)
        if [ -n "$out" ]; then mkdir -p "$out"; echo "$out" >> "$(dirname "$0")/folders"; fi
        for step in $(seq "$first" "$last"); do echo "{\"step\":$step,\"loss\":1.5,\"memory_bytes\":$((MEMORY * step + 1000))}"; done
        echo '{"event":"end","planned_peak_bytes":5,"measured_peak_bytes":5}' ;;
esac"#;

/// Folders of programs, logs and runs.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(machine.folder.path().join("memory")).unwrap();
        for (name, text) in [
            ("plimsoll", PROGRAM),
            ("gpu_stages", "echo '{}'"),
            ("nvidia-smi", "echo a GPU"),
            ("compute-sanitizer", "echo 0 errors"),
        ] {
            let path = machine.folder.path().join(name);
            fs::write(&path, format!("#!/usr/bin/env bash\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        machine
    }

    /// The lines of the quick form, and whether all stages held.
    fn checked(&self, variables: &[(&str, &str)]) -> (String, bool) {
        let folder = self.folder.path();
        let path = format!("{}:{}", folder.display(), env::var("PATH").unwrap());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/gpu_check.sh");
        let mut command = Command::new("bash");
        command.arg(script).arg("--quick").arg(folder).env("PATH", path).env("OUT", folder.join("logs"));
        command.env("MEMORY_FOLDER", folder.join("memory")).env("ROOM_GB", "0").env("MEMORY", "0");
        let output = command.env_remove("SANITIZER").envs(variables.iter().copied()).output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.success())
    }

    /// The folders that runs have written since this was last asked.
    fn folders(&self) -> Vec<String> {
        let list = self.folder.path().join("folders");
        let text = fs::read_to_string(&list).unwrap();
        fs::remove_file(list).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn the_memory_checker_is_found_and_left_out_on_request() {
    let machine = Machine::new();
    let (said, held) = machine.checked(&[]);
    assert!(held && said.contains(r#""stage":"memcheck","status":0"#) && said.contains("0 errors"), "{said}");
    let (said, held) = machine.checked(&[("SANITIZER", "none")]);
    assert!(held && said.contains(r#""stage":"memcheck","status":"NOT RUN""#), "{said}");
}

#[test]
fn folders_of_runs_lie_in_memory_where_it_has_room_and_are_gone_afterwards() {
    let machine = Machine::new();
    let memory = machine.folder.path().join("memory");
    let in_memory = |folder: &String| Path::new(folder).starts_with(&memory);
    machine.checked(&[]);
    let folders = machine.folders();
    assert!(folders.len() >= 6 && folders.iter().all(in_memory), "{folders:?}");
    assert_eq!(fs::read_dir(&memory).unwrap().count(), 0);
    machine.checked(&[("ROOM_GB", "1000000000")]);
    let folders = machine.folders();
    assert!(!folders.is_empty() && !folders.iter().any(in_memory), "{folders:?}");
}

#[test]
fn a_run_whose_memory_grows_fails_its_stage() {
    let (said, held) = Machine::new().checked(&[("MEMORY", "1")]);
    assert!(!held && said.contains(r#""stage":"budget-small","status":1"#), "{said}");
    assert!(said.contains(r#""figures":19"#) && said.contains(r#""stage":"all","failed":1"#), "{said}");
}
