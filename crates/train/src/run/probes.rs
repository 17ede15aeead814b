//! The probes of a step without gradients: which they are, and their losses.
//!
//! ```text
//! for each micro-batch:  for each direction:  the loss at w + size·z, the loss at w − size·z
//! then one update from the sums of these losses over the micro-batches
//! ```

use plimsoll_exec::Data;
use plimsoll_graph::op::Estimate;
use plimsoll_graph::{ErrorsOf, Op};
use plimsoll_plan::{Program, Role};

use super::Run;
use crate::error::TrainError;

impl Run {
    /// Moves all further probes to `factor` times their planned distance from the weights.
    ///
    /// # Errors
    ///
    /// When the run has no probes, or takes slopes, which are divided by the planned distance.
    pub fn scale_probes(&mut self, factor: f32) -> Result<(), TrainError> {
        match &mut self.probes {
            Some(probes) if probes.estimate.ranked => probes.factor = factor,
            _ => {
                return Err(TrainError::Config(
                    "only the probes of `--optim es` change their distance".into(),
                ));
            }
        }
        Ok(())
    }

    /// Answers of a micro-batch: runs of targets of one sequence that are not ignored.
    fn count_answers(&self, inputs: &[(&str, Data)]) -> u64 {
        let counted = self.targets.iter().filter_map(|(name, ignored)| {
            let (_, Data::I32(ids)) = inputs.iter().find(|(given, _)| given == name)? else { return None };
            let length = self.engine.input(Role::First, name)?.shape.columns();
            let begins = |(at, id): (usize, &i32)| {
                id != ignored && (at.is_multiple_of(length) || ids[at - 1] == *ignored)
            };
            Some(ids.iter().enumerate().filter(|&one| begins(one)).count() as u64)
        });
        counted.sum()
    }

    /// Adds the answers of a micro-batch to those of the step, where the graph counts them.
    pub(crate) fn add_answers(&mut self, inputs: &[(&str, Data)]) {
        let counts = |probes: &Probes| probes.errors == Some(ErrorsOf::Answers);
        if self.probes.as_ref().is_some_and(counts) {
            let answers = self.count_answers(inputs);
            self.probes.iter_mut().for_each(|probes| probes.answers += answers);
        }
    }

    /// The numbers from which a step draws: seed, step, and the number of the direction or of the first row.
    pub(crate) fn drawn(&self, number: i32) -> [i32; 4] {
        [self.seed as i32, (self.seed >> 32) as i32, self.steps as i32, number]
    }
}

/// Probes of a run, and the losses of the step under way.
#[derive(Debug)]
pub(crate) struct Probes {
    estimate: Estimate,
    /// The part of the planned distance that is taken.
    factor: f32,
    /// The errors that the graph counts in place of a loss, if it does.
    errors: Option<ErrorsOf>,
    /// Answers of the step under way, where they are counted; at its end those of all ranks.
    pub(crate) answers: u64,
    /// Sums over the micro-batches, two for each direction: in it and against it.
    pub(crate) losses: Vec<f32>,
    /// The sums over all ranks.
    all: Vec<f32>,
    /// Room for the factor of each direction.
    factors: Vec<f32>,
}

impl Probes {
    /// The probes of a program, if it has any.
    pub(super) fn of(program: &Program) -> Option<Probes> {
        let mut estimates = program.train.graph.nodes().iter().filter_map(|node| match node.op {
            Op::ProbeStep(step) => Some(step.estimate),
            _ => None,
        });
        let count = program.probes();
        estimates.next().map(|estimate| Probes {
            estimate,
            factor: 1.0,
            errors: errors(program),
            answers: 0,
            losses: vec![0.0; count],
            all: vec![0.0; count],
            factors: vec![0.0; count / 2],
        })
    }

    /// Forgets the last step.
    pub(crate) fn begin(&mut self) {
        self.losses.fill(0.0);
        self.answers = 0;
    }

    /// The number by which the graph multiplies its loss. Counts stay whole, so that no order of sums changes a bit.
    pub(crate) fn scale(&self, of_loss: f32) -> f32 {
        if self.errors.is_some() { 1.0 } else { of_loss }
    }

    /// The factor that turns a count of wrong targets into a share of all targets. It is 1 for a loss, which is scaled already, and
    /// for answers, whose number is known only at the end of the step.
    pub(crate) fn share(&self, of_loss: f32) -> f32 {
        if self.errors == Some(ErrorsOf::Tokens) { of_loss } else { 1.0 }
    }

    /// The number that the loss of a whole step is divided by.
    pub(crate) fn divisor(&self) -> f64 {
        if self.errors == Some(ErrorsOf::Answers) { self.answers.max(1) as f64 } else { 1.0 }
    }

    /// The number of probes.
    pub(crate) fn count(&self) -> usize {
        self.losses.len()
    }

    /// Direction and distance from the weights of a probe.
    pub(crate) fn place(&self, probe: usize) -> (i32, f32) {
        let size = self.factor * self.estimate.size;
        ((probe / 2) as i32, if probe.is_multiple_of(2) { size } else { -size })
    }

    /// Takes the sums of this rank, which is alone, as the sums of all ranks.
    pub(crate) fn are_all(&mut self) {
        self.all.copy_from_slice(&self.losses);
    }

    /// Takes the sums of one rank after the other, from rank 0 on, and adds them up as an exchange does.
    pub(crate) fn add_rank(&mut self, rank: usize, losses: impl Iterator<Item = f32>) {
        for (sum, loss) in self.all.iter_mut().zip(losses) {
            *sum = if rank == 0 { loss } else { *sum + loss };
        }
    }

    /// The root of the mean square of all directions' factors. For a single direction, it is the slope along it.
    /// `None` where losses that are not finite leave no step.
    pub(crate) fn slope(&mut self) -> Option<f32> {
        if !self.estimate.factors(&self.all, &mut self.factors) {
            return None;
        }
        // Each factor is its direction's share of the mean.
        let count = self.factors.len() as f64;
        let squares: f64 = self.factors.iter().map(|&factor| f64::from(factor).powi(2)).sum();
        Some((squares * count).sqrt() as f32)
    }
}

/// The errors that the graph counts in place of a loss, if it does.
fn errors(program: &Program) -> Option<ErrorsOf> {
    program.train.graph.nodes().iter().find_map(|node| match node.op {
        Op::HeadErrors { answers: Some(_), .. } => Some(ErrorsOf::Answers),
        Op::HeadErrors { answers: None, .. } => Some(ErrorsOf::Tokens),
        _ => None,
    })
}
