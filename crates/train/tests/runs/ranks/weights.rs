//! Stage 3 of `ZeRO`: ranks that divide weights have the bits of stage 2, keep a part of everything, and read and write wholes.

use plimsoll_graph::op::shard_elements;
use plimsoll_graph::{Phase, StateKind};
use plimsoll_plan::{Purpose, Role, exchanges, traffic, wire_bytes};
use plimsoll_train::trainer::Event;
use plimsoll_train::{Config, RawConfig, Run, TrainError};

use super::stages::{kept, parameters, planned_bytes, stage, unlimited};
use super::{STEPS, Trained, bits, folder, open, refused, settings, train, trains_as_one};

/// A small Llama with adapters.
fn adapters(raw: RawConfig) -> RawConfig {
    RawConfig {
        config: None,
        model: Some("tiny".into()),
        layers: Some(2),
        lora_r: Some(4),
        lora_dropout: Some(0.2),
        ..raw
    }
}

fn same_bits(one: &Trained, other: &Trained, about: &str) {
    assert_eq!(bits(&one.losses), bits(&other.losses), "{about}");
    assert_eq!(bits(&one.norms), bits(&other.norms), "{about}");
    assert_eq!(parameters(one), parameters(other), "{about}");
}

#[test]
fn divided_weights_train_as_one_rank_does_with_accumulation_ragged_rows_dropout_and_clipping() {
    let folder = folder();
    trains_as_one(|ranks| stage("3", settings(folder.path(), ranks)));
}

/// Checks that stage 3 has the bits of stage 2 on this many ranks.
fn has_the_bits_of_stage_2(ranks: usize, form: impl Fn(RawConfig) -> RawConfig) {
    let folder = folder();
    let raw = form(unlimited(folder.path(), ranks));
    let [gradients, weights] = ["2", "3"].map(|name| train(&stage(name, raw.clone())));
    same_bits(&gradients, &weights, &format!("{ranks} ranks, {:?}", raw.optim));
    let [gradients, weights] = [gradients, weights].map(|of| kept(of.session.trainer().run()));
    assert_eq!(gradients, weights, "moments too");
}

#[test]
fn divided_weights_have_the_bits_of_divided_gradients() {
    for ranks in [2, 4] {
        has_the_bits_of_stage_2(ranks, |raw| raw);
    }
}

#[test]
fn divided_weights_in_halves_or_with_moments_in_eight_bits_have_the_bits_of_divided_gradients() {
    let eight = |raw| RawConfig { optim: Some("adamw_8bit".into()), max_grad_norm: Some(0.25), ..raw };
    has_the_bits_of_stage_2(2, eight);
    has_the_bits_of_stage_2(4, |raw| RawConfig { weights_dtype: Some("bf16".into()), ..raw });
    has_the_bits_of_stage_2(4, |raw| RawConfig {
        bf16: Some(true),
        weights_dtype: Some("bf16-master".into()),
        gradients_dtype: Some("bf16".into()),
        ..raw
    });
}

#[test]
fn divided_weights_under_adapters_have_the_bits_of_divided_gradients() {
    has_the_bits_of_stage_2(2, |raw| adapters(RawConfig { max_steps: Some(3), ..raw }));
}

#[test]
fn two_runs_with_divided_weights_have_the_same_bits() {
    let folder = folder();
    let raw = stage("3", unlimited(folder.path(), 2));
    same_bits(&train(&raw), &train(&raw), "again");
}

#[test]
fn recompute_changes_no_bit_of_divided_weights() {
    let folder = folder();
    let of = |recompute: &str| {
        let raw = RawConfig { recompute: Some(recompute.into()), ..unlimited(folder.path(), 2) };
        train(&stage("3", raw))
    };
    let nothing = of("none");
    for recompute in ["full", "every:2", "minimal"] {
        same_bits(&nothing, &of(recompute), recompute);
    }
}

#[test]
fn experts_whose_weights_are_divided_train_as_those_of_one_rank() {
    let folder = folder();
    let of = |ranks: usize, name: &str| {
        train(&RawConfig {
            config: None,
            model: Some("s-moe".into()),
            layers: Some(1),
            max_steps: Some(2),
            ..stage(name, settings(folder.path(), ranks))
        })
    };
    same_bits(&of(2, "2"), &of(2, "3"), "groups of experts are drawn part by part");
}

