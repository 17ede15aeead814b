//! Stages of `ZeRO`: the numbers of stage 0, less memory for each rank, and checkpoints that know nothing of either.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_plan::{Purpose, traffic};
use plimsoll_train::job::{Environment, Session};
use plimsoll_train::{Config, RawConfig, Run, TrainError};

use super::{STEPS, Trained, bits, folder, open, refused, settings, train, trains_as_one};
use crate::support::names;

/// The stage for several ranks; one rank trains alone.
pub(super) fn stage(stage: &str, raw: RawConfig) -> RawConfig {
    RawConfig { zero_stage: Some(stage.into()).filter(|_| raw.ranks != Some(1)), ..raw }
}

/// `AdamW` without a limit on the norm, whose sum is the only one that stages take in another order.
pub(super) fn unlimited(folder: &Path, ranks: usize) -> RawConfig {
    RawConfig {
        optim: None,
        momentum: None,
        learning_rate: Some(0.003),
        max_grad_norm: Some(0.0),
        ..settings(folder, ranks)
    }
}

/// The bytes of all parameters, gathered from all ranks.
pub(super) fn parameters(trained: &Trained) -> BTreeMap<String, Vec<u8>> {
    let run = trained.session.trainer().run();
    let mut kept = kept(run);
    let names: Vec<&str> = run.parameters(true).map(|(name, _)| name).collect();
    kept.retain(|name, _| names.contains(&name.as_str()));
    kept
}

/// Bytes of everything that lasts, by name, gathered from all ranks.
pub(super) fn kept(run: &Run) -> BTreeMap<String, Vec<u8>> {
    let lasting = run.states_of(plimsoll_graph::StateKind::outlives_a_step);
    let whole = |name: &str| {
        let mut bytes = vec![0; run.whole_type(name).unwrap().bytes()];
        run.read_whole(name, 0, &mut bytes).unwrap();
        bytes
    };
    lasting.map(|(name, _)| (name.to_owned(), whole(name))).collect()
}

#[test]
fn divided_moments_train_as_one_rank_does_with_accumulation_ragged_rows_dropout_and_clipping() {
    let folder = folder();
    trains_as_one(|ranks| stage("1", settings(folder.path(), ranks)));
}

#[test]
fn divided_moments_of_adapters_train_as_one_rank_does() {
    let folder = folder();
    trains_as_one(|ranks| {
        let raw = RawConfig {
            config: None,
            model: Some("tiny".into()),
            layers: Some(2),
            lora_r: Some(4),
            lora_dropout: Some(0.2),
            ..settings(folder.path(), ranks)
        };
        stage("1", raw)
    });
}

#[test]
fn stages_agree_to_the_bit_where_the_norm_is_not_limited() {
    let folder = folder();
    let forms: [fn(&mut RawConfig); 4] = [
        |_| (),
        |raw| (raw.bf16, raw.weights_dtype) = (Some(true), Some("bf16".into())),
        |raw| raw.optim = Some("adamw_8bit".into()),
        |raw| (raw.bf16, raw.gradients_dtype) = (Some(true), Some("bf16".into())),
    ];
    for (ranks, change) in [2, 4].into_iter().flat_map(|ranks| forms.map(|form| (ranks, form))) {
        let mut raw = unlimited(folder.path(), ranks);
        change(&mut raw);
        let [whole, divided] = ["0", "1"].map(|name| train(&stage(name, raw.clone())));
        assert_eq!(bits(&whole.losses), bits(&divided.losses), "{ranks} ranks");
        assert_eq!(parameters(&whole), parameters(&divided), "{ranks} ranks");
        // With shards, sums of squares are rounded at other places.
        for (one, other) in whole.norms.iter().zip(&divided.norms) {
            assert!((one - other).abs() <= 1e-6 * one, "{one} {other}");
        }
        let [whole, divided] = [whole, divided].map(|of| kept(of.session.trainer().run()));
        assert_eq!(whole, divided, "{ranks} ranks");
    }
}

