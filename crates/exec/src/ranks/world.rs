//! The place where the ranks of one process meet: each exchange has three meetings, and between them its turns.
//!
//! ```text
//! rank 0   post ─ meet ─ first turn ─ meet ─ second turn ─ meet
//! rank 1   post ─ meet ─ first turn ─ meet ─ second turn ─ meet      nobody goes past a meeting before all are there
//! ```
//!
//! The first fault ends the world: ranks that wait or come later get that fault. A rank that leaves waits until no other
//! rank is in a turn, because turns read bytes of other ranks. Nothing allocates after construction, faults excepted.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::share::Turn;
use super::{ExchangeKind, ExchangeOperands};

/// All ranks of a process.
#[derive(Debug)]
pub(super) struct World {
    ranks: usize,
    /// How long a rank waits for another.
    limit: Duration,
    state: Mutex<Meetings>,
    changed: Condvar,
}

#[derive(Debug)]
struct Meetings {
    /// Operands of the exchange under way.
    posts: Vec<Option<ExchangeOperands>>,
    /// Meetings that each rank has come to.
    reached: Vec<u64>,
    /// Ranks that are in a turn.
    turning: usize,
    /// Why the world has ended.
    fault: Option<String>,
}

/// How long a rank waits at a meeting.
#[derive(Clone, Copy)]
enum Patience {
    Limited,
    /// As long as the others live.
    Endless,
}

impl World {
    pub(super) fn new(ranks: usize, limit: Duration) -> World {
        let state = Meetings { posts: vec![None; ranks], reached: vec![0; ranks], turning: 0, fault: None };
        World { ranks, limit, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    fn lock(&self) -> MutexGuard<'_, Meetings> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the world has ended, if it has.
    pub(super) fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }

    /// Ends the world, unless it has ended, and waits until nobody touches bytes of other ranks.
    pub(super) fn end(&self, why: impl FnOnce() -> String) {
        let mut state = self.lock();
        if state.fault.is_none() {
            state.fault = Some(why());
        }
        self.changed.notify_all();
        while state.turning > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes part in one exchange; `seen` is memory for the operands of all ranks.
    ///
    /// # Safety
    ///
    /// The bytes of the operands are touched by nobody else until this has returned without a fault, or the world has
    /// ended.
    pub(super) unsafe fn exchange(
        &self,
        rank: usize,
        operands: ExchangeOperands,
        seen: &mut Vec<ExchangeOperands>,
    ) -> Result<(), String> {
        let endless = matches!(operands.kind, ExchangeKind::Broadcast { root } if rank != root);
        self.lock().posts[rank] = Some(operands);
        let patience = if endless { Patience::Endless } else { Patience::Limited };
        let state = self.meet(rank, operands, patience)?;
        seen.clear();
        seen.extend(state.posts.iter().flatten());
        self.turn(state, agreed, rank, seen)??;
        let state = self.meet(rank, operands, Patience::Limited)?;
        if operands.kind == ExchangeKind::AllReduce {
            self.turn(state, copied, rank, seen)?;
            drop(self.meet(rank, operands, Patience::Limited)?);
        }
        Ok(())
    }

    /// Runs a turn outside the lock.
    fn turn<T>(
        &self,
        mut state: MutexGuard<'_, Meetings>,
        body: impl FnOnce(Turn) -> T,
        rank: usize,
        all: &[ExchangeOperands],
    ) -> Result<T, String> {
        // A rank may have come to the meeting and left since.
        if let Some(fault) = &state.fault {
            return Err(fault.clone());
        }
        state.turning += 1;
        drop(state);
        let result = body(Turn { all, rank });
        let mut state = self.lock();
        state.turning -= 1;
        self.changed.notify_all();
        Ok(result)
    }

    /// Waits until all ranks have come to this meeting.
    fn meet(
        &self,
        rank: usize,
        operands: ExchangeOperands,
        patience: Patience,
    ) -> Result<MutexGuard<'_, Meetings>, String> {
        let begin = Instant::now();
        let mut state = self.lock();
        state.reached[rank] += 1;
        let meeting = state.reached[rank];
        self.changed.notify_all();
        loop {
            let late = state.reached.iter().position(|&reached| reached < meeting);
            let Some(late) = late else { return Ok(state) };
            if let Some(fault) = &state.fault {
                return Err(fault.clone());
            }
            let left = match patience {
                Patience::Limited => self.limit.saturating_sub(begin.elapsed()),
                Patience::Endless => self.limit,
            };
            if left.is_zero() {
                let (exchange, limit) = (operands.described(), self.limit.as_secs_f64());
                return Err(format!("rank {late} has not come to {exchange} within {limit} s"));
            }
            let woken = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state = woken.0;
        }
    }
}

/// Checks that all ranks have begun the same exchange, and then runs its first turn.
fn agreed(turn: Turn) -> Result<(), String> {
    let first = turn.all[0];
    if let Some(other) = turn.all.iter().position(|operands| !operands.agrees(&first)) {
        let (own, expected) = (turn.all[other].described(), first.described());
        return Err(format!("rank {other} began {own} where rank 0 began {expected}"));
    }
    // SAFETY: all ranks have posted their operands and none has left.
    unsafe { turn.first() };
    Ok(())
}

/// The second turn. Only worlds that go on have turns.
fn copied(turn: Turn) {
    // SAFETY: all ranks have ended their first turn and none has left.
    unsafe { turn.second() };
}
