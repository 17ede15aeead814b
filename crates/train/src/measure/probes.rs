//! The machine measured in about a second: small models are trained on it for a few steps, every op timed.
//!
//! Together the models have every kind of op that training a language model takes, forward and backward, whole and in
//! tiles, with the thin products of adapters; and their products have two sizes. Estimates for the ops of any other
//! model follow from these ([`Timings`]). The device states the sizes of the models ([`Probing`]).
//!
//! The work has a bound: the number of steps is fixed, and on a slow machine the larger models get fewer tokens. The memory
//! has a bound too: a model that does not fit is left out.

use std::time::Duration;

use plimsoll_exec::{ProbeSize, Probing, Timings};
use plimsoll_graph::Graph;
use plimsoll_model::{Architecture, Gpt2, Llama, Lora, Rope};
use plimsoll_plan::{ArenaBytes, Build, Scratch, SearchError, Strategy, plan};

use super::matmul_flops;
use super::timed_steps::{Rank, Steps, TimedModel};
use crate::config::LanguageModel;
use crate::error::TrainError;
use crate::memory::{self, Budget};
use crate::optimizer::{Optimizer, OptimizerKind, Update};
use crate::planning::{Model as _, Options, Programs};

/// Steps of each model. All are timed: taking a low rank among the times excludes the slow first one.
const STEPS: Steps = Steps { untimed: 0, timed: 3, long_enough: Duration::from_millis(300) };
/// The most that one step of a model should take.
const STEP_SECONDS: f64 = 0.3;
/// Rank of the adapters.
const RANK: usize = 8;
/// The most memory that is taken for a model.
const MOST_ROOM: u64 = 192 << 20;
/// The fewest tokens of a sequence that still say something.
const LEAST_TOKENS: usize = 32;

/// Times of small models on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Probed {
    /// Times of the models' ops.
    pub timings: Timings,
    /// Sizes of models that fitted.
    pub sizes: usize,
}

/// Bytes that measuring may take: half of what a stated budget leaves, or a quarter of the free memory.
///
/// # Errors
///
/// When the memory of the machine cannot be read.
pub fn probe_room(stated: Option<u64>) -> Result<u64, TrainError> {
    let room = match stated {
        Some(total) => total.saturating_sub(memory::process()?.resident) / 2,
        None => memory::available()? / 4,
    };
    Ok(room.min(MOST_ROOM))
}

/// Measures the device that `options` name in `room` bytes.
///
/// # Errors
///
/// When its threads or its memory cannot be had.
pub fn measure_device(options: &Options, probing: &Probing, room: u64) -> Result<Probed, TrainError> {
    let mut probed = Probed { timings: Timings::default(), sizes: 0 };
    // Operations per second of the fastest model so far; larger ones are hardly slower.
    let mut rate = None;
    for (index, &size) in probing.sizes.iter().enumerate() {
        let mut fitted = true;
        for probe in probes(size, index == 0, options) {
            match probe.measure(room, rate)? {
                Some(measured) => {
                    probed.timings.update(measured.timings);
                    rate = Some(measured.rate.max(rate.unwrap_or(0.0)));
                }
                None => fitted = false,
            }
        }
        if !fitted {
            break;
        }
        probed.sizes += 1;
    }
    Ok(probed)
}

/// One model to measure with.
struct Probe {
    model: LanguageModel,
    options: Options,
    rows: usize,
    /// Whether feed-forward networks run in tiles.
    tiled: bool,
}

/// Times of one model.
struct MeasuredProbe {
    timings: Timings,
    /// Operations of products per second of a step.
    rate: f64,
}

impl Probe {
    /// Times the model, if it fits into `room` bytes. Where a step would take too long at `rate`, it gets fewer tokens.
    fn measure(mut self, room: u64, rate: Option<f64>) -> Result<Option<MeasuredProbe>, TrainError> {
        let affordable = rate.map_or(f64::INFINITY, |rate| STEP_SECONDS * rate);
        while self.flops()? > affordable && self.model.seq_len > LEAST_TOKENS {
            self.model.seq_len /= 2;
        }
        let Probe { model, options, rows, tiled } = &self;
        let device = options.plain_device()?;
        let facts = |graph: &Graph| device.facts(graph);
        let mut programs = Programs { model, facts, options };
        let program = if *tiled { programs.tiled(*rows)? } else { Some(programs.whole(*rows)?) };
        let Some(program) = program else { return Ok(None) };
        let failed = |error| TrainError::Plan(SearchError::Plan(error));
        let plan = plan(&program, Strategy::None, Scratch::Best).map_err(failed)?;
        if plan.arena_bytes > ArenaBytes(room) {
            return Ok(None);
        }
        let budget = Budget::resolve(options.memory)?;
        let timed = TimedModel { model, options, rows: *rows, accumulation: 1 };
        // A network in tiles repeats ops that were timed before, except for the single op that it becomes.
        let steps = if *tiled { Steps { timed: 1, untimed: 0, ..STEPS } } else { STEPS };
        let steps = timed.steps(program, plan, budget, &steps)?;
        let rate = self.flops()? / steps.seconds.max(1e-9);
        Ok(Some(MeasuredProbe { timings: steps.times(Rank::LowerQuartile)?, rate }))
    }

    /// Operations of the products of a step: backward twice as much as forward.
    fn flops(&self) -> Result<f64, TrainError> {
        Ok(3.0 * matmul_flops(&self.model.training(self.rows)?))
    }
}

