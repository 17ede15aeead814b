//! A world of GPUs: exchanges on a stream of their own, beside the stream of everything else.
//!
//! ```text
//! stream     compute ── exchange 0 begins ── compute ──────────── await 0 ── compute
//!                              ╲ event                            ╱ event
//! lane                          exchange 0 ──────────────────────╱
//! ```
//!
//! Ranks find each other by an id that rank 0 makes; it goes to the others as a word of the [`Communicator`], by which they
//! also hear that a rank has failed. An exchange of GPUs knows no limit and waits for a rank that is gone, so a thread listens
//! for such a fault and ends the exchange. It also counts how long the device has waited, and gives the run up at the limit.
#![allow(unsafe_code, reason = "calls the driver")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cudarc::driver::sys as cuda;
use plimsoll_exec::{Communicator, ExecError};
use plimsoll_graph::DType;
use plimsoll_graph::op::Collective;

use super::event::Event;
use super::nccl::{Member, Nccl, WorldId};
use super::{Borrowed, Context, Libraries, Stream, ok};
use crate::lower::{Place, RankExchange};

/// How often the thread looks whether a rank has failed.
const LOOK: Duration = Duration::from_millis(100);
/// Elements of the exchanges that NCCL is warmed up with: it has other kernels for small, middling and large ones.
const WARM: [usize; 3] = [1 << 8, 1 << 16, 1 << 23];
/// Bytes that tell one GPU from another.
const CARD: usize = 16;

/// This GPU's place among those of all ranks.
#[derive(Debug)]
pub(crate) struct World {
    /// The thread goes before the member that it watches.
    _watch: Watch,
    member: Arc<Member>,
    lane: Lane,
    ranks: Arc<dyn Communicator>,
    version: String,
    waiting: Arc<Waiting>,
}

impl World {
    /// Makes the GPU one of several; returns when all have come and NCCL has taken its memory.
    ///
    /// # Errors
    ///
    /// When NCCL is missing, two ranks are on one GPU, or the others cannot be reached.
    pub(crate) fn join(
        context: &Arc<Context>,
        libraries: &Libraries,
        ranks: Arc<dyn Communicator>,
    ) -> Result<World, ExecError> {
        let nccl = Nccl::open(libraries)?;
        let mut cards = vec![0; CARD * ranks.ranks()];
        ranks.gather(&context.identity()?, &mut cards)?;
        one_rank_each(&cards)?;
        let mut id = if ranks.rank() == 0 { nccl.world_id()? } else { WorldId([0; 128]) };
        ranks.broadcast(&mut id.0)?;
        let member = Arc::new(nccl.join(context, id, [ranks.rank(), ranks.ranks()])?);
        let waiting = Arc::new(Waiting::default());
        let watch = Watch::begin(&ranks, &member, &waiting)?;
        let lane = Lane::new(context)?;
        let world = World { _watch: watch, member, lane, ranks, version: nccl.version(), waiting };
        world.warm_up(context)?;
        Ok(world)
    }