#[test]
fn a_world_of_one_runs_the_exchanges_of_every_stage_with_the_bits_of_a_run_alone() {
    let folder = folder();
    let raw = || RawConfig { micro_batch: Some(8), ..unlimited(folder.path(), 1) };
    let exchanges = |trained: &Trained| {
        let program = &trained.session.summary().planned.choice.program;
        program.train.graph.nodes().iter().filter(|node| node.op.collective().is_some()).count()
    };
    let alone = train(&RawConfig { update: Some("separate".into()), ..raw() });
    assert_eq!((exchanges(&alone), alone.end.ranks.len()), (0, 0));
    for name in ["0", "1", "2", "3"] {
        let world = train(&RawConfig { zero_stage: Some(name.into()), ..raw() });
        let parameters = alone.session.trainer().run().parameters(false).count();
        assert!(exchanges(&world) >= parameters, "stage {name}: {} exchanges", exchanges(&world));
        assert_eq!(bits(&world.losses), bits(&alone.losses), "stage {name}");
        assert_eq!(self::parameters(&world), self::parameters(&alone), "stage {name}");
        assert_eq!((world.session.ranks(), world.end.ranks.len()), (1, 1));
        assert_eq!(world.session.trainer().run().sent_bytes(), 0, "nobody to send to");
    }
}

#[test]
fn a_world_of_one_takes_a_stated_number_of_ranks_and_a_named_stage() {
    let folder = folder();
    let of = |ranks: Option<usize>, stage: Option<&str>| {
        let raw = RawConfig { ranks, zero_stage: stage.map(Into::into), ..unlimited(folder.path(), 1) };
        let config = Config::check(&raw).unwrap();
        let effective = config.effective();
        (config.options.world(), effective.ranks, effective.zero_stage)
    };
    assert_eq!(of(Some(1), Some("2")), (Some(1), Some(1), Some("2".into())));
    for (ranks, stage) in [(None, Some("2")), (Some(1), None), (Some(1), Some("auto"))] {
        assert_eq!(of(ranks, stage), (None, None, None), "{ranks:?} {stage:?}");
    }
}

/// Bytes of all ranges of one purpose in a plan.
pub(super) fn planned_bytes(session: &Session, purpose: Purpose) -> u64 {
    let states = &session.summary().planned.choice.plan.states;
    states.iter().filter(|range| range.purpose == purpose).map(|range| range.ty.bytes() as u64).sum()
}

#[test]
fn a_rank_keeps_its_part_of_the_moments_and_the_padding_that_is_stated() {
    let folder = folder();
    let whole = train(&stage("0", unlimited(folder.path(), 2))).session;
    let moments = planned_bytes(&whole, Purpose::Optimizer);
    for ranks in [2, 4] {
        // The peak of every rank was compared with the plan's at the end of the run.
        let divided = train(&stage("1", unlimited(folder.path(), ranks))).session;
        let part = planned_bytes(&divided, Purpose::Optimizer);
        let run = divided.trainer().run();
        let tensors = run.parameters(false).count() as u64;
        // At most a block less one element for each of two moments of a tensor.
        let padding = 2 * tensors * 255 * 4;
        let least = moments / ranks as u64;
        assert!((least..=least + padding).contains(&part), "{ranks} ranks: {part} of {moments}");
        assert_eq!(planned_bytes(&divided, Purpose::Weights), planned_bytes(&whole, Purpose::Weights));
        assert_eq!(planned_bytes(&divided, Purpose::Gradients), planned_bytes(&whole, Purpose::Gradients));
        let program = &divided.summary().planned.choice.program;
        assert_eq!(run.sent_bytes(), STEPS * program.update_wire_bytes());
    }
}

