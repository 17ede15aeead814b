//! Exchanges between GPUs by NCCL, queued on the device's stream.
//!
//! Ranks find each other by an id of 128 bytes that rank 0 makes; the code that starts the ranks passes it to the others.
//! Shards are filled up, the tensors they are parts of are not. So where the shards do not end with the tensor, a scatter
//! is a group of sums, one to each rank, and a gather a group of broadcasts: no bytes beside the operands are needed.
#![allow(unsafe_code, reason = "calls NCCL")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use libloading::os::unix::Library as Shared;
use plimsoll_exec::{Communicator, ExecError};
use plimsoll_graph::DType;
use plimsoll_graph::op::Collective;

use super::symbols::named;
use super::{Context, Libraries, Stream};
use crate::lower::RankExchange;

type Raw = *mut c_void;
type Status = c_int;

const FLOAT: c_int = 7;
const BFLOAT: c_int = 9;
const BYTE: c_int = 1;
const SUM: c_int = 0;

/// The id of a world, which NCCL takes by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct WorldId([u8; 128]);

/// The functions, by the names they have in the library.
struct Functions {
    get_unique_id: unsafe extern "C" fn(*mut WorldId) -> Status,
    init: unsafe extern "C" fn(*mut Raw, c_int, WorldId, c_int) -> Status,
    abort: unsafe extern "C" fn(Raw) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    group_start: unsafe extern "C" fn() -> Status,
    group_end: unsafe extern "C" fn() -> Status,
    all_reduce: unsafe extern "C" fn(Raw, Raw, usize, c_int, c_int, Raw, Raw) -> Status,
    reduce: unsafe extern "C" fn(Raw, Raw, usize, c_int, c_int, c_int, Raw, Raw) -> Status,
    broadcast: unsafe extern "C" fn(Raw, Raw, usize, c_int, c_int, Raw, Raw) -> Status,
    reduce_scatter: unsafe extern "C" fn(Raw, Raw, usize, c_int, c_int, Raw, Raw) -> Status,
    all_gather: unsafe extern "C" fn(Raw, Raw, usize, c_int, Raw, Raw) -> Status,
    /// Keeps the addresses above alive.
    _library: Shared,
}

impl Functions {
    fn find(library: Shared) -> Result<Functions, &'static str> {
        // SAFETY: the types are those of the library's header.
        unsafe {
            Ok(Functions {
                get_unique_id: named(&library, "ncclGetUniqueId")?,
                init: named(&library, "ncclCommInitRank")?,
                abort: named(&library, "ncclCommAbort")?,
                error_string: named(&library, "ncclGetErrorString")?,
                group_start: named(&library, "ncclGroupStart")?,
                group_end: named(&library, "ncclGroupEnd")?,
                all_reduce: named(&library, "ncclAllReduce")?,
                reduce: named(&library, "ncclReduce")?,
                broadcast: named(&library, "ncclBroadcast")?,
                reduce_scatter: named(&library, "ncclReduceScatter")?,
                all_gather: named(&library, "ncclAllGather")?,
                _library: library,
            })
        }
    }

    fn ok(&self, status: Status, doing: &str) -> Result<(), ExecError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a text that lives as long as the library.
        let why = unsafe { CStr::from_ptr((self.error_string)(status)) }.to_string_lossy();
        Err(ExecError::Device(format!("NCCL failed: {doing}: {why}")))
    }
}

/// One rank's end of a world of GPUs.
pub(crate) struct World {
    functions: Functions,
    handle: Raw,
    context: Arc<Context>,
    rank: usize,
    ranks: usize,
}

impl std::fmt::Debug for World {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(formatter, "rank {} of {}", self.rank, self.ranks)
    }
}

