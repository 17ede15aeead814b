//! Training in a random subspace from the command line, and the search for the smallest one that suffices.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use crate::support::{Home, SMALL, texts};

/// A home with a model, rows to train on and rows to judge by.
fn home() -> Home {
    let home = Home::with_model();
    let rows = |range: std::ops::Range<usize>| -> String {
        let row = |n| format!("{{\"text\": \"line {} counts {} bytes\"}}\n", n % 9, n % 3);
        range.map(row).collect::<Vec<String>>().concat()
    };
    home.write("train.jsonl", rows(0..60));
    home.write("judge.jsonl", rows(60..80));
    home
}

#[test]
fn a_run_in_a_subspace_resumes_to_the_bit_keeps_its_coordinates_alone_and_is_merged() {
    let home = Home::with_model();
    let settings =
        format!("--model model --data text.txt {SMALL} --intrinsic-dimension 50 --seed 5 --max-steps 6");
    let train = |rest: &str| home.done(&format!("train {settings} {rest}"));
    train("--output-dir whole");
    train("--save-steps 3 --stop-after 3 --output-dir half");
    train("--save-steps 3 --output-dir half --resume latest");
    let weights = |folder: &str| home.read(&format!("{folder}/adapter_model.safetensors"));
    assert!(weights("whole") == weights("half"));
    // 50 numbers of four bytes, and a header.
    assert!(weights("whole").len() < 1000, "{}", weights("whole").len());
    let config = home.json("whole/adapter_config.json");
    assert_eq!((config["peft_type"].as_str(), config["seed"].as_u64()), (Some("INTRINSIC"), Some(5)));
    home.done("export --merge --model whole --out merged");
    let write = |model: &str| {
        let command = format!(
            "generate --model {model} --prompt line --max-new-tokens 12 --temperature 0 --memory 64MiB"
        );
        home.done(&command).0
    };
    assert_eq!(write("whole"), write("merged"));
    assert_ne!(home.read("merged/model.safetensors"), home.read("model/model.safetensors"));
}

#[test]
fn the_search_ends_with_a_curve_and_does_not_repeat_its_runs() {
    let home = home();
    let command = format!(
        "intrinsic --model model --data train.jsonl --eval-data judge.jsonl {SMALL} --max-steps 20 --learning-rate 0.01 \
         --subspace-learning-rate 0.01 --target 0.5 --output-dir search"
    );
    let (_, said) = home.done(&command);
    assert!(said.contains("50 % of full training's gain: ") && said.contains(" dimensions, "), "{said}");
    let page = String::from_utf8(home.read("search/intrinsic.html")).unwrap();
    assert!(page.contains("<circle") && page.contains("50 % of full training's gain"), "{page}");
    let runs = || {
        let entries = fs::read_dir(home.path("search")).unwrap();
        let runs = entries.filter(|entry| entry.as_ref().unwrap().path().is_dir());
        runs.map(|run| fs::metadata(run.unwrap().path().join("metrics.jsonl")).unwrap().modified().unwrap())
            .collect::<Vec<_>>()
    };
    let before = runs();
    assert!(before.len() >= 4, "start, full and two dimensions at least");
    let (_, again) = home.done(&command);
    assert!(runs() == before && !again.contains("training "), "{again}");
    // Only the run that was lost is trained again.
    fs::remove_dir_all(home.path("search/d-10")).unwrap();
    let (_, again) = home.done(&command);
    assert_eq!(again.matches("training ").count(), 1, "{again}");
    let other =
        texts(&home.command(&command.replace("--max-steps 20", "--max-steps 21")).output().unwrap()).1;
    assert!(other.contains("`search` holds a search with other settings"), "{other}");
}

#[test]
fn a_search_goes_on_after_runs_that_diverge_and_does_not_repeat_them() {
    let home = home();
    let command = |rates: &str, folder: &str| {
        format!(
            "intrinsic --model model --data train.jsonl --eval-data judge.jsonl {SMALL} --max-steps 6 {rates} \
             --target 0.5 --output-dir {folder}"
        )
    };
    let search = command("--learning-rate 0.01 --subspace-learning-rate 1e30", "search");
    let (_, said) = home.done(&search);
    assert!(said.contains("training d-10\n") && said.contains("d-10 diverged; the search goes on"), "{said}");
    assert!(said.contains("10 dimensions: loss NaN, nothing of the gain"), "{said}");
    assert!(said.contains("no subspace of up to ") && said.contains(" reached 50 %"), "{said}");
    // The folder now looks as if the search had been killed before it recorded the run's end.
    fs::remove_file(home.path("search/d-10/diverged")).unwrap();
    assert!(home.path("search/d-10/last-finite-1").is_dir());
    let (_, again) = home.done(&search);
    assert!(!again.contains("training ") && again.contains("no subspace of up to "), "{again}");
    let full = command("--learning-rate 1e30", "full");
    for trained in [2, 0] {
        let said = texts(&home.command(&full).output().unwrap()).1;
        assert!(said.contains("full training diverged, so there is no gain"), "{said}");
        assert_eq!(
            said.matches("training ").count() - said.matches("full training ").count(),
            trained,
            "{said}"
        );
    }
}

#[test]
fn searches_and_dimensions_that_mean_nothing_are_refused() {
    let home = home();
    let search = format!("intrinsic --model model --data train.jsonl {SMALL}");
    for (rest, why) in [
        ("--output-dir a --eval-split 0.2", "--max-steps is missing"),
        ("--max-steps 5 --eval-split 0.2", "--output-dir is missing"),
        ("--max-steps 5 --output-dir a", "give --eval-data or --eval-split"),
        (
            "--max-steps 5 --output-dir a --eval-split 0.2 --target 1.5",
            "--target must be above 0 and at most 1, got 1.5",
        ),
        (
            "--max-steps 5 --output-dir a --eval-split 0.2 --intrinsic-dimension 9",
            "--intrinsic-dimension is what the search finds; leave it out",
        ),
    ] {
        let said = texts(&home.command(&format!("{search} {rest}")).output().unwrap()).1;
        assert!(said.contains(why), "{rest}: {said}");
    }
    let preset = format!(
        "intrinsic --model tiny --data train.jsonl {SMALL} --max-steps 5 --output-dir a --eval-split 0.2"
    );
    let said = texts(&home.command(&preset).output().unwrap()).1;
    assert!(said.contains("`tiny` has no trained weights") && !said.contains("training start"), "{said}");
    let train = format!("train --model model --data text.txt {SMALL} --max-steps 1");
    for (rest, why) in [
        ("--intrinsic-dimension 0", "--intrinsic-dimension must be at least 1, got 0"),
        ("--intrinsic-dimension 100000000", "a subspace of 100000000 dimensions: the model has "),
        ("--intrinsic-per-layer true", "--intrinsic-per-layer needs --peft-type intrinsic"),
        (
            "--intrinsic-dimension 5 --lora-r 4",
            "--intrinsic-dimension is for --peft-type intrinsic; leave it out of lora",
        ),
        (
            "--intrinsic-dimension 5 --lora-target-modules q_proj",
            "--lora-target-modules is for adapters of modules",
        ),
    ] {
        let said = texts(&home.command(&format!("{train} {rest}")).output().unwrap()).1;
        assert!(said.contains(why), "{rest}: {said}");
    }
}