    /// How many ranks there are.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks.ranks()
    }

    /// The version of NCCL.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Makes room for this many exchanges of one schedule.
    pub(crate) fn make_room(&mut self, exchanges: usize) -> Result<(), ExecError> {
        self.lane.make_room(exchanges)
    }

    /// Queues an exchange of bytes at two addresses behind all that is on `stream`, which goes on beside it.
    ///
    /// # Safety
    ///
    /// Both ranges are valid, and nothing else writes them, until a stream that [waits](Self::wait) for the exchange has passed
    /// that point.
    pub(crate) unsafe fn begin(
        &self,
        exchange: &RankExchange,
        addresses: (u64, u64),
        stream: &Stream,
    ) -> Result<(), ExecError> {
        self.lane.context.enter()?;
        let ended = self.lane.ended.get(exchange.number).ok_or_else(|| no_exchange(exchange.number))?;
        self.lane.begun.record(stream.raw())?;
        self.lane.begun.holds(self.lane.stream)?;
        // SAFETY: the caller's promise.
        unsafe { self.member.queue(exchange, addresses, self.lane.stream)? };
        ended.record(self.lane.stream)
    }

    /// Has what is queued on `stream` from here on wait for an exchange, by its number.
    pub(crate) fn wait(&self, number: usize, stream: &Stream) -> Result<(), ExecError> {
        let ended = self.lane.ended.get(number).ok_or_else(|| no_exchange(number))?;
        ended.holds(stream.raw())
    }

    /// Runs a body that waits for the GPU, and so perhaps for other ranks: for no longer than a rank may take.
    pub(crate) fn wait_within_limit<T>(&self, body: impl FnOnce() -> T) -> T {
        self.waiting.set(Some(Instant::now()));
        let result = body();
        self.waiting.set(None);
        result
    }

    /// The fault that has ended the world. What the GPU has computed since is not to be read.
    pub(crate) fn check(&self) -> Result<(), ExecError> {
        if !self.member.has_ended() {
            return Ok(());
        }
        Err(ExecError::Rank(self.ranks.fault().unwrap_or_else(|| "another rank has failed".into())))
    }

    /// Runs exchanges of every kind and size, so that NCCL has loaded and allocated everything before memory is counted.
    fn warm_up(&self, context: &Arc<Context>) -> Result<(), ExecError> {
        let ranks = self.ranks();
        let bytes = (WARM[WARM.len() - 1] * DType::F32.bytes()) as u64;
        let [source, destination] = [Borrowed::new(context, bytes)?, Borrowed::new(context, bytes)?];
        for exchange in warm_exchanges(ranks) {
            context.enter()?;
            // SAFETY: both hold as many bytes as any of the exchanges; whatever numbers they hold are sums of nothing.
            unsafe {
                self.member.queue(&exchange, (source.address(), destination.address()), self.lane.stream)?;
            }
        }
        self.wait_within_limit(|| self.lane.wait())?;
        self.check()
    }
}

/// Since when the device waits for its GPU, if it does.
#[derive(Debug, Default)]
struct Waiting(Mutex<Option<Instant>>);

impl Waiting {
    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Whether the device has waited for longer than a limit.
    fn exceeds(&self, limit: Duration) -> bool {
        let since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| since.elapsed() > limit)
    }
}

/// Exchanges of every kind, type and size, with and without elements past the end.
fn warm_exchanges(ranks: usize) -> Vec<RankExchange> {
    let mut all = Vec::new();
    for (dtype, elements) in [DType::F32, DType::Bf16].into_iter().flat_map(|dtype| WARM.map(|n| (dtype, n)))
    {
        let share = elements / ranks;
        let whole = share * ranks;
        let of = |collective, whole, share| RankExchange {
            collective,
            dtype,
            source: Place(0),
            destination: Place(0),
            whole,
            share,
            number: 0,
        };
        all.push(of(Collective::AllReduce { ranks }, whole, whole));
        for whole in [whole, whole.saturating_sub(1)] {
            let gather = Collective::AllGather { ranks, whole: [whole].into() };
            all.push(of(Collective::ReduceScatter { ranks }, whole, share));
            all.push(of(gather, whole, share));
        }
    }
    all
}

/// Refuses two ranks on one GPU, which NCCL takes only one of; `cards` are the identities of all ranks' GPUs.
fn one_rank_each(cards: &[u8]) -> Result<(), ExecError> {
    let cards = cards.as_chunks::<CARD>().0;
    let twice = cards.iter().enumerate().find_map(|(rank, card)| {
        cards[..rank].iter().position(|before| before == card).map(|before| (before, rank))
    });
    match twice {
        Some((first, second)) => Err(ExecError::Unsupported(format!(
            "ranks {first} and {second} are on one GPU, and NCCL takes one rank of each GPU; start as many processes on a \
             machine as it has GPUs, and leave out --device or its number"
        ))),
        None => Ok(()),
    }
}

fn no_exchange(number: usize) -> ExecError {
    ExecError::Mismatch(format!("no room was made for exchange {number}"))
}

/// The stream of exchanges, and the points by which it and the device's stream wait for each other.
#[derive(Debug)]
struct Lane {
    context: Arc<Context>,
    stream: cuda::CUstream,
    begun: Event,
    /// For each exchange of a schedule, by its number.
    ended: Vec<Event>,
}

// SAFETY: a stream may be used from any thread in whose context it is; every use enters the context first.
unsafe impl Send for Lane {}
// SAFETY: as above; the driver locks its queues.
unsafe impl Sync for Lane {}

impl Lane {
    fn new(context: &Arc<Context>) -> Result<Lane, ExecError> {
        context.enter()?;
        let begun = Event::of_order()?;
        let mut stream = std::ptr::null_mut();
        let flags = cuda::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: an out-parameter that lives here.
        unsafe { ok(cuda::cuStreamCreate(&raw mut stream, flags), "making a stream for exchanges")? };
        Ok(Lane { context: Arc::clone(context), stream, begun, ended: Vec::new() })
    }

