//! State of which each rank keeps a shard, read as a whole and written in part.
//!
//! ```text
//! whole of 5 elements, shards of 2      rank 0: e₀ e₁      rank 1: e₂ e₃      rank 2: e₄ 0
//! ```
//!
//! Files hold whole tensors and know nothing of ranks. Rank 0 writes them: it asks for one piece after the other, and the
//! rank that owns the piece sends it. For reading, every rank opens the file and takes its own part.

use plimsoll_exec::{Communicator, ExecError};
use plimsoll_graph::{Shape, StateKind, Type};

use super::Run;
use super::words::Word;
use crate::error::TrainError;
use crate::files::WholeState;

impl Run {
    /// Type of the whole of a state, of which this rank may have a shard; none if there is no such state.
    pub fn whole_type(&self, name: &str) -> Option<Type> {
        self.engine.whole_type(name)
    }

    /// Type of the whole, if this rank has a shard of the state.
    pub(crate) fn shard_of(&self, name: &str) -> Option<Type> {
        self.kinds.get(name).and_then(|(_, whole)| *whole)
    }

    /// Whether ranks divide weights among them.
    pub(crate) fn divides_weights(&self) -> bool {
        let divided = |(kind, whole): &(StateKind, Option<Type>)| {
            whole.is_some() && matches!(kind, StateKind::Parameter { .. })
        };
        self.kinds.values().any(divided)
    }

    /// Whether ranks divide some state among them.
    pub(crate) fn divides_state(&self) -> bool {
        self.divided().next().is_some()
    }

    /// Divided states, in an order that all ranks have.
    fn divided(&self) -> impl Iterator<Item = &str> {
        self.kinds.iter().filter(|(_, (_, whole))| whole.is_some()).map(|(name, _)| name.as_str())
    }

    /// Reads bytes of a whole state from byte `first` on, as they are stored. Of divided state, rank 0 alone may read pieces
    /// of others, between steps, while the other ranks wait for its word.
    ///
    /// # Errors
    ///
    /// When there is no such state, it is shorter, or a rank has ended.
    pub fn read_whole(&self, name: &str, first: u64, bytes: &mut [u8]) -> Result<(), TrainError> {
        Ok(self.read_bytes(name, first, bytes)?)
    }

    /// One piece of a divided state, which lies in one shard.
    fn fetch(&self, name: &str, piece: &Piece, bytes: &mut [u8]) -> Result<(), ExecError> {
        let Some(world) = self.communicator().filter(|_| piece.owner != self.rank()) else {
            return self.engine.read_state_bytes(name, piece.first % self.shard_bytes(name), bytes);
        };
        if self.rank() > 0 {
            return Err(ExecError::Mismatch(format!("rank 0 alone reads all of `{name}`")));
        }
        let (state, count) = (piece.state as u64, bytes.len() as u64);
        world.broadcast(&mut Word::Piece { state, first: piece.first, count }.to_bytes())?;
        world.broadcast_from(piece.owner, bytes)
    }

    /// Takes part in the reading of a piece that rank 0 has asked for; `bytes` has room for it.
    pub(crate) fn give(
        &self,
        world: &dyn Communicator,
        [state, first]: [u64; 2],
        bytes: &mut [u8],
    ) -> Result<(), TrainError> {
        let name = self.divided().nth(state as usize);
        let name = name.ok_or_else(|| TrainError::Config(format!("there is no divided state {state}")))?;
        let shard = self.shard_bytes(name);
        let owner = (first / shard) as usize;
        if owner == self.rank() {
            self.engine.read_state_bytes(name, first % shard, bytes)?;
        }
        Ok(world.broadcast_from(owner, bytes)?)
    }

    /// The bytes of a whole state that this rank keeps: the first and how many. All of it, unless it is divided.
    pub(crate) fn own_part(&self, name: &str) -> (u64, u64) {
        let whole = self.whole_type(name).map_or(0, |ty| ty.bytes() as u64);
        if self.shard_of(name).is_none() {
            return (0, whole);
        }
        let shard = self.shard_bytes(name);
        let first = (shard * self.rank() as u64).min(whole);
        (first, shard.min(whole - first))
    }

    /// Bytes of a rank's shard, at least one.
    fn shard_bytes(&self, name: &str) -> u64 {
        let own = self.engine.states().find(|(known, _)| *known == name);
        own.map_or(1, |(_, ty)| ty.bytes().max(1) as u64)
    }
}

impl WholeState for Run {
    fn pieces(&self, name: &str) -> Vec<(usize, String, Shape)> {
        self.engine.pieces(name)
    }

    fn read_bytes(&self, name: &str, first: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        // Most state is whole. Its name is looked up, because a search of all names for each of them takes seconds in a model
        // of a thousand layers.
        let divided = self.shard_of(name).and_then(|_| self.divided().position(|known| known == name));
        let Some(state) = divided else {
            return self.engine.read_state_bytes(name, first, bytes);
        };
        let shard = self.shard_bytes(name);
        let mut done = 0;
        while done < bytes.len() {
            let at = first + done as u64;
            let count = (bytes.len() - done).min((shard - at % shard) as usize);
            let piece = Piece { state, first: at, owner: (at / shard) as usize };
            self.fetch(name, &piece, &mut bytes[done..done + count])?;
            done += count;
        }
        Ok(())
    }
}

/// A piece of a divided state.
struct Piece {
    state: usize,
    first: u64,
    owner: usize,
}
