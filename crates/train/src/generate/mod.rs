//! Writing text: the model forward, one token at a time.
//!
//! A generator holds only weights and the activations of one forward pass, in an arena of its own that is planned
//! inside a budget like any other. The whole text is read again for every token, which is simple and slow: keys and
//! values of earlier tokens are not kept.

mod generation_config;
mod sampling;

use plimsoll_exec::{Data, Device, Engine, MemoryPool};
use plimsoll_graph::{DType, Graph, StateKind, Type, quantise};
use plimsoll_plan::{ArenaBytes, Costed, ProcessBytes, Program, Role, Scratch, SearchError, Strategy, plan};

use crate::error::TrainError;
use crate::files::QuantisedBase;
use crate::memory::{self, Budget};
use crate::pretrained::{AdapterFolder, Pretrained, prepare_adapters};
use crate::run::held;
pub use generation_config::GenerationConfig;
pub use sampling::Sampling;

/// A model that writes.
#[derive(Debug)]
pub struct Generator {
    engine: Engine,
    tokens: Vec<i32>,
    logits: Vec<f32>,
    end: Vec<i32>,
}

impl Generator {
    /// Plans the forward pass for texts of up to `length` tokens inside `budget`, a budget of the memory in which
    /// `device` computes, and reads the weights.
    ///
    /// # Errors
    ///
    /// When the text is longer than the model can read, or does not fit.
    pub fn open(
        model: &Pretrained,
        adapter: Option<&AdapterFolder>,
        length: usize,
        budget: &Budget,
        device: Box<dyn Device>,
    ) -> Result<Generator, TrainError> {
        let vectors = adapter.map_or(0, |adapter| adapter.config.lora.added_positions());
        let graph = model.configuration.architecture.generation(length + vectors)?;
        let saves = |name: &str| adapter.is_some_and(|adapter| adapter.config.lora.saves(name));
        let base = model.quantised_base(model.quantise, &graph, Vec::new(), saves)?;
        let graph = match adapter {
            Some(adapter) => adapter.config.lora.without_dropout().adapt(&graph)?,
            None => graph,
        };
        let graph = match &base {
            Some(base) => quantise(graph, &base.weights(), base.form, DType::F32)?,
            None => graph,
        };
        let loading = base.as_ref().map_or(0, QuantisedBase::loading_bytes);
        let budget = &Budget { outside: budget.outside + loading, ..*budget };
        let stated = GenerationConfig::read(&model.folder)?.map(|stated| stated.eos).unwrap_or_default();
        let end = if stated.is_empty() { model.configuration.eos.clone() } else { stated };
        let mut engine = forward_engine(device, graph.clone(), budget)?;
        let parameters = parameters(&graph);
        let parameters = || parameters.iter().map(|(name, ty)| (name.as_str(), *ty));
        model.load_quantised(&mut engine, parameters(), base.as_ref())?;
        if let Some(adapter) = adapter {
            adapter.load(&mut engine, parameters())?;
            let training = adapter.configuration.architecture.training(1, 1)?;
            prepare_adapters(&mut engine, &adapter.config.lora, &training, base.as_ref(), false)?;
        }
        Ok(Generator {
            engine,
            tokens: vec![0; length],
            logits: vec![0.0; model.configuration.architecture.vocab()],
            end: end.into_iter().map(|id| id as i32).collect(),
        })
    }

    /// Continues `prompt` until the text is full, `count` tokens are written, or the model ends it; `each` gets every
    /// token and may stop by returning false.
    ///
    /// # Errors
    ///
    /// When the prompt is empty or longer than planned for, or the model computes NaN.
    pub fn write(
        &mut self,
        prompt: &[i32],
        count: usize,
        sampling: &Sampling,
        mut each: impl FnMut(i32) -> bool,
    ) -> Result<(), TrainError> {
        let length = self.tokens.len();
        if prompt.is_empty() || prompt.len() > length {
            let given = prompt.len();
            return Err(TrainError::Config(format!(
                "the prompt has {given} tokens; it may have 1 to {length}"
            )));
        }
        self.tokens[..prompt.len()].copy_from_slice(prompt);
        // Positions after the text are not read: each position sees only those before it.
        for position in (prompt.len()..length).take(count) {
            let last = [position as i32 - 1];
            let inputs = [("tokens", Data::I32(&self.tokens)), ("position", Data::I32(&last))];
            self.engine.run(Role::First, &inputs)?;
            self.engine.output(Role::First, "logits", &mut self.logits)?;
            if !self.logits.iter().all(|logit| logit.is_finite()) {
                return Err(TrainError::Config(
                    "the model's logits are not finite, so its weights or the adapter's are broken; take an earlier \
                     checkpoint"
                        .into(),
                ));
            }
            let id = sampling.draw(&self.logits, position);
            if self.end.contains(&id) {
                break;
            }
            self.tokens[position] = id;
            if !each(id) {
                break;
            }
        }
        Ok(())
    }

    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> ArenaBytes {
        self.engine.arena_bytes()
    }

