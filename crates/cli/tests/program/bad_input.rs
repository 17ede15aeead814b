//! Every mistake gets one clear error that names the thing and the way out, and the right exit code.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Output;

use crate::support;

fn plimsoll(arguments: &str) -> Output {
    let mut output = support::plimsoll(arguments).output().unwrap();
    output.stderr = support::texts(&output).1.into_bytes();
    output
}

/// Runs a command that must fail with `code`, say exactly `expected` on standard error and nothing on
/// standard output.
fn refused(arguments: &str, code: i32, expected: &str) {
    let output = plimsoll(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.trim_end(), expected, "{arguments}");
    assert_eq!(output.status.code(), Some(code), "{arguments}");
    assert!(output.stdout.is_empty(), "{arguments}");
}

#[test]
fn an_unknown_preset_lists_the_known_ones() {
    refused(
        "plan --model xl",
        2,
        "error: no model is called `xl`; known are tiny, s, m, llama-3.2-1b, llama-3.1-8b, llama-3.1-70b, qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b, qwen3-0.6b, tiny-moe, s-moe, mixtral-8x7b, qwen1.5-moe-a2.7b, qwen3-30b-a3b, olmoe-1b-7b, gpt2, gpt2-xl, bert-base; nor is there a folder `xl` with a model in it",
    );
}

#[test]
fn an_unknown_strategy_lists_the_known_ones() {
    refused(
        "train --recompute some",
        2,
        "error: unknown recompute strategy `some`; choose auto, none, selective, full, sqrt, every:K (K = 1, 2, …), minimal or manual",
    );
}

