//! Ranks: several devices that run the same schedules, each on its own part of the data, and exchange values.
//!
//! A [`Communicator`] is one rank's end of the world. An exchange is started and waited for, so that compute goes on beside
//! it. All ranks start the same exchanges in the same order; `plimsoll_plan::replay_ranks` judges schedules by that rule.
//!
//! ```text
//! rank 0   start all_reduce ── compute ── wait ─┐
//! rank 1      start all_reduce ── compute ── wait ─┴ each has Σ x, added in the order of ranks
//! ```
//!
//! Sums do not depend on timing: element by element, rank 0 first, in f32, rounded once. A rank that fails or hangs ends
//! the others within a limit, all with one error that names it. After that error the world is of no use any more.
//!
//! [`thread_ranks`] makes the ranks of one process. [`message_rank`] makes a rank of a process of its own, over any
//! [`Wire`] that carries messages: [`tcp_rank`] over TCP, `plimsoll-mpi` over MPI. All sum by the same function, so they agree to
//! the bit.
//! Absent: exchanges on a GPU. Its ranks exchange words here, and values by a library of the vendor.
#![allow(unsafe_code, reason = "an exchange is addresses in several arenas; see `Communicator::start`")]

mod messages;
mod queue;
mod share;
mod threads;
mod world;

use std::fmt::Debug;
use std::time::Duration;

use plimsoll_graph::DType;

use crate::ExecError;

pub use messages::{Meeting, Wire, message_bytes, message_rank, tcp_rank};
pub use threads::{LIMIT, thread_ranks};

/// Kinds of exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// Every rank gets the sum of all.
    AllReduce,
    /// Rank `r` gets shard `r` of the sum.
    ReduceScatter,
    /// Every rank gets the shards of all ranks, one behind the other.
    AllGather,
    /// Every rank gets the elements of one.
    Broadcast {
        /// The rank whose elements all get.
        root: usize,
    },
}

impl ExchangeKind {
    /// The name in errors.
    pub fn name(self) -> &'static str {
        match self {
            ExchangeKind::AllReduce => "all_reduce",
            ExchangeKind::ReduceScatter => "reduce_scatter",
            ExchangeKind::AllGather => "all_gather",
            ExchangeKind::Broadcast { .. } => "broadcast",
        }
    }
}

/// One rank's operands of an exchange.
///
/// | kind | at `source` | at `destination` |
/// |---|---|---|
/// | all-reduce | the whole | the whole, at the same place or another |
/// | reduce-scatter | the whole | a shard, filled up with zeros |
/// | all-gather | a shard | the whole |
/// | broadcast | the whole | the whole, at the same place or another |
#[derive(Clone, Copy, Debug)]
pub struct ExchangeOperands {
    /// The kind.
    pub kind: ExchangeKind,
    /// Type of the elements; sums are of f32 and bf16.
    pub dtype: DType,
    /// The elements that this rank gives.
    pub source: *const u8,
    /// The place of the result.
    pub destination: *mut u8,
    /// Elements of the whole.
    pub whole: usize,
    /// Elements of each rank's share: those that it adds up, or its shard. Shares of all ranks hold the whole.
    pub share: usize,
    /// Whether it is a word about the run and not a part of a schedule: such words are not counted as traffic.
    pub word: bool,
}

// SAFETY: addresses are used by the communicator between start and wait, and whoever started the exchange promised to
// leave the bytes alone for that long.
unsafe impl Send for ExchangeOperands {}

impl ExchangeOperands {
    /// Bytes that each rank sends: a share to every other rank, and for an all-reduce a share of the result as well.
    pub fn wire_bytes(&self, ranks: usize) -> u64 {
        let turns = if self.kind == ExchangeKind::AllReduce { 2 } else { 1 };
        (turns * ranks.saturating_sub(1) * self.share * self.dtype.bytes()) as u64
    }

    /// The exchange in words.
    fn described(&self) -> String {
        format!("{} of {} {}", self.kind.name(), self.whole, self.dtype)
    }

    /// Whether another rank's operands are of the same exchange.
    fn agrees(&self, other: &ExchangeOperands) -> bool {
        let facts = |of: &ExchangeOperands| (of.kind, of.dtype, of.whole, of.share, of.word);
        facts(self) == facts(other)
    }
}

