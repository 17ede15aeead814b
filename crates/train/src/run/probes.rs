//! The probes of a step without gradients: which they are, and their losses.
//!
//! ```text
//! for each micro-batch:  for each direction:  the loss at w + size·z, the loss at w − size·z
//! then one update from the sums of these losses over the micro-batches
//! ```

use plimsoll_graph::Op;
use plimsoll_graph::op::Estimate;
use plimsoll_plan::Program;

use super::Run;

impl Run {
    /// The numbers from which a step draws: seed, step, and the number of the direction or of the first row.
    pub(crate) fn drawn(&self, number: i32) -> [i32; 4] {
        [self.seed as i32, (self.seed >> 32) as i32, self.steps as i32, number]
    }
}

/// Probes of a run, and the losses of the step under way.
#[derive(Debug)]
pub(crate) struct Probes {
    estimate: Estimate,
    /// Sums over the micro-batches, two for each direction: in it and against it.
    pub(crate) losses: Vec<f32>,
    /// The same over all ranks.
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
            losses: vec![0.0; count],
            all: vec![0.0; count],
            factors: vec![0.0; count / 2],
        })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.losses.len()
    }

    /// Direction and distance from the weights of a probe.
    pub(crate) fn place(&self, probe: usize) -> (i32, f32) {
        let size = self.estimate.size;
        ((probe / 2) as i32, if probe.is_multiple_of(2) { size } else { -size })
    }

    /// Takes the sums of this rank as the sums of all ranks: it is alone.
    pub(crate) fn are_all(&mut self) {
        self.all.copy_from_slice(&self.losses);
    }

    /// Takes the sums of one rank after the other, from rank 0 on, and adds them up as an exchange does.
    pub(crate) fn add_rank(&mut self, rank: usize, losses: impl Iterator<Item = f32>) {
        for (sum, loss) in self.all.iter_mut().zip(losses) {
            *sum = if rank == 0 { loss } else { *sum + loss };
        }
    }

    /// The root of the mean square of all directions' factors: for one direction the slope along it. `None` where losses that
    /// are not finite leave no step.
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