#[test]
fn a_rank_keeps_its_part_of_the_weights_and_the_padding_that_is_stated() {
    let folder = folder();
    let whole = train(&stage("0", unlimited(folder.path(), 2))).session;
    for ranks in [2, 4] {
        // The peak of every rank was compared with the plan's at the end of the run.
        let divided = train(&stage("3", unlimited(folder.path(), ranks))).session;
        let tensors = divided.trainer().run().parameters(false).count() as u64;
        for (purpose, ranges) in [(Purpose::Weights, 1), (Purpose::Gradients, 1), (Purpose::Optimizer, 2)] {
            let [all, part] = [&whole, &divided].map(|of| planned_bytes(of, purpose));
            let (least, padding) = (all / ranks as u64, ranges * tensors * 255 * 4);
            // Tables that are no parameters stay whole.
            assert!((least..=least + padding).contains(&part), "{ranks} ranks, {purpose:?}: {part} of {all}");
        }
        let planned = &divided.summary().planned.choice.plan;
        assert!(planned.by_purpose.of(Purpose::Gathered) < planned_bytes(&whole, Purpose::Weights));
    }
}

#[test]
fn a_rank_sends_two_gathers_and_a_scatter_of_every_matrix_in_every_micro_batch() {
    let folder = folder();
    for ranks in [2, 4] {
        let raw = RawConfig { global_batch: Some(4), ..unlimited(folder.path(), ranks) };
        let divided = train(&stage("3", raw)).session;
        let choice = &divided.summary().planned.choice;
        let told = traffic(choice).unwrap();
        assert_eq!(divided.trainer().run().sent_bytes(), STEPS * told.wire_bytes, "{ranks} ranks");
        let graph = &choice.program.train.graph;
        let begun = exchanges(graph, &choice.plan.schedules[&Role::First]);
        let mut expected = 0;
        for state in graph.states().iter().filter(|state| matches!(state.kind, StateKind::Parameter { .. })) {
            let gathers =
                begun.iter().filter(|exchange| exchange.subject == format!("{}@0", state.name)).count();
            let whole = state.whole.unwrap().shape;
            // In its layer a matrix is read by both passes, and the tied table at both ends; others by one pass or by both.
            let certain = state.name.contains(".h.") && whole.len() == 2 || state.name.contains("wte");
            assert!(gathers == 2 || (gathers == 1 && !certain), "{} {gathers} times", state.name);
            let share = (ranks - 1) * 4 * shard_elements(whole.elements(), ranks);
            expected += ((gathers + 1) * share) as u64;
        }
        assert_eq!(wire_bytes(choice, Role::First), expected);
        let of_update = graph.nodes().iter().filter(|node| node.phase == Phase::Update);
        let gathered = of_update.filter(|node| node.op.name() == "all_gather").count();
        assert_eq!(gathered, 0, "nothing is gathered behind the update");
    }
}

#[test]
fn an_evaluation_inside_a_run_has_all_ranks_gather_and_the_loss_of_stage_2() {
    let folder = folder();
    let losses = |name: &str| {
        let raw = RawConfig {
            eval_data: Some(vec![folder.path().join("text.txt").display().to_string()]),
            eval_steps: Some(4),
            ..stage(name, unlimited(folder.path(), 2))
        };
        let (mut session, mut losses) = (open(&raw), Vec::new());
        let mut listener = |event: &Event<'_>| -> Result<(), TrainError> {
            if let Event::Evaluation(record) = event {
                losses.push(record.eval_loss);
            }
            Ok(())
        };
        let end = session.train::<TrainError>(&mut [&mut listener]).unwrap();
        session.judge(&end).unwrap();
        losses
    };
    let divided = losses("3");
    assert_eq!(divided.len(), 3, "after steps 4 and 8, and at the end");
    assert_eq!(bits(&divided), bits(&losses("2")));
}

#[test]
fn what_reads_whole_weights_before_the_first_step_is_refused_and_not_chosen() {
    let folder = folder();
    let dora = |raw: &mut RawConfig| {
        *raw = RawConfig { use_dora: Some(true), ..adapters(raw.clone()) };
    };
    let told = refused(folder.path(), |raw| {
        raw.zero_stage = Some("3".into());
        dora(raw);
    });
    assert!(told.contains("DoRA begins with the lengths") && told.contains("take zero_stage 2"), "{told}");
    let mut raw = settings(folder.path(), 2);
    dora(&mut raw);
    assert!(Config::check(&raw).is_ok(), "another stage is taken");
}

#[test]
fn a_rank_that_is_given_a_whole_weight_keeps_its_part() {
    let folder = folder();
    let mut session = open(&stage("3", unlimited(folder.path(), 2)));
    let run: &mut Run = session.trainer_mut().run_mut();
    let (name, whole) = run.parameters(false).next().map(|(name, ty)| (name.to_owned(), ty)).unwrap();
    let numbers: Vec<f32> = (0..whole.shape.elements()).map(|at| at as f32).collect();
    run.set_state(&name, &numbers).unwrap();
    let own = run.state(&name).unwrap();
    assert_eq!(own.len(), shard_elements(numbers.len(), 2));
    assert_eq!(own[..], numbers[..own.len()], "rank 0 has the first elements");
    let one_more = vec![0.0; numbers.len() + 1];
    assert!(run.set_state(&name, &one_more).is_err());
}
