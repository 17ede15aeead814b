//! The exchanges that a rank has started and not yet ended: the rank adds to them, and a thread of its own works through
//! them in this order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ExchangeOperands;
use crate::ExecError;

/// Exchanges that may be under way without taking more memory.
const USUAL: usize = 1 << 10;

/// The exchanges of one rank.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<Queued>,
    changed: Condvar,
    /// Nanoseconds that the rank has waited.
    waited: AtomicU64,
}

#[derive(Debug)]
struct Queued {
    waiting: VecDeque<ExchangeOperands>,
    started: u64,
    done: u64,
    fault: Option<String>,
    /// Why the rank wants to leave, until its thread has heard it.
    leaving: Option<String>,
    closing: bool,
}

/// The next task of the thread that exchanges.
pub(super) enum Task {
    Exchange(ExchangeOperands),
    /// Nothing was started in the given time.
    Nothing,
    /// The rank is dropped.
    Close,
}

impl Queue {
    pub(super) fn new() -> Queue {
        let waiting = VecDeque::with_capacity(USUAL);
        let state = Queued { waiting, started: 0, done: 0, fault: None, leaving: None, closing: false };
        Queue { state: Mutex::new(state), changed: Condvar::new(), waited: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Queued> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an exchange and returns its number.
    pub(super) fn push(&self, operands: ExchangeOperands) -> Result<u64, ExecError> {
        let mut state = self.lock();
        if let Some(fault) = &state.fault {
            return Err(ExecError::Rank(fault.clone()));
        }
        state.waiting.push_back(operands);
        state.started += 1;
        self.changed.notify_all();
        Ok(state.started - 1)
    }

    /// Waits until an exchange is done.
    pub(super) fn wait(&self, number: u64) -> Result<(), ExecError> {
        let mut state = self.lock();
        if state.done <= number && state.fault.is_none() {
            let begin = Instant::now();
            while state.done <= number && state.fault.is_none() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            self.waited.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        match &state.fault {
            Some(fault) if state.done <= number => Err(ExecError::Rank(fault.clone())),
            _ => Ok(()),
        }
    }

    /// Time that the rank has waited.
    pub(super) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    /// The next task, for which the thread waits at most `patience`, or without a limit.
    pub(super) fn next(&self, patience: Option<Duration>) -> Task {
        let mut state = self.lock();
        loop {
            if state.closing {
                return Task::Close;
            }
            if let Some(operands) = state.waiting.pop_front() {
                return Task::Exchange(operands);
            }
            state = match patience {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(patience) => {
                    let woken =
                        self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner);
                    if woken.0.waiting.is_empty() && !woken.0.closing {
                        return Task::Nothing;
                    }
                    woken.0
                }
            };
        }
    }

    /// Counts an exchange as done.
    pub(super) fn done(&self) {
        self.lock().done += 1;
        self.changed.notify_all();
    }

    /// Ends all exchanges with a fault. The thread touches no operands from here on.
    pub(super) fn fail(&self, fault: String) {
        let mut state = self.lock();
        state.fault.get_or_insert(fault);
        self.changed.notify_all();
    }

    /// The fault that has ended all exchanges, if one has.
    pub(super) fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }

    /// Tells the thread that the rank leaves, and waits until it touches no operands any more.
    pub(super) fn leave(&self, why: &str) {
        let mut state = self.lock();
        if state.closing {
            return;
        }
        state.leaving.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
        while state.fault.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Why the rank leaves, if it does.
    pub(super) fn leaving(&self) -> Option<String> {
        self.lock().leaving.clone()
    }

    /// Ends the thread.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::DType;

    use super::*;
    use crate::ranks::ExchangeKind;

    #[test]
    fn a_wait_for_an_exchange_that_is_done_takes_no_time() {
        let (source, destination) = (std::ptr::null(), std::ptr::null_mut());
        let (kind, dtype) = (ExchangeKind::AllReduce, DType::F32);
        let queue = Queue::new();
        let operands = ExchangeOperands { kind, dtype, source, destination, whole: 0, share: 0, word: false };
        let number = queue.push(operands).unwrap();
        queue.done();
        queue.wait(number).unwrap();
        assert_eq!(queue.waited(), Duration::ZERO);
    }
}
