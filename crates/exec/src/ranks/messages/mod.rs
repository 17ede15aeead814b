//! Ranks that are processes: they share no memory and send each other messages.
//!
//! ```text
//! rank                                    its thread
//! start ──▶ queue ──▶ rounds:             one message to each other rank, one from each, sums in the order of ranks
//! wait  ◀── done  ◀── talk:               deadlines, signs of life, faults
//!                     wire:               carries messages (MPI, TCP), one stream from each rank to each other
//! ```
//!
//! All bytes go through buffers of the wire. So a rank that leaves may free its arena, whatever is still under way.
//!
//! A fault is told to all ranks at once, as a message. Each rank sends a sign of life every few seconds, also while it
//! computes or writes files. So a process that was killed or stopped is found out by [`SILENCE`], and one that lives and
//! does not come to an exchange by the limit of that exchange.

mod rounds;
mod talk;
mod tcp;
mod wire;

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use super::queue::{Queue, Task};
use super::share::Turn;
use super::{Communicator, ExchangeOperands};
use crate::ExecError;
use talk::Talk;
pub use tcp::{Meeting, tcp_rank};
pub use wire::{Wire, message_bytes};

/// How long a rank may give no sign of life; less if the limit of exchanges is less.
const SILENCE: Duration = Duration::from_mins(1);
/// How long the thread waits for an exchange before it looks after the other ranks.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a rank that ends tries to tell the others.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Stack of the thread that exchanges; libraries that carry messages need more than sums do.
const STACK_BYTES: usize = 2 << 20;

/// This process's end of a world of processes. `open` makes the wire, on the one thread that uses it. A rank waits for the
/// others for `limit`.
///
/// # Errors
///
/// When the wire cannot be made, or the system refuses a thread.
pub fn message_rank<W: Wire>(
    limit: Duration,
    open: impl FnOnce() -> Result<W, ExecError> + Send + 'static,
) -> Result<Arc<dyn Communicator>, ExecError> {
    let queue = Arc::new(Queue::new());
    let worker = Arc::clone(&queue);
    let (tell, told) = mpsc::channel();
    let body = move || match open() {
        Ok(wire) => {
            let place = Place { rank: wire.rank(), ranks: wire.ranks(), arenas_ahead: wire.arenas_ahead() };
            if tell.send(Ok(place)).is_ok() {
                work(&worker, Talk::new(wire, limit, limit.min(SILENCE)));
            }
        }
        Err(error) => drop(tell.send(Err(error))),
    };
    let thread = std::thread::Builder::new().name("plimsoll-messages".into()).stack_size(STACK_BYTES);
    let refused = |error: &dyn std::fmt::Display| {
        ExecError::Device(format!("cannot start a thread that exchanges messages: {error}"))
    };
    let thread = thread.spawn(body).map_err(|error| refused(&error))?;
    let place = told.recv().map_err(|error| refused(&error))??;
    let (thread, sent, parted) = (Some(thread), AtomicU64::new(0), AtomicBool::new(false));
    Ok(Arc::new(MessageRank { place, limit, queue, thread, sent, parted }))
}

/// A rank among all.
#[derive(Clone, Copy, Debug)]
struct Place {
    rank: usize,
    ranks: usize,
    arenas_ahead: usize,
}

/// One rank, which is a process.
#[derive(Debug)]
struct MessageRank {
    place: Place,
    limit: Duration,
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
    sent: AtomicU64,
    /// Whether the run has ended well.
    parted: AtomicBool,
}

impl Communicator for MessageRank {
    fn rank(&self) -> usize {
        self.place.rank
    }

    fn ranks(&self) -> usize {
        self.place.ranks
    }

    unsafe fn start(&self, operands: ExchangeOperands) -> Result<u64, ExecError> {
        Turn::check(&operands)?;
        let number = self.queue.push(operands)?;
        if !operands.word {
            self.sent.fetch_add(operands.wire_bytes(self.ranks()), Ordering::Relaxed);
        }
        Ok(number)
    }

    fn wait(&self, number: u64) -> Result<(), ExecError> {
        self.queue.wait(number)
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn waited(&self) -> Duration {
        self.queue.waited()
    }

    fn ranks_in_process(&self) -> usize {
        1
    }

    fn arenas_ahead(&self) -> usize {
        self.place.arenas_ahead
    }

    fn fault(&self) -> Option<String> {
        self.queue.fault()
    }

    fn limit(&self) -> Duration {
        self.limit
    }

    fn part(&self) {
        self.parted.store(true, Ordering::Relaxed);
    }

    fn leave(&self, why: &str) {
        if !self.parted.load(Ordering::Relaxed) {
            self.queue.leave(why);
        }
    }
}

impl Drop for MessageRank {
    fn drop(&mut self) {
        self.leave("it is gone");
        self.queue.close();
        if let Some(thread) = self.thread.take() {
            // Ignored: the thread's own code does not panic, and a rank that is dropped has nobody to report to.
            let _ = thread.join();
        }
    }
}

/// Works through the exchanges of a rank, and looks after the other ranks meanwhile.
fn work<W: Wire>(queue: &Queue, mut talk: Talk<W>) {
    loop {
        let result = match queue.next(Some(PAUSE)) {
            Task::Close => return talk.close(),
            Task::Nothing => talk.look_after(queue),
            // SAFETY: whoever started the exchange leaves its bytes alone until it was waited for or the rank has left.
            Task::Exchange(operands) => unsafe { talk.exchange(queue, operands) }.map(|()| queue.done()),
        };
        if let Err(fault) = result {
            // From here on no operand is touched, so the rank may go on to its own end.
            queue.fail(fault.clone());
            talk.tell(&fault, LAST_WORDS);
            // A library that carries messages cannot end in order once a rank is missing; the process will end soon.
            mem::forget(talk);
            return;
        }
    }
}
