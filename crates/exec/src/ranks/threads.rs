//! Ranks that are threads of one process: they read each other's memory.
//!
//! Each rank has one more thread, which works through its exchanges in the order they were started, while the rank
//! computes. This serves tests, and machines with more cores than one model can use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::queue::{Queue, Task};
use super::share::Turn;
use super::world::World;
use super::{Communicator, ExchangeOperands};
use crate::ExecError;

/// How long a rank waits for another before it gives the run up. Ranks do equal work, so they differ by much less.
pub const LIMIT: Duration = Duration::from_mins(10);

/// Stack of the thread that exchanges.
const STACK_BYTES: usize = 128 << 10;

/// The ends of a world of `ranks` ranks, each for a thread of this process. A rank waits for the others for `limit`.
///
/// # Errors
///
/// When the system refuses a thread.
pub fn thread_ranks(ranks: usize, limit: Duration) -> Result<Vec<Arc<dyn Communicator>>, ExecError> {
    let world = Arc::new(World::new(ranks.max(1), limit));
    (0..world.ranks())
        .map(|rank| Ok(Arc::new(ThreadRank::join(rank, Arc::clone(&world))?) as Arc<dyn Communicator>))
        .collect()
}

/// One rank of a process.
#[derive(Debug)]
struct ThreadRank {
    rank: usize,
    world: Arc<World>,
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
    sent: AtomicU64,
}

impl ThreadRank {
    fn join(rank: usize, world: Arc<World>) -> Result<ThreadRank, ExecError> {
        let queue = Arc::new(Queue::new());
        let (worker, meeting) = (Arc::clone(&queue), Arc::clone(&world));
        let thread = std::thread::Builder::new()
            .name(format!("plimsoll-rank-{rank}"))
            .stack_size(STACK_BYTES)
            .spawn(move || work(&worker, rank, &meeting))
            .map_err(|error| ExecError::Device(format!("cannot start a thread for rank {rank}: {error}")))?;
        Ok(ThreadRank { rank, world, queue, thread: Some(thread), sent: AtomicU64::new(0) })
    }
}

impl Communicator for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.world.ranks()
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
        self.ranks()
    }

    fn arenas_ahead(&self) -> usize {
        if self.rank == 0 { self.ranks() } else { 1 }
    }

    fn fault(&self) -> Option<String> {
        self.world.fault()
    }

    fn limit(&self) -> Duration {
        self.world.limit()
    }

    fn part(&self) {}

    fn leave(&self, why: &str) {
        let rank = self.rank;
        self.world.end(|| format!("rank {rank} ended: {why}"));
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        self.leave("it is gone");
        self.queue.close();
        if let Some(thread) = self.thread.take() {
            // Ignored: the thread's own code does not panic, and a rank that is dropped has nobody to report to.
            let _ = thread.join();
        }
    }
}

/// Works through the exchanges of a rank.
fn work(queue: &Queue, rank: usize, world: &World) {
    let mut seen = Vec::with_capacity(world.ranks());
    while let Task::Exchange(operands) = queue.next(None) {
        // SAFETY: whoever started the exchange leaves its bytes alone until it was waited for or the world ended.
        let result = unsafe { world.exchange(rank, operands, &mut seen) };
        let Err(fault) = result else {
            queue.done();
            continue;
        };
        // The others need not find out by themselves.
        world.end(|| fault.clone());
        queue.fail(world.fault().unwrap_or(fault));
        return;
    }
}