#[test]
fn a_checkpoint_of_any_stage_goes_on_at_any_number_of_ranks_and_any_stage() {
    let folder = folder();
    let with_output = |ranks: usize, name: &str| {
        let raw = RawConfig {
            global_batch: Some(12),
            optim: Some("adamw_8bit".into()),
            report_to: Some(vec!["none".into()]),
            ..unlimited(folder.path(), ranks)
        };
        stage(name, raw)
    };
    for saved_at in ["1", "2", "3"] {
        let out = folder.path().join(format!("stage-{saved_at}"));
        let begun = RawConfig { output_dir: Some(out.clone()), ..with_output(4, saved_at) };
        let mut job = Config::check(&begun).unwrap().open(&Environment::default()).unwrap();
        let planned = job.plan().unwrap();
        let mut paused = job.pause_after(Some(3)).start(planned).unwrap();
        paused.train::<TrainError>(&mut []).unwrap();
        let saved = kept(paused.trainer().run());
        drop(paused);
        for (ranks, name) in [(1, "0"), (2, "1"), (3, "2"), (3, "0"), (2, "3"), (3, "3"), (4, saved_at)] {
            let raw = RawConfig {
                resume: Some(out.join("checkpoint-3").display().to_string()),
                output_dir: Some(folder.path().join(format!("{saved_at}-{ranks}-{name}"))),
                ..with_output(ranks, name)
            };
            let resumed = open(&raw);
            assert_eq!(kept(resumed.trainer().run()), saved, "{ranks} ranks, stage {name}");
            drop(resumed);
            let raw = RawConfig {
                output_dir: Some(folder.path().join(format!("{saved_at}-{ranks}-{name}-again"))),
                ..raw
            };
            assert_eq!(train(&raw).losses.len() as u64, STEPS - 3);
        }
    }
}

#[test]
fn a_run_whose_step_is_not_finite_is_saved_with_the_moments_of_all_ranks() {
    let folder = folder();
    let raw = RawConfig {
        output_dir: Some(folder.path().join("lost")),
        report_to: Some(vec!["none".into()]),
        learning_rate: Some(3e38),
        warmup_steps: Some(4),
        ..stage("1", unlimited(folder.path(), 2))
    };
    let mut session = open(&raw);
    let fault = session.train::<TrainError>(&mut []).unwrap_err();
    assert!(matches!(fault, TrainError::NotFinite { .. }), "{fault}");
    let names = names(&folder.path().join("lost"));
    assert!(names.iter().any(|name| name.starts_with("last-finite-")), "{names:?}");
}

#[test]
fn an_optimizer_of_whole_matrices_trains_with_the_stage_that_divides_nothing() {
    let folder = folder();
    let apollo = RawConfig {
        optim: Some("apollo_adamw".into()),
        optim_args: Some("rank=8".into()),
        momentum: None,
        ..settings(folder.path(), 2)
    };
    let session = train(&apollo).session;
    let run = session.trainer().run();
    assert!(run.states().all(|(name, ty)| run.whole_type(name) == Some(ty)), "nothing is divided");
}

#[test]
fn two_runs_of_the_same_ranks_and_stage_agree_to_the_bit() {
    let folder = folder();
    for name in ["1", "2"] {
        let raw = || stage(name, RawConfig { bf16: Some(true), ..unlimited(folder.path(), 4) });
        let clipped = || RawConfig { max_grad_norm: Some(0.25), global_batch: Some(16), ..raw() };
        let [first, second] = [clipped(), clipped()].map(|raw| train(&raw));
        assert_eq!(bits(&first.losses), bits(&second.losses), "stage {name}");
        assert_eq!(bits(&first.norms), bits(&second.norms), "stage {name}");
        let [first, second] = [first, second].map(|of| kept(of.session.trainer().run()));
        assert_eq!(first, second, "stage {name}");
    }
}

#[test]
fn divisions_that_cannot_work_are_refused_with_a_way_out() {
    let folder = folder();
    let of = |change: fn(&mut RawConfig)| {
        refused(folder.path(), |raw| {
            raw.zero_stage = Some("1".into());
            change(raw);
        })
    };
    let muon = of(|raw| (raw.optim, raw.momentum) = (Some("muon".into()), None));
    assert!(muon.contains("updates whole matrices") && muon.contains("zero_stage 0"), "{muon}");
    let apollo = of(|raw| (raw.optim, raw.momentum) = (Some("apollo_adamw".into()), None));
    assert!(apollo.starts_with("optim apollo_adamw updates whole matrices"), "{apollo}");
}