// SAFETY: the handle is used by one thread at a time, as its owner's stream is.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl World {
    /// Makes the GPU one of several; returns when all have come. The id that they find each other by is rank 0's, and goes
    /// to the others by the words of `ranks`.
    ///
    /// # Errors
    ///
    /// When NCCL is missing, two ranks are on one GPU, or the others cannot be reached.
    pub(crate) fn join(
        context: &Arc<Context>,
        libraries: &Libraries,
        ranks: &dyn Communicator,
    ) -> Result<World, ExecError> {
        let functions = libraries.exchanges().and_then(|library| Functions::find(library).ok()).ok_or_else(|| {
            ExecError::Unsupported(
                "ranks on GPUs need NCCL (libnccl.so.2), which is missing; to install it: pip install nvidia-nccl-cu13"
                    .into(),
            )
        })?;
        let mut id = WorldId([0; 128]);
        if ranks.rank() == 0 {
            // SAFETY: an out-parameter that lives here.
            functions.ok(unsafe { (functions.get_unique_id)(&raw mut id) }, "beginning a world")?;
        }
        ranks.broadcast(&mut id.0)?;
        context.enter()?;
        let (rank, ranks, mut handle) = (ranks.rank(), ranks.ranks(), std::ptr::null_mut());
        // SAFETY: an out-parameter that lives here; the GPU's context is current.
        let status = unsafe { (functions.init)(&raw mut handle, ranks as c_int, id, rank as c_int) };
        functions.ok(status, "joining the other ranks")?;
        Ok(World { functions, handle, context: Arc::clone(context), rank, ranks })
    }

    /// Queues an exchange of bytes at two addresses.
    ///
    /// # Safety
    ///
    /// Both ranges are valid until the stream has passed the exchange, and nothing else writes them meanwhile.
    pub(crate) unsafe fn queue(
        &self,
        exchange: &RankExchange,
        (source, destination): (u64, u64),
        stream: &Stream,
    ) -> Result<(), ExecError> {
        self.context.enter()?;
        let kind = kind_of(exchange.dtype)?;
        let (from, to, stream) = (source as Raw, destination as Raw, stream.raw().cast());
        let Functions { all_reduce, reduce_scatter, all_gather, .. } = self.functions;
        let RankExchange { collective, whole, share, .. } = *exchange;
        let even = share * self.ranks == whole;
        // SAFETY: the caller's promise.
        let status = unsafe {
            match collective {
                Collective::AllReduce { .. } => all_reduce(from, to, whole, kind, SUM, self.handle, stream),
                Collective::ReduceScatter { .. } if even => {
                    reduce_scatter(from, to, share, kind, SUM, self.handle, stream)
                }
                Collective::AllGather { .. } if even => {
                    all_gather(from, to, share, kind, self.handle, stream)
                }
                _ => return self.in_parts(exchange, (source, destination), stream),
            }
        };
        self.functions.ok(status, collective.name())
    }

    /// A scatter or a gather whose shards do not end with the whole: a sum to each rank, or a broadcast from each.
    ///
    /// # Safety
    ///
    /// As [`queue`](Self::queue).
    unsafe fn in_parts(
        &self,
        exchange: &RankExchange,
        (source, destination): (u64, u64),
        stream: Raw,
    ) -> Result<(), ExecError> {
        let Functions { group_start, group_end, reduce, broadcast, .. } = self.functions;
        let (kind, bytes) = (kind_of(exchange.dtype)?, exchange.dtype.bytes());
        // SAFETY: no operands.
        self.functions.ok(unsafe { group_start() }, "beginning a group")?;
        let mut queued = Ok(());
        for rank in 0..self.ranks {
            let (first, count) = exchange.part(rank);
            let at = (first * bytes) as u64;
            // SAFETY: the caller's promise; parts lie inside the whole, and a part of none is left out.
            let status = unsafe {
                match exchange.collective {
                    _ if count == 0 => continue,
                    Collective::ReduceScatter { .. } => reduce(
                        (source + at) as Raw,
                        destination as Raw,
                        count,
                        kind,
                        SUM,
                        rank as c_int,
                        self.handle,
                        stream,
                    ),
                    _ => broadcast(
                        source as Raw,
                        (destination + at) as Raw,
                        count,
                        kind,
                        rank as c_int,
                        self.handle,
                        stream,
                    ),
                }
            };
            queued = queued.and_then(|()| self.functions.ok(status, exchange.collective.name()));
        }
        // SAFETY: no operands. A group is ended also after a fault.
        let ended = self.functions.ok(unsafe { group_end() }, "ending a group");
        queued.and(ended)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once. Other ranks may be gone, so nothing is waited for.
            unsafe { (self.functions.abort)(self.handle) };
        }
    }
}

fn kind_of(dtype: DType) -> Result<c_int, ExecError> {
    match dtype {
        DType::F32 => Ok(FLOAT),
        DType::Bf16 => Ok(BFLOAT),
        DType::U8 => Ok(BYTE),
        other => Err(ExecError::Unsupported(format!("GPUs exchange no {other}"))),
    }
}
