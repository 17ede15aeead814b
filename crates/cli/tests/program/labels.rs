//! Models that sort texts: the saved model names its labels, with an adapter and without, and can be trained further.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use crate::support::{Home, SMALL};

/// With a BERT for words, which drops nothing, so that losses can be compared.
fn with_bert() -> Home {
    let home = Home::new();
    home.copy("hf/bert", "bert");
    home.copy("tokenizer/bert", "bert");
    home.set("bert/config.json", "hidden_dropout_prob", json!(0.0));
    home
}

/// Texts whose first word decides.
fn samples(home: &Home, name: &str, labels: &[Value; 3]) {
    let words = ["laden", "light", "lost"];
    let line = |n: usize| json!({"text": format!("{} ship {n}", words[n % 3]), "label": labels[n % 3]});
    let lines: Vec<String> = (0..48).map(|n| format!("{}\n", line(n))).collect();
    home.write(name, lines.concat());
}

fn names(config: &Value) -> [&str; 3] {
    ["0", "1", "2"].map(|number| config["id2label"][number].as_str().unwrap())
}

#[test]
fn labels_that_are_numbers_make_a_classifier_that_can_be_read_again() {
    let home = with_bert();
    samples(&home, "d.jsonl", &[json!(0), json!(1), json!(2)]);
    let train = format!("train --data d.jsonl --max-steps 2 {SMALL}");
    home.done(&format!("{train} --model bert --task classify --output-dir first"));
    let config = home.json("first/config.json");
    assert_eq!(config["architectures"], json!(["BertForSequenceClassification"]));
    assert_eq!(names(&config), ["LABEL_0", "LABEL_1", "LABEL_2"]);
    assert_eq!(config["label2id"]["LABEL_2"], 2);
    let kept = "attention_probs_dropout_prob";
    assert_eq!(config[kept], home.json("bert/config.json")[kept], "what is not about the head stays");
    let (_, said) = home.done(&format!("{train} --model first --output-dir second"));
    assert!(!said.contains("so new"), "{said}");
    assert_eq!(home.json("second/config.json"), config);
}

#[test]
fn labels_that_are_not_read_are_told_with_the_task_that_reads_them() {
    let home = with_bert();
    samples(&home, "d.jsonl", &[json!("x"), json!("y"), json!("z")]);
    let train = format!("train --model bert --data d.jsonl --max-steps 1 {SMALL}");
    let told = "note: the samples have a `label` that is not read, since hidden words are learned; with `--task classify` the \
                labels are learned\n";
    // The second run reads what the first has tokenised.
    for run in ["first", "second"] {
        assert!(home.done(&format!("{train} --output-dir {run}")).1.contains(told), "{run}");
    }
    assert!(!home.done(&format!("{train} --task classify --output-dir third")).1.contains("is not read"));
}

#[test]
fn a_plan_has_the_head_that_the_data_asks_for_whatever_is_asked_of_it() {
    let home = with_bert();
    samples(&home, "d.jsonl", &[json!(0), json!(1), json!(2)]);
    let plan = "plan --model bert --task classify --data d.jsonl --threads 1 --memory 1GiB";
    let (shown, _) = home.done(&format!("{plan} --seq-len 32 --device cuda --show graph"));
    assert!(shown.contains("classifier.weight") && !shown.contains("cls.predictions"), "{shown}");
    let weights = |arguments: &str| {
        let plan: Value = serde_json::from_str(&home.done(arguments).0).unwrap();
        (plan["by_purpose"]["weights"].as_u64().unwrap(), plan["max"]["value"].clone())
    };
    let (expected, _) = weights(&format!("{plan} --seq-len 32 --json"));
    assert_eq!(
        weights(&format!("{plan} --max seq-len --json")),
        (expected, json!(32)),
        "positions end at 32"
    );
    let (words, _) = weights("plan --model bert --seq-len 32 --threads 1 --memory 1GiB --json");
    assert_ne!(words, expected);
}

#[test]
fn an_adapter_brings_its_head_and_the_names_of_its_labels() {
    let home = with_bert();
    samples(&home, "d.jsonl", &[json!("laden"), json!("light"), json!("lost")]);
    let train = format!("train --data d.jsonl {SMALL}");
    home.done(&format!(
        "{train} --model bert --task classify --lora-r 2 --learning-rate 1e-2 --max-steps 6 --output-dir adapter"
    ));
    assert_eq!(names(&home.json("adapter/config.json")), ["laden", "light", "lost"]);
    let mapping = &home.json("adapter/adapter_config.json")["auto_mapping"];
    assert_eq!(mapping["base_model_class"], "BertForSequenceClassification");

    home.done("export --merge --model bert --adapter adapter --out merged");
    let config = home.json("merged/config.json");
    assert_eq!(config["architectures"], json!(["BertForSequenceClassification"]));
    assert_eq!(names(&config), ["laden", "light", "lost"]);

    // One more training step has the same loss, whether the adapter stands beside the model or is part of it.
    let (_, said) =
        home.done(&format!("{train} --model bert --adapter adapter --max-steps 1 --output-dir further"));
    assert!(!said.contains("so new"), "{said}");
    assert_eq!(names(&home.json("further/config.json")), ["laden", "light", "lost"]);
    home.done(&format!("{train} --model merged --max-steps 1 --output-dir whole"));
    let (beside, within) = (home.losses("further")[0], home.losses("whole")[0]);
    assert!((beside - within).abs() < 1e-5, "{beside} {within}");
    assert!((beside - home.losses("adapter")[0]).abs() > 1e-2, "six steps taught something");

    // PEFT names the head of any classifier, and writes down no labels.
    home.set("adapter/adapter_config.json", "modules_to_save", json!(["classifier", "score", "pooler"]));
    std::fs::remove_file(home.path("adapter/config.json")).unwrap();
    home.done("export --merge --model bert --adapter adapter --out unnamed");
    assert_eq!(names(&home.json("unnamed/config.json")), ["LABEL_0", "LABEL_1", "LABEL_2"]);
    assert!(home.read("unnamed/model.safetensors") == home.read("merged/model.safetensors"));

    samples(&home, "more.jsonl", &[json!(0), json!(1), json!(3)]);
    home.refused(
        &format!("train --data more.jsonl {SMALL} --model bert --adapter adapter --max-steps 1"),
        "more.jsonl, line 3: the label 3 is not allowed: the model's classes are numbered 0 to 2; mend the line, or pass over such lines with --skip-bad-lines",
    );
}
