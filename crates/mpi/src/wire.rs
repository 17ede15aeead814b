//! Messages by MPI.
//!
//! Every call to MPI comes from the thread that began it, so any library that allows other threads beside will do. Messages
//! are sent and received without blocking, because a rank that was stopped in the middle of one must be found out.
//! Absent: MPI's own collectives. They add in an order of their own, and cannot name a rank that does not come.

#![allow(unsafe_code, reason = "MPI is a library of C")]

use std::os::raw::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use ::mpi::environment::{Threading, Universe, initialize_with_threading};
use ::mpi::ffi;
use ::mpi::traits::{AsRaw, Communicator as _};
use plimsoll_exec::{Communicator, ExecError, Wire, message_bytes, message_rank};
use zerocopy::IntoBytes;

/// The tag of all messages.
const TAG: c_int = 15;

/// This process's end of the world that a launcher of MPI has started, once in the life of a process. Waits until all
/// processes have begun MPI. A rank waits for the others for `limit` in an exchange.
///
/// # Errors
///
/// When MPI cannot be begun, or the system refuses a thread.
pub fn mpi_rank(limit: Duration) -> Result<Arc<dyn Communicator>, ExecError> {
    message_rank(limit, MpiWire::open)
}

/// Messages by MPI.
struct MpiWire {
    universe: Universe,
    world: ffi::MPI_Comm,
    rank: usize,
    ranks: usize,
    arenas_ahead: usize,
    inboxes: Vec<Inbox>,
    /// Messages under way.
    outgoing: Vec<Outgoing>,
    /// Buffers for further messages.
    free: Vec<Vec<u8>>,
}

/// The place of the next message of one rank.
struct Inbox {
    bytes: Vec<u64>,
    length: usize,
    under_way: Option<ffi::MPI_Request>,
}

/// A message that was sent and perhaps not taken.
struct Outgoing {
    to: usize,
    request: ffi::MPI_Request,
    bytes: Vec<u8>,
}

fn checked(code: c_int, call: &str) -> Result<(), String> {
    // The code of success is 0 by the standard.
    if code == 0 { Ok(()) } else { Err(format!("{call} of MPI failed with code {code}")) }
}

impl MpiWire {
    fn open() -> Result<MpiWire, ExecError> {
        let refused = |why: &str| ExecError::Device(format!("MPI cannot be begun: {why}"));
        let (universe, level) = initialize_with_threading(Threading::Funneled)
            .ok_or_else(|| refused("it was begun before in this process"))?;
        if level < Threading::Funneled {
            return Err(refused("its library allows no other threads in the process"));
        }
        let world = universe.world();
        let (rank, ranks) = (world.rank() as usize, world.size() as usize);
        let here = world.split_shared(0);
        let arenas_ahead = if here.rank() == 0 { here.size() as usize } else { 1 };
        let world = world.as_raw();
        // SAFETY: the communicator of the world lives as long as MPI.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(world, ffi::RSMPI_ERRORS_RETURN) };
        checked(code, "MPI_Comm_set_errhandler").map_err(|why| refused(&why))?;
        let words = message_bytes(ranks).div_ceil(size_of::<u64>());
        let inbox = |other: usize| Inbox {
            bytes: vec![0; if other == rank { 0 } else { words }],
            length: 0,
            under_way: None,
        };
        let inboxes = (0..ranks).map(inbox).collect();
        let (outgoing, free) = (Vec::with_capacity(2 * ranks), Vec::with_capacity(2 * ranks));
        Ok(MpiWire { universe, world, rank, ranks, arenas_ahead, inboxes, outgoing, free })
    }

    /// Begins to receive the next message of a rank, if there is one.
    fn begin(&mut self, from: usize) -> Result<(), String> {
        let (mut there, mut length) = (0, 0);
        // SAFETY: constants of the library.
        let (mut message, mut request) = unsafe { (ffi::RSMPI_MESSAGE_NULL, ffi::RSMPI_REQUEST_NULL) };
        // SAFETY: a status is plain data that MPI fills in, and places outlive the calls.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            let code = ffi::MPI_Improbe(
                from as c_int,
                TAG,
                self.world,
                &raw mut there,
                &raw mut message,
                &raw mut status,
            );
            checked(code, "MPI_Improbe")?;
            if there == 0 {
                return Ok(());
            }
            checked(
                ffi::MPI_Get_count(&raw const status, ffi::RSMPI_UINT8_T, &raw mut length),
                "MPI_Get_count",
            )?;
        }
        let inbox = &mut self.inboxes[from];
        let room = inbox.bytes.as_mut_slice().as_mut_bytes();
        if length < 0 || length as usize > room.len() {
            return Err(format!("rank {from} sent {length} bytes, more than any message has"));
        }
        // SAFETY: the inbox has room for the message and is left alone until the request is done; it is never freed
        // before MPI ends.
        let code = unsafe {
            let place = room.as_mut_ptr().cast::<c_void>();
            ffi::MPI_Imrecv(place, length, ffi::RSMPI_UINT8_T, &raw mut message, &raw mut request)
        };
        (inbox.length, inbox.under_way) = (length as usize, Some(request));
        checked(code, "MPI_Imrecv")
    }
}

/// Whether a request is done.
fn is_done(request: &mut ffi::MPI_Request) -> Result<bool, String> {
    let mut done = 0;
    // SAFETY: the request was begun and is not done, or it is null, which counts as done.
    let code = unsafe { ffi::MPI_Test(request, &raw mut done, ffi::RSMPI_STATUS_IGNORE) };
    checked(code, "MPI_Test")?;
    Ok(done != 0)
}

impl Wire for MpiWire {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn arenas_ahead(&self) -> usize {
        self.arenas_ahead
    }

    fn send(&mut self, to: usize, head: &[u8], body: &[u8]) -> Result<(), String> {
        let mut bytes = self.free.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(head);
        bytes.extend_from_slice(body);
        // SAFETY: a constant of the library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: the bytes of the vector stay where they are until the request is done, wherever the vector moves.
        let code = unsafe {
            let place = bytes.as_ptr().cast::<c_void>();
            let count = bytes.len() as c_int;
            ffi::MPI_Isend(place, count, ffi::RSMPI_UINT8_T, to as c_int, TAG, self.world, &raw mut request)
        };
        self.outgoing.push(Outgoing { to, request, bytes });
        checked(code, "MPI_Isend")
    }

    fn sending_to(&mut self) -> Result<Option<usize>, String> {
        let mut at = 0;
        while let Some(message) = self.outgoing.get_mut(at) {
            if is_done(&mut message.request)? {
                self.free.push(self.outgoing.swap_remove(at).bytes);
            } else {
                at += 1;
            }
        }
        Ok(self.outgoing.first().map(|message| message.to))
    }

    fn receive(&mut self, from: usize) -> Result<bool, String> {
        if self.inboxes[from].under_way.is_none() {
            self.begin(from)?;
        }
        let Some(request) = &mut self.inboxes[from].under_way else { return Ok(false) };
        let done = is_done(request)?;
        if done {
            self.inboxes[from].under_way = None;
        }
        Ok(done)
    }

    fn inbox(&self, from: usize) -> &[u8] {
        let inbox = &self.inboxes[from];
        &inbox.bytes.as_slice().as_bytes()[..inbox.length]
    }

    fn close(self) {
        // Ends MPI, together with all other ranks.
        drop(self.universe);
    }
}