    fn make_room(&mut self, exchanges: usize) -> Result<(), ExecError> {
        self.context.enter()?;
        while self.ended.len() < exchanges {
            self.ended.push(Event::of_order()?);
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), ExecError> {
        self.context.enter()?;
        // SAFETY: the stream lives.
        unsafe { ok(cuda::cuStreamSynchronize(self.stream), "waiting for exchanges") }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once; exchanges that are under way end by themselves, or were aborted.
            unsafe {
                cuda::cuStreamSynchronize(self.stream);
                cuda::cuStreamDestroy_v2(self.stream);
            }
        }
    }
}

/// A thread that ends the exchanges of a GPU once a rank has failed.
#[derive(Debug)]
struct Watch {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn begin(
        ranks: &Arc<dyn Communicator>,
        member: &Arc<Member>,
        waiting: &Arc<Waiting>,
    ) -> Result<Watch, ExecError> {
        let over = Arc::new(AtomicBool::new(false));
        if ranks.ranks() == 1 {
            return Ok(Watch { over, thread: None });
        }
        // Weak, so that the rank leaves the world when its owner drops it.
        let (ranks, member, ending) = (Arc::downgrade(ranks), Arc::clone(member), Arc::clone(&over));
        let waiting = Arc::clone(waiting);
        let body = move || {
            while !ending.load(Ordering::Acquire) {
                match ranks.upgrade().map(|ranks| has_failed(&*ranks, &waiting)) {
                    Some(false) => thread::park_timeout(LOOK),
                    Some(true) | None => return member.abort(),
                }
            }
        };
        let thread = thread::Builder::new().name("plimsoll-exchanges".into()).spawn(body);
        let refused =
            |error| ExecError::Device(format!("cannot start a thread that watches exchanges: {error}"));
        Ok(Watch { over, thread: Some(thread.map_err(refused)?) })
    }
}

/// Whether a rank has failed, or this one has waited for too long and gives up.
fn has_failed(ranks: &dyn Communicator, waiting: &Waiting) -> bool {
    let limit = ranks.limit();
    if ranks.fault().is_none() && waiting.exceeds(limit) {
        let limit = limit.as_secs_f64();
        ranks
            .leave(&format!("its GPU has waited {limit} s for the exchanges of a step with the other ranks"));
    }
    ranks.fault().is_some()
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Ignored: the thread's own code does not panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_exec::thread_ranks;

    use super::*;

    #[test]
    fn two_ranks_on_one_gpu_are_named() {
        let cards = |of: &[u8]| of.iter().flat_map(|card| [*card; CARD]).collect::<Vec<u8>>();
        assert!(one_rank_each(&cards(&[1, 2, 3])).is_ok());
        let why = one_rank_each(&cards(&[1, 2, 3, 2])).unwrap_err().to_string();
        assert!(
            why.starts_with("ranks 1 and 3 are on one GPU, and NCCL takes one rank of each GPU"),
            "{why}"
        );
    }

    #[test]
    fn a_rank_whose_gpu_waits_beyond_the_limit_ends_the_run_and_one_that_computes_does_not() {
        let world = thread_ranks(2, Duration::from_millis(20)).unwrap();
        let waiting = Waiting::default();
        thread::sleep(Duration::from_millis(40));
        assert!(!has_failed(&*world[0], &waiting));
        waiting.set(Some(Instant::now()));
        assert!(!has_failed(&*world[0], &waiting));
        thread::sleep(Duration::from_millis(40));
        assert!(has_failed(&*world[0], &waiting));
        let told = world[1].fault().unwrap();
        assert!(told.starts_with("rank 0 ended: its GPU has waited 0.02 s for the exchanges"), "{told}");
    }

    #[test]
    fn warming_up_exchanges_every_kind_in_whole_shards_and_in_parts() {
        for ranks in [1, 3, 8] {
            let all = warm_exchanges(ranks);
            assert_eq!(all.len(), 30);
            let uneven = |exchange: &&RankExchange| exchange.share * ranks != exchange.whole;
            let sums = Collective::AllReduce { ranks };
            assert_eq!(all.iter().filter(|exchange| exchange.collective != sums).filter(uneven).count(), 12);
            assert!(all.iter().all(|exchange| exchange.whole.max(exchange.share) <= WARM[2]));
        }
    }
}
