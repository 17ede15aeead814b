//! Rank 0 leads: it says when a step begins, and the others follow.
//!
//! ```text
//! rank 0    state ─▶ all     "step 1" ─▶ all     its part of the step     evaluates, saves, …     "step 2" ─▶ all   …   "end"
//! others    receive          receive              their parts              wait for a word         receive             leave
//! ```
//!
//! The others never write a file, and know nothing of signals. They wait for the next word without a limit, as long as rank 0
//! lives. A word carries the step and the place in the data, so that ranks that drifted apart are told. While rank 0 saves, its
//! words ask for pieces of the state that ranks divide among them; at the end, for what each rank held and how long it was busy.
//! Where they divide weights, no rank evaluates alone: at a word all run the schedule, and only the rows of rank 0 count.

use plimsoll_exec::{Communicator, ExecError};
use plimsoll_graph::StateKind;

use super::Trainer;
use super::records::RankRecord;
use crate::error::TrainError;
use crate::run::{WORD_BYTES, Word};

/// Numbers that each rank tells of itself at the end, of eight bytes each.
const FIGURES: usize = 3;
/// Bytes of state that are sent at a time.
const PIECE: usize = 256 << 10;

impl Trainer {
    /// Tells the other ranks that a step begins; does nothing for a run alone, and for a rank that follows.
    pub(super) fn lead(&self) -> Result<(), TrainError> {
        self.tell(Word::Step { steps: self.run.steps(), position: self.batches.position() })
    }

    fn tell(&self, word: Word) -> Result<(), TrainError> {
        match self.run.communicator() {
            Some(world) if world.rank() == 0 => Ok(world.broadcast(&mut word.to_bytes())?),
            _ => Ok(()),
        }
    }

    /// Gives all ranks the weights, the moments and the step of rank 0, which has read or restored them. Gradients of an
    /// earlier step mean nothing and stay where they are. State that is divided is the business of each rank.
    ///
    /// # Errors
    ///
    /// When a rank fails.
    pub(crate) fn share_state(&mut self) -> Result<(), TrainError> {
        if self.run.ranks() == 1 {
            return Ok(());
        }
        if self.run.rank() == 0 {
            self.tell(Word::State { steps: self.run.steps(), position: self.batches.position() })?;
        } else {
            let Some(Word::State { steps, position }) = self.run.communicator().map(hear).transpose()? else {
                return Err(TrainError::Config("rank 0 ended before its first step".into()));
            };
            self.run.continue_after(steps);
            self.batches.go_to(position);
            self.taken = position;
        }
        let lasting = self.run.states_of(StateKind::outlives_a_step);
        let lasting = lasting.filter(|(name, _)| self.run.shard_of(name).is_none());
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

    /// Peak memory and compute time of each rank; empty for a run without ranks. Rank 0 asks, and the others must be waiting
    /// for its words.
    pub(super) fn rank_records(&self) -> Result<Vec<RankRecord>, TrainError> {
        self.tell(Word::Figures)?;
        self.share_figures()
    }

    fn share_figures(&self) -> Result<Vec<RankRecord>, TrainError> {
        let Some(world) = self.run.communicator() else { return Ok(Vec::new()) };
        let figures: [u64; FIGURES] =
            [self.run.engine().measured_peak().0, self.run.own_bytes()?, self.busy.as_nanos() as u64];
        let mut all = vec![0; world.ranks() * size_of_val(&figures)];
        world.gather(&figures.map(u64::to_le_bytes).concat(), &mut all)?;
        let mut numbers = all.as_chunks().0.iter().copied().map(u64::from_le_bytes);
        let record = |rank| {
            let [peak_bytes, process_bytes, nanoseconds] =
                std::array::from_fn(|_| numbers.next().unwrap_or_default());
            RankRecord { rank, peak_bytes, process_bytes, busy_seconds: nanoseconds as f64 / 1e9 }
        };
        Ok((0..world.ranks()).map(record).collect())
    }

    /// Takes the steps that rank 0 tells of, and gives it the state it asks for, until it tells of the end.
    ///
    /// # Errors
    ///
    /// When a step fails, rank 0 ends, or this rank is at another step than rank 0.
    pub(crate) fn follow(&mut self) -> Result<(), TrainError> {
        let mut room = Vec::new();
        while let Some(world) = self.run.communicator() {
            match hear(world)? {
                Word::End => return Ok(()),
                Word::Piece { state, first, count } => {
                    room.resize(count as usize, 0);
                    self.run.give(world, [state, first], &mut room)?;
                }
                Word::Figures => drop(self.share_figures()?),
                Word::Pass { role } => self.run.come_along(role)?,
                Word::State { .. } => {
                    return Err(TrainError::Config("rank 0 sent its state a second time".into()));
                }
                Word::Step { steps, position } => {
                    self.stands_at(steps, position)?;
                    match self.step() {
                        // Every rank sees these numbers, and rank 0 may save the state before the step.
                        Ok(_) | Err(TrainError::NotFinite { .. }) => {}
                        Err(fault) => return Err(fault),
                    }
                }
            }
        }
        Ok(())
    }

    /// Refuses to step from another place than rank 0.
    fn stands_at(&self, steps: u64, position: u64) -> Result<(), TrainError> {
        let own = (self.run.steps(), self.batches.position());
        if own == (steps, position) {
            return Ok(());
        }
        Err(TrainError::Config(format!(
            "rank {} has taken {} steps and {} groups of data, and rank 0 {steps} and {position}",
            self.run.rank(),
            own.0,
            own.1
        )))
    }
}

/// The next word of rank 0.
fn hear(world: &dyn Communicator) -> Result<Word, TrainError> {
    let mut bytes = [0; WORD_BYTES];
    world.broadcast(&mut bytes)?;
    Ok(Word::from_bytes(bytes))
}

/// Tells the other ranks that there are no more steps.
///
/// # Errors
///
/// When the world has ended already.
pub(crate) fn dismiss(world: &dyn Communicator) -> Result<(), ExecError> {
    world.broadcast(&mut Word::End.to_bytes())
}
