//! A plan that was written, read back and run is the plan that was made; anything else is refused with its reason.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_exec::Device;
use plimsoll_plan::file::{PlanFileError, Saved};
use plimsoll_plan::{Program, Strategy};
use plimsoll_train::{
    LanguageModel, Optimizer, OptimizerKind, Options, Planned, Run, Update, plan_for, plan_from_file, program,
};

use crate::support::{Batch, Size, gpt2, llama, options};

const ROWS: usize = 2;
const SIZE: Size = Size { vocab: 50, seq: 8, width: 16, layers: 2, ffn: 24, dropout: 0.1 };

fn model(layers: usize) -> LanguageModel {
    let architecture = llama(Size { layers, ..SIZE });
    LanguageModel { architecture, seq_len: SIZE.seq, generate: false, lora: None }
}

fn in_backward() -> Options {
    let optimizer = Optimizer { max_grad_norm: None, ..Optimizer::default() };
    Options { update: Update::InBackward, optimizer, ..options(ROWS, ROWS, Strategy::Full, 1) }
}

fn made(model: &LanguageModel, options: &Options) -> (Box<dyn Device>, Planned) {
    let device = plimsoll_devices::cpu(1).unwrap();
    let planned = plan_for(model, &*device, options).unwrap();
    (device, planned)
}

fn losses(device: Box<dyn Device>, planned: Planned) -> Vec<u32> {
    let mut run = Run::start(device, planned, 7).unwrap();
    let step = |salt| {
        let batch = Batch::synthetic(ROWS, SIZE.seq, SIZE.vocab, false, salt);
        let (losses, norm) = batch.step(&mut run, 1e-2);
        (losses.into_iter().sum::<f32>() + norm).to_bits()
    };
    (0..3).map(step).collect()
}

#[test]
fn a_plan_reads_back_to_the_byte_and_runs_to_the_bit() {
    let gpt2 = LanguageModel { architecture: gpt2(SIZE), ..model(2) };
    for (model, options) in [
        (model(2), options(ROWS, 1, Strategy::Auto, 1)),
        (gpt2, options(ROWS, ROWS, Strategy::Minimal, 1)),
        (model(2), in_backward()),
    ] {
        let (device, planned) = made(&model, &options);
        let text = planned.to_file();
        let read = plan_from_file(&model, &*device, &options, &text).unwrap();
        assert_eq!(read.to_file(), text);
        assert_eq!(read.choice.plan.schedules, planned.choice.plan.schedules);
        assert_eq!(read.choice.plan.by_purpose, planned.choice.plan.by_purpose);
        assert_eq!(losses(device, read), losses(plimsoll_devices::cpu(1).unwrap(), planned));
    }
}

#[test]
fn what_differs_is_named() {
    let asked = options(ROWS, 1, Strategy::Full, 1);
    let (device, planned) = made(&model(2), &asked);
    let text = planned.to_file();
    let refused = |model: &LanguageModel, options: &Options, text: &str| {
        plan_from_file(model, &*device, options, text).unwrap_err().to_string()
    };
    let deeper = refused(&model(3), &asked, &text);
    assert!(deeper.starts_with("the plan was made for another training graph: its parameters: "), "{deeper}");
    let momentum = Optimizer { kind: OptimizerKind::Sgd, ..asked.optimizer };
    let other = refused(&model(2), &Options { optimizer: momentum, ..asked.clone() }, &text);
    assert!(other.contains("its moments: ") && other.contains("; here: none; "), "{other}");
    let larger = refused(&model(2), &Options { global_batch: 4, ..asked.clone() }, &text);
    assert!(larger.contains("state `global_batch 2`"), "{larger}");
    let tight = refused(&model(2), &Options { memory: Some(1 << 20), ..asked.clone() }, &text);
    assert!(tight.contains("the budget is 1.00 MiB; plan again"), "{tight}");
    let newer = refused(&model(2), &asked, &text.replace("\"plimsoll_plan\":4", "\"plimsoll_plan\":5"));
    assert!(newer.contains("a plan of version 5, and this build reads version 4"), "{newer}");
    let mut other = planned.choice.program.clone();
    other.train.facts.alignment *= 2;
    let error = Saved::parse(&text).unwrap().for_program(other).unwrap_err();
    assert!(matches!(error, PlanFileError::Differs { what: "device", .. }), "{error}");
    assert!(refused(&model(2), &asked, "{}").contains("not a plan file"));
}

/// Reads a text: the reader must not panic, and accepts nothing but the plan that was written.
fn read(text: &[u8], program: &Program) -> Option<Planned> {
    let saved = Saved::parse(std::str::from_utf8(text).ok()?).ok()?;
    let choice = saved.for_program(program.clone()).ok()?;
    Some(Planned { choice, budget: plimsoll_train::memory::Budget::resolve(Some(1 << 30)).unwrap() })
}

#[test]
fn damage_never_passes_for_a_plan() {
    let (_, planned) = made(&model(2), &in_backward());
    let (text, program) = (planned.to_file().into_bytes(), &planned.choice.program);
    assert!(read(&text, program).is_some());
    for end in (0..text.len() - 2).step_by(97) {
        assert!(read(&text[..end], program).is_none(), "cut at {end}");
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..300 {
        let mut damaged = text.clone();
        let at = next(damaged.len());
        damaged[at] ^= 1 << next(8);
        if let Some(read) = read(&damaged, program) {
            assert_eq!(read.choice.plan.schedules, planned.choice.plan.schedules, "byte {at}");
        }
    }
}

/// The text with `plan` changed and a correct hash, as a person could write it.
fn edited(text: &str, edit: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let mut file: serde_json::Value = serde_json::from_str(text).unwrap();
    edit(&mut file["plan"]);
    let hash = plimsoll_graph::name_hash(&file["plan"].to_string());
    file["hash"] = format!("{hash:016x}").into();
    file.to_string().into_bytes()
}

#[test]
fn a_file_changed_by_hand_meets_the_judge() {
    let device = plimsoll_devices::cpu(1).unwrap();
    let asked = in_backward();
    let (_, planned) = made(&model(2), &asked);
    let program = program(&model(2), &*device, &asked, ROWS).unwrap();
    let text = planned.to_file();
    let buffers = planned.choice.plan.schedules.values().next().unwrap().buffers.len();
    // One number of one buffer at a time: an altered file is refused, or its schedule is one that the judge passes.
    let (mut refused, mut passed) = (0, 0);
    for buffer in (0..buffers).step_by(7) {
        for (column, value) in
            [(0, 7u64), (1, 1 << 31), (3, u64::MAX), (3, 0), (4, u64::MAX - 63), (4, 0), (6, 1 << 40)]
        {
            let bytes =
                edited(&text, |plan| plan["schedules"]["first"]["buffers"][buffer][column] = value.into());
            match read(&bytes, &program) {
                None => refused += 1,
                Some(_) => passed += 1,
            }
        }
    }
    assert!(refused > 5 * passed, "{refused} refused, {passed} passed");
    for (field, value) in [("scratch", "most"), ("recompute", "no"), ("device", "0")] {
        assert!(read(&edited(&text, |plan| plan[field] = value.into()), &program).is_none(), "{field}");
    }
    // An update that is left out, or an action that names a buffer that is not there.
    let shorter =
        edited(&text, |plan| drop(plan["schedules"]["first"]["actions"].as_array_mut().unwrap().pop()));
    assert!(read(&shorter, &program).is_none());
    let beyond =
        edited(&text, |plan| plan["schedules"]["first"]["actions"][0][2] = serde_json::json!([99_999]));
    assert!(read(&beyond, &program).is_none());
}
