//! NCCL, the library by which GPUs exchange values: its functions by name, and one member of a world of GPUs.
//!
//! Shards are filled up, the tensors they are parts of are not. So where the shards do not end with the tensor, a scatter
//! is a group of sums, one to each rank, and a gather a group of broadcasts: no bytes beside the operands are needed.
#![allow(unsafe_code, reason = "calls NCCL")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys as cuda;
use libloading::os::unix::Library as Shared;
use plimsoll_exec::ExecError;
use plimsoll_graph::DType;
use plimsoll_graph::op::Collective;

use super::libraries::{Refusal, Wanted};
use super::symbols::named;
use super::{Context, Libraries, version_text};
use crate::lower::RankExchange;

/// The oldest version that sums bf16 and can be recorded in a graph, as 10,000 · major + 100 · minor.
const OLDEST: usize = 21_000;

const NCCL: Wanted =
    Wanted { name: "NCCL", package: "nvidia-nccl-cu13", file: "libnccl.so.2", before: None, otherwise: "" };

type Raw = *mut c_void;
type Status = c_int;

const FLOAT: c_int = 7;
const BFLOAT: c_int = 9;
const BYTE: c_int = 1;
const SUM: c_int = 0;

/// The id by which the ranks of a world find each other, which NCCL takes by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct WorldId(pub(super) [u8; 128]);

/// The functions, by the names they have in the library.
#[derive(Clone, Copy, Debug)]
struct Functions {
    version: unsafe extern "C" fn(*mut c_int) -> Status,
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
}

impl Functions {
    /// The functions of a library, or the name of the first that it lacks.
    fn find(library: &Shared) -> Result<Functions, &'static str> {
        // SAFETY: the types are those of the library's header.
        unsafe {
            Ok(Functions {
                version: named(library, "ncclGetVersion")?,
                get_unique_id: named(library, "ncclGetUniqueId")?,
                init: named(library, "ncclCommInitRank")?,
                abort: named(library, "ncclCommAbort")?,
                error_string: named(library, "ncclGetErrorString")?,
                group_start: named(library, "ncclGroupStart")?,
                group_end: named(library, "ncclGroupEnd")?,
                all_reduce: named(library, "ncclAllReduce")?,
                reduce: named(library, "ncclReduce")?,
                broadcast: named(library, "ncclBroadcast")?,
                reduce_scatter: named(library, "ncclReduceScatter")?,
                all_gather: named(library, "ncclAllGather")?,
            })
        }
    }

    fn ok(&self, status: Status, doing: &str) -> Result<(), ExecError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a text that lives as long as the library.
        let why = unsafe { CStr::from_ptr((self.error_string)(status)) }.to_string_lossy();
        Err(ExecError::Device(format!(
            "NCCL failed: {doing}: {why}; with the environment variable NCCL_DEBUG=WARN it says more"
        )))
    }
}

/// The library, which stays open until the process ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nccl {
    functions: Functions,
    version: usize,
}

impl Nccl {
    /// The first NCCL that can be used.
    ///
    /// # Errors
    ///
    /// When there is none, with the reason and the way out.
    pub(crate) fn open(libraries: &Libraries) -> Result<Nccl, ExecError> {
        libraries.first_usable(&NCCL, usable)
    }

    /// The version as people write it.
    pub(crate) fn version(&self) -> String {
        version_text(self.version, 10_000, 100)
    }

    /// An id for a new world.
    pub(super) fn world_id(&self) -> Result<WorldId, ExecError> {
        let mut id = WorldId([0; 128]);
        // SAFETY: an out-parameter that lives here.
        self.functions.ok(unsafe { (self.functions.get_unique_id)(&raw mut id) }, "beginning a world")?;
        Ok(id)
    }