#[test]
fn divided_gradients_train_as_one_rank_does_with_accumulation_ragged_rows_dropout_and_clipping() {
    let folder = folder();
    trains_as_one(|ranks| stage("2", settings(folder.path(), ranks)));
}

#[test]
fn divided_gradients_of_adapters_train_as_one_rank_does() {
    let folder = folder();
    trains_as_one(|ranks| {
        let raw = RawConfig {
            config: None,
            model: Some("tiny".into()),
            layers: Some(2),
            lora_r: Some(4),
            lora_dropout: Some(0.2),
            ..settings(folder.path(), ranks)
        };
        stage("2", raw)
    });
}

#[test]
fn divided_gradients_have_the_bits_of_divided_moments_with_one_micro_batch_a_step() {
    let folder = folder();
    for (ranks, weights) in [2, 4].into_iter().flat_map(|ranks| ["f32", "bf16"].map(|of| (ranks, of))) {
        // The norm is limited: both stages sum it alike.
        let raw = RawConfig {
            weights_dtype: Some(weights.into()),
            max_grad_norm: Some(0.25),
            global_batch: Some(4),
            micro_batch: Some(4 / ranks),
            ..unlimited(folder.path(), ranks)
        };
        let [moments, gradients] = ["1", "2"].map(|name| train(&stage(name, raw.clone())));
        assert_eq!(bits(&moments.losses), bits(&gradients.losses), "{ranks} ranks");
        assert_eq!(bits(&moments.norms), bits(&gradients.norms), "{ranks} ranks");
        assert_eq!(parameters(&moments), parameters(&gradients), "{ranks} ranks");
    }
}

#[test]
fn a_rank_keeps_its_part_of_the_gradients_and_sends_as_much_as_planned_in_every_micro_batch() {
    let folder = folder();
    for ranks in [2, 4] {
        let raw =
            |name: &str| RawConfig { global_batch: Some(4), ..stage(name, unlimited(folder.path(), ranks)) };
        let whole = train(&raw("1")).session;
        let divided = train(&raw("2")).session;
        let [all, part] = [&whole, &divided].map(|of| planned_bytes(of, Purpose::Gradients));
        let tensors = divided.trainer().run().parameters(false).count() as u64;
        let least = all / ranks as u64;
        assert!((least..=least + tensors * 255 * 4).contains(&part), "{ranks} ranks: {part} of {all}");
        let choice = &divided.summary().planned.choice;
        let sent = traffic(choice).unwrap().wire_bytes;
        assert_eq!(divided.trainer().run().sent_bytes(), STEPS * sent);
        assert_eq!(choice.accumulation, 4 / ranks);
        if choice.accumulation == 1 {
            assert_eq!(sent, traffic(&whole.summary().planned.choice).unwrap().wire_bytes);
        }
    }
}

#[test]
fn ranks_probe_as_one_does_and_exchange_two_numbers_for_each_direction() {
    let folder = folder();
    let probing = |optim: &str, ranks: usize| RawConfig {
        optim: Some(optim.into()),
        momentum: None,
        max_grad_norm: None,
        learning_rate: Some(1e-4),
        zo_directions: (optim == "mezo").then_some(3),
        population: (optim == "es").then_some(6),
        ..settings(folder.path(), ranks)
    };
    for optim in ["mezo", "es"] {
        let one = train(&probing(optim, 1));
        for ranks in [2, 4] {
            let several = train(&probing(optim, ranks));
            for (loss, expected) in several.losses.iter().zip(&one.losses) {
                assert!(
                    (loss - expected).abs() <= 1e-4 * expected,
                    "{optim}, {ranks} ranks: {loss} {expected}"
                );
            }
            let again = train(&probing(optim, ranks));
            assert_eq!(bits(&several.losses), bits(&again.losses));
            let share = 6usize.div_ceil(ranks);
            let sent = several.session.trainer().run().sent_bytes();
            assert_eq!(sent, STEPS * (2 * (ranks - 1) * share * 4) as u64, "{optim}");
        }
    }
}