/// The models of one size. Only the smallest of all come with every kind of optimizer.
fn probes(size: ProbeSize, smallest: bool, options: &Options) -> Vec<Probe> {
    let &Options { precision, storage, device, threads, instructions, memory, .. } = options;
    let gpu = options.gpu.clone();
    let plain =
        Options { memory, precision, storage, device, gpu, threads, instructions, ..Options::default() };
    let with = |kind| Options {
        optimizer: Optimizer { kind, max_grad_norm: Some(1.0), ..Optimizer::default() },
        global_batch: size.rows,
        update: Update::Separate,
        ..plain.clone()
    };
    let probe = |model: Architecture, lora: Option<Lora>, kind, tiled| Probe {
        model: LanguageModel { architecture: model, seq_len: size.seq_len, generate: false, lora },
        options: with(kind),
        rows: size.rows,
        tiled,
    };
    let sgd = OptimizerKind::Sgd;
    let adapters = Lora { rank: RANK, ..Lora::default() };
    let mut all = vec![
        probe(llama(size), None, OptimizerKind::AdamW, false),
        probe(gpt2(size), Some(adapters.clone()), sgd, false),
    ];
    all.push(probe(llama(size), None, sgd, true));
    if smallest {
        all.push(probe(gpt2(size), None, OptimizerKind::AdamW, false));
        all.push(probe(gpt2(size), None, OptimizerKind::AdamW8bit, true));
        all.push(probe(llama(size), Some(adapters), OptimizerKind::AdamW, false));
    }
    all
}

/// A Llama of one layer.
fn llama(ProbeSize { width, vocab, .. }: ProbeSize) -> Architecture {
    let heads = (width / 64).max(4);
    Architecture::Llama(Llama {
        vocab,
        width,
        layers: 1,
        heads,
        key_heads: heads / 2,
        head_width: None,
        ffn: width * 8 / 3 / 8 * 8,
        norm_epsilon: 1e-6,
        rope: Rope::plain(10_000.0),
        window: None,
        positions: None,
        tie_embeddings: false,
        qkv_bias: false,
        qk_norm: false,
        whole_qk_norm: false,
        mixture: None,
        documents: false,
    })
}

/// A GPT-2 of one layer.
fn gpt2(ProbeSize { width, vocab, seq_len, .. }: ProbeSize) -> Architecture {
    let (heads, positions) = ((width / 64).max(4), seq_len);
    Architecture::Gpt2(Gpt2 {
        vocab,
        positions,
        width,
        layers: 1,
        heads,
        norm_epsilon: 1e-5,
        dropout: 0.1,
        documents: false,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use plimsoll_model::Preset;

    use super::*;

    /// Names of the ops of a program, for the precision that it has.
    fn kinds(probe: &Probe) -> BTreeSet<String> {
        let Probe { model, options, rows, tiled } = probe;
        let device = options.plain_device().unwrap();
        let mut programs = Programs { model, facts: |graph: &Graph| device.facts(graph), options };
        let program = if *tiled { programs.tiled(*rows).unwrap() } else { programs.whole(*rows).ok() };
        let graph = program.map(|program| program.train.graph);
        let nodes = graph.iter().flat_map(Graph::nodes);
        nodes.filter(|node| !node.op.is_view()).map(|node| node.op.name().to_owned()).collect()
    }

    #[test]
    fn every_kind_of_op_that_the_presets_train_with_is_measured() {
        let size = ProbeSize { width: 64, vocab: 64, seq_len: 32, rows: 1 };
        let options = Options { threads: 1, ..Options::default() };
        let measured: BTreeSet<String> = probes(size, true, &options).iter().flat_map(kinds).collect();
        for name in ["tiny", "gpt2", "bert-base", "qwen3-0.6b"] {
            for (lora, tiled) in [(None, false), (None, true), (Some(Lora::default()), false)] {
                let model = Preset::from_name(name).unwrap().model.with_layers(1);
                let model = LanguageModel { architecture: model, seq_len: 32, generate: false, lora };
                let probe = Probe { model, options: options.clone(), rows: 1, tiled };
                let missing: Vec<String> = kinds(&probe).difference(&measured).cloned().collect();
                assert!(missing.is_empty(), "{name}, tiled {tiled}: {missing:?}");
            }
        }
    }

    #[test]
    fn a_model_that_does_not_fit_is_left_out_and_a_slow_machine_gets_fewer_tokens() {
        let options = Options { threads: 1, ..Options::default() };
        let small = ProbeSize { width: 64, vocab: 64, seq_len: 64, rows: 1 };
        let probing =
            Probing { kernels: "any".into(), sizes: vec![small, ProbeSize { width: 128, ..small }] };
        let room = 3 << 20;
        let all = measure_device(&options, &probing, 64 << 20).unwrap();
        let some = measure_device(&options, &probing, room).unwrap();
        assert_eq!(
            (all.sizes, some.sizes),
            (2, 1),
            "{} of {}",
            some.timings.iter().count(),
            all.timings.iter().count()
        );
        assert_eq!(measure_device(&options, &probing, 1 << 10).unwrap().timings, Timings::default());
        let probe = || probes(small, true, &options).remove(0);
        let tokens = |rate: Option<f64>| {
            let timings = probe().measure(64 << 20, rate).unwrap().unwrap().timings;
            timings.iter().any(|(signature, _)| signature.contains("[1,64,64]"))
        };
        assert!(tokens(None) && tokens(Some(1e18)) && !tokens(Some(1.0)), "the work has a bound");
    }
}