    /// Makes a GPU member `rank` of a world of `ranks`; returns when all have come.
    pub(super) fn join(
        &self,
        context: &Arc<Context>,
        id: WorldId,
        [rank, ranks]: [usize; 2],
    ) -> Result<Member, ExecError> {
        context.enter()?;
        let (functions, mut handle) = (self.functions, std::ptr::null_mut());
        // SAFETY: an out-parameter that lives here; the GPU's context is current.
        let status = unsafe { (functions.init)(&raw mut handle, ranks as c_int, id, rank as c_int) };
        functions.ok(status, "joining the other ranks")?;
        Ok(Member { functions, handle, context: Arc::clone(context), ranks, ended: AtomicBool::new(false) })
    }
}

fn usable(library: &Shared) -> Result<Nccl, Refusal> {
    let functions = Functions::find(library).map_err(Refusal::Lacks)?;
    let mut version = 0;
    // SAFETY: an out-parameter that lives here.
    let told = unsafe { (functions.version)(&raw mut version) };
    let version = if told == 0 { version as usize } else { 0 };
    if version < OLDEST {
        let text = |version| version_text(version, 10_000, 100);
        return Err(Refusal::Old { version: text(version), oldest: text(OLDEST) });
    }
    Ok(Nccl { functions, version })
}

/// One GPU in a world.
pub(super) struct Member {
    functions: Functions,
    handle: Raw,
    context: Arc<Context>,
    ranks: usize,
    ended: AtomicBool,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(formatter, "one of {} GPUs", self.ranks)
    }
}

// SAFETY: exchanges are queued by one thread at a time, as the device's owner does; NCCL allows another thread to abort.
unsafe impl Send for Member {}
// SAFETY: as above.
unsafe impl Sync for Member {}

impl Member {
    /// Whether [`abort`](Self::abort) was called.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends exchanges that are under way, whether the other ranks come to them or not. Their results mean nothing.
    pub(super) fn abort(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) && self.context.enter().is_ok() {
            // SAFETY: made once, and aborted once. Other ranks may be gone, so nothing is waited for.
            unsafe { (self.functions.abort)(self.handle) };
        }
    }

    /// Queues an exchange of bytes at two addresses.
    ///
    /// # Safety
    ///
    /// Both ranges are valid until the stream has passed the exchange, and nothing else writes them meanwhile.
    pub(super) unsafe fn queue(
        &self,
        exchange: &RankExchange,
        (source, destination): (u64, u64),
        stream: cuda::CUstream,
    ) -> Result<(), ExecError> {
        let kind = kind_of(exchange.dtype)?;
        let (from, to, stream) = (source as Raw, destination as Raw, stream.cast());
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

impl Drop for Member {
    fn drop(&mut self) {
        self.abort();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::symbols::stand_in;

    /// The error for the only NCCL in a folder.
    fn refused(source: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        if !source.is_empty() {
            stand_in::library(folder.path(), "libnccl.so.2.99", source);
        }
        let libraries = Libraries { folders: vec![folder.path().to_owned()] };
        Nccl::open(&libraries).map(|nccl| nccl.version()).unwrap_err().to_string()
    }

    #[test]
    fn an_nccl_that_is_missing_old_or_of_another_make_is_told_with_the_way_out() {
        let why = refused("");
        assert!(
            why.starts_with("NCCL is missing: libnccl.so.2 was looked for on the loader's path"),
            "{why}"
        );
        assert!(why.ends_with("to install it: pip install nvidia-nccl-cu13"), "{why}");
        let why = refused("int ncclGetVersion(int* version) { *version = 20804; return 0; }");
        assert!(why.contains("it has no function ncclGetUniqueId"), "{why}");
        let names = ["GetUniqueId", "CommInitRank", "CommAbort", "GetErrorString", "GroupStart", "GroupEnd"];
        let names = names.iter().chain(&["AllReduce", "Reduce", "Broadcast", "ReduceScatter", "AllGather"]);
        let others: String = names.map(|name| stand_in::answers(&format!("nccl{name}"), 0)).collect();
        let why = refused(&format!("int ncclGetVersion(int* v) {{ *v = 20804; return 0; }}\n{others}"));
        assert!(why.contains("it is version 2.8.4, and 2.10.0 or newer is wanted"), "{why}");
    }
}
