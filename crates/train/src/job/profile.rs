//! Where the time of a step goes: every action timed by the device, added up over equal ops.

use std::collections::BTreeMap;
use std::time::Instant;

use plimsoll_graph::{Work, work};
use plimsoll_plan::{Action, Role};

use super::session::Session;
use crate::error::TrainError;

/// One kind of op in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileLine {
    /// The op with the types of its operands.
    pub op: String,
    /// How often the op runs in a step.
    pub calls: usize,
    /// Seconds of all these calls together.
    pub seconds: f64,
    /// Floating-point operations of the products in these calls.
    pub matmul_flops: f64,
    /// Bytes that these calls read and write.
    pub bytes: f64,
}

/// The time of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Seconds of a step by the clock on the wall, with no action timed.
    pub step_seconds: f64,
    /// Seconds of a step that the plan predicted.
    pub predicted_seconds: f64,
    /// Kinds of ops, the slowest first.
    pub lines: Vec<ProfileLine>,
}

impl Session {
    /// Takes one step to warm up, `steps` steps timed as a whole, and as many with every action timed.
    ///
    /// # Errors
    ///
    /// The first fault of a step.
    pub fn profile(&mut self, steps: usize) -> Result<Profile, TrainError> {
        self.take(1)?;
        let begin = Instant::now();
        let whole = self.take(steps)?;
        let step_seconds = begin.elapsed().as_secs_f64() / whole;
        self.trainer_mut().run_mut().engine_mut().time_actions();
        let whole = self.take(steps)?;
        let predicted_seconds = self.summary().planned.choice.step_seconds();
        Ok(Profile { step_seconds, predicted_seconds, lines: self.lines(whole)? })
    }

    /// Takes steps; returns how many whole global batches they were. The last batch of an epoch may be smaller.
    fn take(&mut self, steps: usize) -> Result<f64, TrainError> {
        let config = self.config();
        let whole = (config.options.global_batch * config.model.seq_len) as f64;
        let mut tokens = 0;
        for _ in 0..steps {
            tokens += self.trainer_mut().step()?.tokens;
        }
        Ok(tokens as f64 / whole)
    }

    /// The lines of `steps` steps. Calls without a time of their own count as the mean of the others of their op. An op
    /// without any time is left out.
    fn lines(&self, steps: f64) -> Result<Vec<ProfileLine>, TrainError> {
        let choice = &self.summary().planned.choice;
        let (graph, engine) = (&choice.program.train.graph, self.trainer().run().engine());
        let mut ops: BTreeMap<String, Calls> = BTreeMap::new();
        for role in [Role::First, Role::Further, Role::Update] {
            let Some(schedule) = choice.plan.schedules.get(&role) else { continue };
            let runs = engine.timed_runs(role)? as f64 / steps;
            for (action, seconds) in schedule.actions.iter().zip(engine.action_seconds(role)?) {
                let Action::Run { node, .. } = action else { continue };
                let node = graph.node(*node);
                let calls = ops.entry(graph.signature(node)).or_insert_with(|| {
                    let work = work(&node.op, &graph.input_types(node), &graph.output_types(node));
                    Calls { per_step: 0.0, seconds: Vec::new(), work }
                });
                calls.per_step += runs;
                calls.seconds.extend(seconds);
            }
        }
        let timed = ops.into_iter().filter(|(_, calls)| !calls.seconds.is_empty());
        let mut lines: Vec<ProfileLine> = timed.map(|(op, calls)| calls.line(op)).collect();
        lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Ok(lines)
    }
}

/// The calls of one op.
struct Calls {
    per_step: f64,
    /// Seconds of those that have a time.
    seconds: Vec<f64>,
    work: Work,
}

impl Calls {
    fn line(self, op: String) -> ProfileLine {
        let mean = self.seconds.iter().sum::<f64>() / self.seconds.len() as f64;
        ProfileLine {
            op,
            calls: self.per_step.round() as usize,
            seconds: self.per_step * mean,
            matmul_flops: self.per_step * self.work.matmul_flops,
            bytes: self.per_step * self.work.bytes,
        }
    }
}