/// One rank's end of the world.
pub trait Communicator: Send + Sync + Debug {
    /// The number of this rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// Begins an exchange, and returns its number. Exchanges of a rank run one after the other.
    ///
    /// # Errors
    ///
    /// When the world has ended.
    ///
    /// # Safety
    ///
    /// Both places are aligned for their elements. Their bytes are valid and touched by nobody else until [`wait`](Self::wait) has returned without an
    /// error for this exchange, or [`leave`](Self::leave) has returned.
    unsafe fn start(&self, operands: ExchangeOperands) -> Result<u64, ExecError>;

    /// Waits until an exchange is done.
    ///
    /// # Errors
    ///
    /// When a rank has ended, has not come within the limit, or has begun another exchange instead. The error names it.
    fn wait(&self, number: u64) -> Result<(), ExecError>;

    /// Bytes that this rank has sent in the exchanges of schedules, by [`ExchangeOperands::wire_bytes`].
    fn sent(&self) -> u64;

    /// Time that this rank has spent in [`wait`](Self::wait), while it computed nothing.
    fn waited(&self) -> Duration;

    /// Ranks that are threads of this process, this one included.
    fn ranks_in_process(&self) -> usize;

    /// Arenas that this machine must still have room for when this rank takes its own: those of all its ranks for the
    /// first rank of a machine.
    fn arenas_ahead(&self) -> usize;

    /// Why the world has ended, if it has. Work that no [`wait`](Self::wait) covers, such as exchanges on a GPU, is given up then.
    fn fault(&self) -> Option<String>;

    /// How long this rank waits for another in an exchange.
    fn limit(&self) -> Duration;

    /// Marks the run as ended well, which all ranks know by now. Leaving afterwards is no fault.
    fn part(&self);

    /// Ends this rank's part. Ranks that wait for it get an error with the reason. Once it returns, nobody touches this
    /// rank's bytes any more.
    fn leave(&self, why: &str);
}

impl dyn Communicator + '_ {
    /// Gives every rank the bytes of rank 0. Other ranks wait for rank 0 without a limit, as long as it lives: it may be
    /// evaluating or writing files.
    ///
    /// # Errors
    ///
    /// As [`wait`](Communicator::wait).
    pub fn broadcast(&self, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.broadcast_from(0, bytes)
    }

    /// Gives every rank the bytes of rank `root`, for which the others wait without a limit.
    ///
    /// # Errors
    ///
    /// When there is no such rank, and as [`wait`](Communicator::wait).
    pub fn broadcast_from(&self, root: usize, bytes: &mut [u8]) -> Result<(), ExecError> {
        if root >= self.ranks() {
            return Err(ExecError::Mismatch(format!("there is no rank {root} of {}", self.ranks())));
        }
        let place = bytes.as_mut_ptr();
        self.word(ExchangeKind::Broadcast { root }, place, place, [bytes.len(); 2])
    }

    /// Gathers the bytes of all ranks, in their order: `all` has room for as many times `own`.
    ///
    /// # Errors
    ///
    /// As [`wait`](Communicator::wait).
    pub fn gather(&self, own: &[u8], all: &mut [u8]) -> Result<(), ExecError> {
        let whole = own.len() * self.ranks();
        if all.len() != whole {
            return Err(ExecError::Mismatch(format!("{} bytes cannot hold {whole}", all.len())));
        }
        self.word(ExchangeKind::AllGather, own.as_ptr(), all.as_mut_ptr(), [whole, own.len()])
    }

    fn word(
        &self,
        kind: ExchangeKind,
        source: *const u8,
        destination: *mut u8,
        [whole, share]: [usize; 2],
    ) -> Result<(), ExecError> {
        let dtype = DType::U8;
        let operands = ExchangeOperands { kind, dtype, source, destination, whole, share, word: true };
        // SAFETY: the callers' slices are borrowed until this returns, and an exchange that fails is left before that.
        let number = unsafe { self.start(operands) }?;
        self.wait(number).inspect_err(|error| self.leave(&error.to_string()))
    }
}
