//! Rank 0 leads: it says when a step begins, and the others follow.
//!
//! ```text
//! rank 0    state ─▶ all     "step 1" ─▶ all     its part of the step     evaluates, saves, …     "step 2" ─▶ all   …   "end"
//! others    receive          receive              their parts              wait for a word         receive             leave
//! ```
//!
//! The others never evaluate, never write a file, and know nothing of signals. They wait for the next word without a limit,
//! as long as rank 0 lives. A word carries the step and the place in the data, so that ranks that drifted apart are told.

use plimsoll_exec::{Communicator, ExecError};
use plimsoll_graph::StateKind;

use super::Trainer;
use crate::error::TrainError;

/// Bytes of state that are sent at a time.
const PIECE: usize = 256 << 10;
/// Numbers of a word: what to do, the step so far, the groups of data so far.
const NUMBERS: usize = 3;

const STEP: u64 = 1;
const END: u64 = 2;
const STATE: u64 = 3;

impl Trainer {
    /// Tells the other ranks that a step begins; does nothing for a run alone, and for a rank that follows.
    pub(super) fn lead(&self) -> Result<(), TrainError> {
        self.tell(STEP)
    }

    fn tell(&self, what: u64) -> Result<(), TrainError> {
        match self.run.communicator() {
            Some(world) if world.rank() == 0 => {
                Ok(world.broadcast(&mut word([what, self.run.steps(), self.batches.position()]))?)
            }
            _ => Ok(()),
        }
    }

    /// What rank 0 says next, with its step and its place in the data.
    fn hear(&self) -> Result<[u64; NUMBERS], TrainError> {
        let mut bytes = word([END, 0, 0]);
        if let Some(world) = self.run.communicator() {
            world.broadcast(&mut bytes)?;
        }
        let number = |at: usize| bytes[8 * at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Ok([0, 1, 2].map(number))
    }

    /// Gives all ranks the weights, the moments and the step of rank 0, which has read or restored them. Gradients of an
    /// earlier step mean nothing and stay where they are.
    ///
    /// # Errors
    ///
    /// When a rank fails.
    pub(crate) fn share_state(&mut self) -> Result<(), TrainError> {
        if self.run.ranks() == 1 {
            return Ok(());
        }
        if self.run.rank() == 0 {
            self.tell(STATE)?;
        } else {
            let [what, steps, position] = self.hear()?;
            if what != STATE {
                return Err(TrainError::Config("rank 0 ended before its first step".into()));
            }
            self.run.continue_after(steps);
            self.batches.go_to(position);
            self.taken = position;
        }
        let lasting = self.run.states_of(StateKind::outlives_a_step);
        let states: Vec<(String, usize)> = lasting.map(|(name, ty)| (name.to_owned(), ty.bytes())).collect();
        let mut piece = vec![0; PIECE];
        for (name, bytes) in states {
            for first in (0..bytes).step_by(PIECE) {
                let piece = &mut piece[..PIECE.min(bytes - first)];
                self.run.engine().read_state_bytes(&name, first as u64, piece)?;
                if let Some(world) = self.run.communicator() {
                    world.broadcast(piece)?;
                }
                self.run.engine_mut().write_state_bytes(&name, first as u64, piece)?;
            }
        }
        Ok(())
    }

    /// Takes the steps that rank 0 tells of, until it tells of the end.
    ///
    /// # Errors
    ///
    /// When a step fails, rank 0 ends, or this rank is at another step than rank 0.
    pub(crate) fn follow(&mut self) -> Result<(), TrainError> {
        loop {
            let [what, steps, position] = self.hear()?;
            if what == END {
                return Ok(());
            }
            let own = (self.run.steps(), self.batches.position());
            if own != (steps, position) {
                return Err(TrainError::Config(format!(
                    "rank {} has taken {} steps and {} groups of data, and rank 0 {steps} and {position}",
                    self.run.rank(),
                    own.0,
                    own.1
                )));
            }
            self.step()?;
        }
    }
}

/// Tells the other ranks that there are no more steps.
///
/// # Errors
///
/// When the world has ended already.
pub(crate) fn dismiss(world: &dyn Communicator) -> Result<(), ExecError> {
    world.broadcast(&mut word([END, 0, 0]))
}

fn word(numbers: [u64; NUMBERS]) -> [u8; 8 * NUMBERS] {
    let mut bytes = [0; 8 * NUMBERS];
    for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}
