//! Files that lead elsewhere: links in a model's folder, and links put where temporary files go.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::time::SystemTime;

use crate::support::{Home, SMALL, texts};

const SECRET: &str = "the user's own\n";

fn with_secret() -> Home {
    let home = Home::with_model();
    home.write("secret", SECRET);
    home
}

#[test]
fn a_link_in_a_models_folder_carries_no_file_of_the_user_into_the_output() {
    let home = with_secret();
    symlink("../secret", home.path("model/tokenizer.model")).unwrap();
    let secret = fs::canonicalize(home.path("secret")).unwrap();
    let sentence = format!(
        "model/tokenizer.model is a link to {}, outside the model's folder; put the file itself there, or remove the link",
        secret.display()
    );
    let train = format!("train --model model --data text.txt {SMALL} --max-steps 1 --output-dir out");
    home.refused(&train, &sentence);
    assert!(!home.path("out/tokenizer.model").exists());
}

#[test]
fn links_of_the_hubs_cache_are_copied_as_files() {
    let home = with_secret();
    let (folder, blobs) = ("hub/models--a--b/snapshots/c0ffee", "hub/models--a--b/blobs");
    home.copy_from(&home.path("model"), blobs);
    fs::create_dir_all(home.path(folder)).unwrap();
    for entry in fs::read_dir(home.path(blobs)).unwrap() {
        let name = entry.unwrap().file_name();
        symlink(std::path::Path::new("../../blobs").join(&name), home.path(folder).join(&name)).unwrap();
    }
    home.done(&format!("train --model {folder} --data text.txt {SMALL} --max-steps 1 --output-dir out"));
    assert!(fs::symlink_metadata(home.path("out/tokenizer.json")).unwrap().is_file());
    assert_eq!(home.read("out/tokenizer.json"), home.read("model/tokenizer.json"));
}

#[test]
fn chat_templates_of_other_names_come_along_with_the_trained_model_and_its_merged_adapter() {
    let home = Home::with_model();
    fs::create_dir(home.path("model/additional_chat_templates")).unwrap();
    let names = ["tool_use", "rag"].map(|name| format!("additional_chat_templates/{name}.jinja"));
    for name in &names {
        home.write(&format!("model/{name}"), format!("{{# {name} #}}"));
    }
    let train = format!("train --model model --data text.txt {SMALL} --save-steps 1 --max-steps 2");
    home.done(&format!("{train} --output-dir out --stop-after 1"));
    home.done(&format!("{train} --output-dir out --resume latest"));
    home.done(&format!("{train} --output-dir tuned --lora-r 2"));
    home.done("export --merge --model model --adapter tuned --out merged");
    for (folder, name) in ["out", "out/checkpoint-1", "out/checkpoint-2", "tuned", "merged"]
        .into_iter()
        .flat_map(|folder| names.iter().map(move |name| (folder, name)))
    {
        let (copy, original) = (home.read(&format!("{folder}/{name}")), home.read(&format!("model/{name}")));
        assert_eq!(copy, original, "{folder}/{name}");
    }
    // A link in the place of the templates' folder is not followed.
    fs::create_dir(home.path("elsewhere")).unwrap();
    fs::remove_dir_all(home.path("out/additional_chat_templates")).unwrap();
    symlink("../elsewhere", home.path("out/additional_chat_templates")).unwrap();
    let output = home.command(
        &format!("{train} --output-dir out --resume latest").replace("--max-steps 2", "--max-steps 3"),
    );
    let said = texts(&{ output }.output().unwrap()).1;
    assert!(
        said.contains("out/additional_chat_templates is a link or a file where a folder is needed"),
        "{said}"
    );
    assert_eq!(fs::read_dir(home.path("elsewhere")).unwrap().count(), 0);
}

#[test]
fn looking_whether_the_output_folder_can_be_written_truncates_nothing() {
    let home = with_secret();
    fs::create_dir(home.path("out")).unwrap();
    for name in [".tmp-probe", "metrics.jsonl.part"] {
        symlink("../secret", home.path("out").join(name)).unwrap();
    }
    let train =
        format!("train --model tiny --data text.txt {SMALL} --max-steps 2 --output-dir out --resume latest");
    home.done(&train);
    home.done(&train.replace("--max-steps 2", "--max-steps 3"));
    assert_eq!(home.read("secret"), SECRET.as_bytes());
    let left: Vec<_> =
        fs::read_dir(home.path("out")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".tmp-")), "{left:?}");
}

#[test]
fn a_file_is_written_whole_beside_a_link_that_has_its_temporary_name() {
    let home = with_secret();
    let mut command = home.command("plan --model tiny --data text.txt --memory 64MiB --out plan.json");
    let child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    // Earlier versions used this name, which was predictable.
    let _ = symlink("secret", home.path(&format!("plan.json.{}.part", child.id())));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", texts(&output).1);
    assert_eq!(home.read("secret"), SECRET.as_bytes());
    assert!(home.json("plan.json").is_object());
}

#[test]
fn a_plan_is_handed_on_under_a_name_that_nobody_foresees() {
    let home = with_secret();
    fs::create_dir_all(home.path("tmp")).unwrap();
    // The budget is so small that the plan is passed to a new process.
    let train = "train --model tiny --synthetic --layers 24 --threads 1 --max-steps 1 --offload disk --offload-folder .";
    // Enough to read the files, and too little for any plan.
    let output = home.command(&format!("{train} --memory 20MiB")).output().unwrap();
    let (_, said) = texts(&output);
    let smallest = said.split("--memory ").nth(1).and_then(|rest| rest.split("MiB").next()).unwrap();
    let memory = smallest.parse::<u64>().unwrap() + 4;
    // A process that was killed long ago left its plan.
    let old = File::create(home.path("tmp/plimsoll-plan-0123456789abcdef.json")).unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let mut command = home.command(&format!("{train} --memory {memory}MiB"));
    command.env("TMPDIR", home.path("tmp")).stdout(std::process::Stdio::null());
    let child = command.spawn().unwrap();
    let link = home.path(&format!("tmp/plimsoll-{0}.json.{0}.part", child.id()));
    symlink(home.path("secret"), &link).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", texts(&output).1);
    assert_eq!(home.read("secret"), SECRET.as_bytes());
    let left: Vec<_> = fs::read_dir(home.path("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [link], "the plan is gone again");
}