    /// Bytes held of the memory that the budget counts: the most that the process ever held, or its share of a card.
    ///
    /// # Errors
    ///
    /// When that memory cannot be read.
    pub fn held(&self) -> Result<u64, TrainError> {
        held(self.engine.device())
    }
}

/// An engine that runs a forward graph and nothing else. A budget that is too small, or that reading the model's files has
/// crossed already, is refused with one that is enough.
fn forward_engine(device: Box<dyn Device>, graph: Graph, budget: &Budget) -> Result<Engine, TrainError> {
    let facts = device.facts(&graph);
    let program = Program { train: Costed { graph, facts }, evaluate: None, generate: None };
    let planned = |scratch| {
        plan(&program, Strategy::None, scratch)
            .map_err(|error| TrainError::search(SearchError::Plan(error), budget))
    };
    let (peak, rounding) = match device.pool()? {
        MemoryPool::Process => (memory::process()?.peak, Budget::rounding()?),
        MemoryPool::Own { taken, .. } => (taken, 0),
    };
    let mut plan = planned(Scratch::Best)?;
    if plan.arena_bytes > budget.arena() {
        plan = planned(Scratch::Least)?;
    }
    if !budget.holds(plan.arena_bytes, ProcessBytes(peak), rounding) {
        let least = budget.least_for(plan.arena_bytes, ProcessBytes(peak)).0 >> 20;
        return Err(TrainError::Config(format!(
            "generating takes up to {least} MiB and the budget is {}; state --memory {least}MiB, which is surely enough \
             (some MiB less may do), or fewer tokens",
            budget.described()
        )));
    }
    let mut engine = Engine::prepare(device, &program, &plan)?;
    if let Some(outside) = engine.outside()? {
        budget.with_card_outside(outside, plan.arena_bytes)?;
    }
    engine.start(&program, 0)?;
    Ok(engine)
}

/// Names and types of a graph's parameters.
fn parameters(graph: &Graph) -> Vec<(String, Type)> {
    let states = graph.states().iter().filter(|state| matches!(state.kind, StateKind::Parameter { .. }));
    states.map(|state| (state.name.clone(), state.ty)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 2.0, 1.0, -1.0];

    fn drawn(sampling: Sampling) -> Vec<usize> {
        let mut counts = vec![0; LOGITS.len()];
        for position in 0..20_000 {
            counts[sampling.draw(&LOGITS, position) as usize] += 1;
        }
        counts
    }

    #[test]
    fn draws_follow_the_probabilities_of_the_temperature() {
        for temperature in [0.5, 1.0, 2.0] {
            let weights: Vec<f64> =
                LOGITS.iter().map(|&l| (f64::from(l) / f64::from(temperature)).exp()).collect();
            let whole: f64 = weights.iter().sum();
            let counts = drawn(Sampling { temperature, ..Sampling::default() });
            for (count, weight) in counts.iter().zip(weights) {
                assert!(
                    (*count as f64 / 20_000.0 - weight / whole).abs() < 0.01,
                    "{temperature}: {counts:?}"
                );
            }
        }
    }

    #[test]
    fn only_the_likeliest_are_drawn_where_that_is_asked() {
        assert_eq!(drawn(Sampling { temperature: 0.0, ..Sampling::default() }), [0, 20_000, 0, 0]);
        let two = drawn(Sampling { top_k: Some(2), ..Sampling::default() });
        assert!(two[0] == 0 && two[3] == 0 && two[2] > 4000, "{two:?}");
        // The two likeliest ids have 0.64 and 0.24 of the whole, which reaches 0.8.
        let most = drawn(Sampling { top_p: 0.8, ..Sampling::default() });
        assert!(most[0] == 0 && most[3] == 0 && most[2] > 4000, "{most:?}");
    }
}