#[test]
fn a_size_nobody_can_read_shows_how_sizes_are_written() {
    let output = plimsoll("plan --memory 16gigs");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: `16gigs` is no size"), "{said}");
    assert!(said.contains("GiB"), "{said}");
    assert_eq!(output.status.code(), Some(2));
    let output = plimsoll("plan --memory 64");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("64MiB"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_budget_too_small_names_the_smallest_that_works_and_it_works_when_typed() {
    let output = plimsoll("train --memory 16MiB --max-steps 1");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.starts_with("error: the smallest plan needs "), "{said}");
    assert!(said.contains("the budget is 16.0 MiB"), "{said}");
    let hint =
        said.lines().find_map(|line| line.strip_prefix("hint: `--memory ")?.split('`').next()).unwrap();
    let output = plimsoll(&format!("train --memory {hint} --max-steps 2"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_budget_that_a_fixed_setting_breaks_offers_settings_that_work_when_typed() {
    let output =
        plimsoll("train --memory 48MiB --global-batch 16 --micro-batch 16 --recompute none --max-steps 1");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    let hint = said.lines().find_map(|line| line.strip_prefix("hint: `--micro-batch")?.split('`').next());
    let settings = format!("--micro-batch{}", hint.unwrap());
    let output = plimsoll(&format!("train --memory 48MiB --global-batch 16 --max-steps 2 {settings}"));
    assert!(output.status.success(), "{settings}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_micro_batch_that_does_not_divide_the_global_batch_is_refused() {
    refused(
        "plan --global-batch 10 --micro-batch 4",
        2,
        "error: --micro-batch 4 does not divide --global-batch 10; the next global batch that works is 12",
    );
}

#[test]
fn zero_steps_and_empty_batches_are_refused() {
    refused("train --max-steps 0", 2, "error: --max-steps must be at least 1");
    refused("train --global-batch 0", 2, "error: --global-batch must be at least 1");
    refused("train --seq-len 0", 2, "error: --seq-len must be at least 1");
}

#[test]
fn data_and_made_up_data_exclude_each_other() {
    refused("train --data x --synthetic", 2, "error: give either --data or --synthetic, not both");
}

#[test]
fn missing_empty_and_short_data_are_told_apart() {
    let output = plimsoll("train --data no-such-folder");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: ") && said.contains("no-such-folder"), "{said}");
    assert_eq!(output.status.code(), Some(2));

    let empty = support::file("empty.txt", b"");
    let output = plimsoll(&format!("train --data {}", empty.display()));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("empty"), "{said}");
    assert_eq!(output.status.code(), Some(2));

    let short = support::file("short.txt", b"a few words");
    let output = plimsoll(&format!("train --data {}", short.display()));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--seq-len"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn an_unknown_flag_is_the_users_mistake() {
    let output = plimsoll("train --memroy 64MiB");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--memory"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_case_that_does_not_exist_is_refused() {
    refused("check nonsense", 2, "error: no case has `nonsense` in its name");
}

#[test]
fn an_unknown_device_lists_the_known_ones() {
    refused(
        "plan --device cuda:h300",
        2,
        "error: no device is called `cuda:h300`; known are cpu, cuda, cuda:h200, cuda:h100, cuda:a100-80, cuda:a100-40, cuda:l40s, cuda:l4, cuda:5090, cuda:4090, cuda:3090",
    );
}

#[test]
fn what_is_asked_for_the_most_of_must_not_be_fixed() {
    refused(
        "plan --max seq-len --seq-len 64",
        2,
        "error: --max seq-len asks for the largest that fits, so --seq-len cannot be fixed; leave it out",
    );
    refused(
        "plan --max micro-batch --global-batch 64",
        2,
        "error: --max micro-batch asks for the largest that fits, so --global-batch cannot be fixed; leave it out",
    );
}

#[test]
fn what_cannot_be_updated_inside_the_backward_pass_is_not_planned_either() {
    for command in
        ["plan", "plan --device cuda", "plan --show graph", "plan --max layers", "train", "bench ops"]
    {
        refused(
            &format!("{command} --update in-backward"),
            2,
            "error: updates inside the backward pass cannot limit the norm of all gradients to 1; add `--max-grad-norm 0`, or take `--update two-pass`",
        );
    }
    refused(
        "plan --update two-pass --micro-batch 2",
        2,
        "error: updates inside the backward pass take one micro-batch a step, and a global batch of 8 in micro-batches of 2 has more; leave out `--update`",
    );
}

#[test]
fn training_on_a_described_device_is_refused() {
    refused(
        "train --device cuda:h200",
        2,
        "error: cuda:h200 is a description to plan for; to train on a GPU of this machine write --device cuda or cuda:0, and to train on the CPU leave --device out",
    );
    refused(
        "train --model bert-base",
        2,
        "error: BERT learns from masked words or labels: give --data with a text or .jsonl, and --tokenizer where the model has none",
    );
}

#[test]
fn a_model_too_large_for_a_card_is_answered_with_one_that_works_when_typed() {
    // The run would fit if gradients were freed inside the backward pass.
    let model = "plan --model qwen2.5-1.5b --seq-len 1024 --global-batch 1 --update separate";
    let output = plimsoll(&format!("{model} --device cuda:4090"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    let hint = said.lines().find_map(|line| line.strip_prefix("hint: `--device ")?.split('`').next());
    let output = plimsoll(&format!("{model} --device {}", hint.unwrap()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let output = plimsoll(
        "plan --model llama-3.1-8b --memory 80GiB --seq-len 512 --global-batch 1 --device cuda:h200",
    );
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the budget is 80.0 GiB") && said.contains("hint: `--memory "), "{said}");
    let output = plimsoll("plan --memory 80GiB --device cuda:l4");
    assert!(String::from_utf8(output.stderr).unwrap().contains("is more than the 22.5 GiB that cuda:l4 has"));
}

#[test]
fn what_only_the_user_may_change_is_proposed_and_works_when_typed() {
    let on_a_card =
        "plan --model llama-3.1-8b --memory 80GiB --seq-len 512 --global-batch 1 --device cuda:h200";
    let on_this_machine = "plan --memory 30MiB --global-batch 1 --update separate";
    for (asked, ways) in
        [(on_a_card, &["--offload host", "--optim adamw_8bit"][..]), (on_this_machine, &["--offload disk"])]
    {
        let said = String::from_utf8(plimsoll(asked).stderr).unwrap();
        for way in ways {
            assert!(said.contains(&format!("hint: `{way}` fits: ")), "{asked}: {said}");
            let output = plimsoll(&format!("{asked} {way}"));
            assert!(output.status.success(), "{way}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn a_pool_that_is_too_small_or_not_there_is_answered_with_one_that_works() {
    let asked = "plan --model llama-3.2-1b --seq-len 512 --global-batch 1 --device cuda:h200 --memory 14GiB";
    let said = String::from_utf8(plimsoll(&format!("{asked} --host-memory 16MiB")).stderr).unwrap();
    let hint = said.lines().find_map(|line| line.strip_prefix("hint: `--host-memory ")?.split('`').next());
    let hint = hint.unwrap_or_else(|| panic!("{said}"));
    let output = plimsoll(&format!("{asked} --host-memory {hint}"));
    assert!(output.status.success(), "{hint}: {}", String::from_utf8_lossy(&output.stderr));
    refused(
        "plan --offload disk --offload-budget 2GiB",
        2,
        "error: there is no flag `--offload-budget` here: it is now --disk-space for a disk and --host-memory for memory of the host; write that one",
    );
    refused(
        "plan --host-memory 2GiB",
        2,
        "error: on the CPU the host's memory is what --memory limits; use --offload disk and --disk-space",
    );
    refused(
        "plan --device cuda --offload disk",
        2,
        "error: a GPU has no disk to offload to: to plan for one with memory of the host, use --offload host; to train on one, leave --offload and --disk-space out",
    );
}

#[test]
fn a_disk_space_that_is_too_small_is_the_cause_that_is_named_and_the_size_that_is_named_works_when_typed() {
    let asked = "plan --model s --seq-len 64 --memory 64MiB --offload disk --offload-folder /tmp";
    let output = plimsoll(&format!("{asked} --disk-space 8MiB"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("wait on the disk of /tmp, and --disk-space allows 8.00 MiB\n"), "{said}");
    let hint = said.lines().find_map(|line| line.strip_prefix("hint: `--disk-space ")?.split('`').next());
    let output = plimsoll(&format!("{asked} --disk-space {}", hint.unwrap()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // If the memory is too small for any plan, more room on the disk does not help, and the error asks for none.
    let said = plimsoll("plan --model s --seq-len 64 --memory 20MiB --offload disk --disk-space 8MiB").stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(said.starts_with("error: the smallest plan needs ") && !said.contains("--disk-space"), "{said}");
}

#[test]
fn when_not_even_one_fits_the_smallest_budget_is_named() {
    let output = plimsoll("plan --memory 16MiB --max layers");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.starts_with("error: the smallest plan needs "), "{said}");
    assert!(said.contains("hint: `--memory "), "{said}");
}

#[test]
fn a_page_that_cannot_be_written_is_a_failure_that_names_the_file() {
    let output = plimsoll("plan --memory 64MiB --html /no-such-folder/plan.html");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("error: cannot write `/no-such-folder/plan.html`: "), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_folder_that_cannot_hold_the_offload_file_is_named() {
    let output = plimsoll("plan --offload disk --offload-folder /no/such/folder");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: cannot make a file for offload in /no/such/folder: "), "{said}");
    assert_eq!(output.status.code(), Some(2));
}
