//! The disk as a tier: buffers leave the arena for a file and come back, while kernels run.
//!
//! ```text
//! arena ──────────────write──────────────▶ file      one thread for what goes out
//! arena ◀─────────────read──────────────── file      one thread for what comes in
//!       ──copy──  bounce buffer  ──────────          the part of a block at the end, and what is not aligned
//! ```
//!
//! The file is reserved in full before the first step, so that a full disk is an error at the start. It has no name, so
//! that nothing is left behind in any case. It is opened past the page cache if the file system allows it: cached pages
//! would be memory that no budget counts. That requires aligned memory. A device with a disk gives its buffers the
//! alignment that most file systems accept ([`SECTOR`]), so that no processor copies them; the bounce buffers are
//! aligned for all.
//!
//! Each direction is a lane of the plan: a queue whose transfers run in the order they were started, even across
//! schedules. Nothing allocates after construction. Absent: deciding what is offloaded and when, which is the planner's
//! task.
#![allow(
    unsafe_code,
    reason = "a transfer is an address and a length; `replay` proved the bytes busy until waited for"
)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use plimsoll_plan::Direction;

use super::bounce::{BOUNCE, Bounce};
use super::disk_file::{open, reserve};
use crate::ExecError;

/// Offsets in the file and lengths of transfers are multiples of this, as direct I/O requires.
pub const BLOCK: u64 = 4096;
/// The alignment of memory that most direct I/O requires.
pub(crate) const SECTOR: u64 = 512;
/// Stack of an I/O thread, which only moves bytes.
const STACK_BYTES: usize = 128 << 10;

/// Memory this tier takes outside the arena.
pub const OUTSIDE_BYTES: u64 = 2 * (BOUNCE + STACK_BYTES) as u64;

/// A file that buffers are sent to and fetched from.
#[derive(Debug)]
pub struct DiskTier {
    out: Lane,
    inward: Lane,
    direct: bool,
}

impl DiskTier {
    /// Reserves `bytes` in a nameless file in `folder`, for at most `transfers` transfers under way in each
    /// direction.
    ///
    /// # Errors
    ///
    /// When the folder cannot hold such a file, with the reason the system gives.
    pub fn create(folder: &Path, bytes: u64, transfers: usize) -> Result<DiskTier, ExecError> {
        let bytes = bytes.next_multiple_of(BLOCK).max(BLOCK);
        let (file, direct) = open(folder)?;
        reserve(&file, folder, bytes, Bounce::new().bytes()).map_err(|error| {
            let folder = folder.display();
            ExecError::Device(format!(
                "cannot reserve {bytes} bytes for offload in {folder}: {error}; name another folder with --offload-folder"
            ))
        })?;
        let memory = memory_alignment(&file, direct);
        let ends = Arc::new(Ends { file, memory });
        Ok(DiskTier {
            out: Lane::start(Direction::Out, Arc::clone(&ends), transfers)?,
            inward: Lane::start(Direction::In, ends, transfers)?,
            direct,
        })
    }

    /// Whether transfers go past the page cache. Where not, the kernel may keep copies in memory that no
    /// budget counts.
    pub fn bypasses_page_cache(&self) -> bool {
        self.direct
    }

    /// Begins a transfer of `bytes` bytes between `address` and `offset` of the file and returns its
    /// number in its direction.
    ///
    /// # Errors
    ///
    /// When more transfers are under way than the tier was made for, or the disk has failed.
    ///
    /// # Safety
    ///
    /// The bytes at `address` stay valid until the transfer was waited for. Until then nothing writes them, and if they
    /// are being read in nothing reads them.
    pub unsafe fn start(
        &self,
        direction: Direction,
        address: *mut u8,
        bytes: u64,
        offset: u64,
    ) -> Result<u64, ExecError> {
        self.lane(direction).push(Transfer { address, bytes: bytes as usize, offset })
    }

    /// Waits until transfer `number` of its direction is done.
    ///
    /// # Errors
    ///
    /// When the disk failed.
    pub fn wait(&self, direction: Direction, number: u64) -> Result<(), ExecError> {
        self.lane(direction).wait(number)
    }

    /// How many transfers of a direction were started so far: the number of the next.
    pub fn started(&self, direction: Direction) -> u64 {
        self.lane(direction).shared.lock().started
    }

    /// Returns an error if one of the first `count` transfers of a direction has failed.
    ///
    /// # Errors
    ///
    /// The fault of the disk.
    pub fn reached(&self, direction: Direction, count: u64) -> Result<(), ExecError> {
        let state = self.lane(direction).shared.lock();
        match state.fault.as_ref().filter(|_| state.done < count) {
            Some(fault) => Err(ExecError::Device(fault.clone())),
            None => Ok(()),
        }
    }

    /// Waits until nothing is under way, be it because a disk failed: then the bytes of all transfers are free.
    pub fn drain(&self) {
        for lane in [&self.out, &self.inward] {
            lane.drain();
        }
    }

    /// Waits until no transfer of a direction touches these addresses.
    pub(super) fn free(&self, direction: Direction, addresses: Range<usize>) {
        self.lane(direction).free(&addresses);
    }

    fn lane(&self, direction: Direction) -> &Lane {
        match direction {
            Direction::Out => &self.out,
            Direction::In => &self.inward,
        }
    }
}

/// One transfer under way.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    address: *mut u8,
    bytes: usize,
    offset: u64,
}

// SAFETY: the address is only used by the lane's thread between start and wait, and whoever started the
// transfer promised to leave the bytes alone for that long.
unsafe impl Send for Transfer {}

/// The file, and its requirements on the other end.
#[derive(Debug)]
struct Ends {
    file: File,
    /// A copy needs no bounce buffer if its address in memory is a multiple of this number.
    memory: usize,
}

/// One direction: a ring of transfers and the thread that works through it.
#[derive(Debug)]
struct Lane {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Transfer `number` lies at `number % ring.len()`.
    ring: Vec<Option<Transfer>>,
    started: u64,
    done: u64,
    fault: Option<String>,
    closing: bool,
}

impl Lane {
    fn start(direction: Direction, ends: Arc<Ends>, transfers: usize) -> Result<Lane, ExecError> {
        let state =
            State { ring: vec![None; transfers.max(1)], started: 0, done: 0, fault: None, closing: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("plimsoll-disk-{}", if direction == Direction::Out { "out" } else { "in" }))
            .stack_size(STACK_BYTES)
            .spawn(move || worker.work(direction, &ends, &mut Bounce::new()))
            .map_err(|error| ExecError::Device(format!("cannot start a thread for offload: {error}")))?;
        Ok(Lane { shared, thread: Some(thread) })
    }

    fn push(&self, transfer: Transfer) -> Result<u64, ExecError> {
        let mut state = self.shared.lock();
        if let Some(fault) = &state.fault {
            return Err(ExecError::Device(fault.clone()));
        }
        let place = (state.started % state.ring.len() as u64) as usize;
        if state.started - state.done >= state.ring.len() as u64 {
            return Err(ExecError::Device("more transfers under way than were planned".into()));
        }
        state.ring[place] = Some(transfer);
        state.started += 1;
        self.shared.changed.notify_all();
        Ok(state.started - 1)
    }

    fn wait(&self, number: u64) -> Result<(), ExecError> {
        let mut state = self.shared.lock();
        while state.done <= number && state.fault.is_none() {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match &state.fault {
            Some(fault) => Err(ExecError::Device(fault.clone())),
            None => Ok(()),
        }
    }

    fn drain(&self) {
        self.wait_while(|state| state.done < state.started);
    }

    fn free(&self, addresses: &Range<usize>) {
        self.wait_while(|state| state.touches(addresses));
    }

    /// Waits while this holds, or until the disk fails: then the lane's thread touches nothing any more.
    fn wait_while(&self, busy: impl Fn(&State) -> bool) {
        let mut state = self.shared.lock();
        while state.fault.is_none() && busy(&state) {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    /// Whether a transfer that is not done touches these addresses.
    fn touches(&self, addresses: &Range<usize>) -> bool {
        let mut under_way = (self.done..self.started)
            .filter_map(|number| self.ring[(number % self.ring.len() as u64) as usize].as_ref());
        under_way.any(|transfer| {
            let first = transfer.address.addr();
            first < addresses.end && addresses.start < first + transfer.bytes
        })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread can be ignored: the waiting side has seen the fault.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, direction: Direction, ends: &Ends, bounce: &mut Bounce) {
        while let Some(transfer) = self.next() {
            let result = transfer.run(direction, ends, bounce);
            let mut state = self.lock();
            match result {
                Ok(()) => state.done += 1,
                Err(error) => {
                    let verb = if direction == Direction::Out { "write to" } else { "read from" };
                    state.fault = Some(format!("cannot {verb} the offload file: {error}"));
                }
            }
            self.changed.notify_all();
            if state.fault.is_some() {
                return;
            }
        }
    }

    /// The oldest transfer that is not done, once there is one; none when the tier closes.
    fn next(&self) -> Option<Transfer> {
        let mut state = self.lock();
        loop {
            if state.done < state.started {
                let place = (state.done % state.ring.len() as u64) as usize;
                return state.ring[place];
            }
            if state.closing {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Transfer {
    /// Moves whole blocks straight between arena and file where the address allows it, and the rest a bounce buffer
    /// at a time. The last piece is rounded up to whole blocks.
    fn run(&self, direction: Direction, ends: &Ends, bounce: &mut Bounce) -> io::Result<()> {
        let aligned = self.address.addr().is_multiple_of(ends.memory);
        let straight = if aligned { self.bytes / BLOCK as usize * BLOCK as usize } else { 0 };
        match direction {
            Direction::Out => {
                // SAFETY: within the transfer, whose bytes nobody writes until it was waited for.
                let blocks = unsafe { std::slice::from_raw_parts(self.address, straight) };
                ends.file.write_all_at(blocks, self.offset)?;
            }
            Direction::In => {
                // SAFETY: within the transfer, whose bytes are ours alone until it was waited for.
                let blocks = unsafe { std::slice::from_raw_parts_mut(self.address, straight) };
                ends.file.read_exact_at(blocks, self.offset)?;
            }
        }
        for first in (straight..self.bytes).step_by(BOUNCE) {
            let bytes = BOUNCE.min(self.bytes - first);
            let blocks = &mut bounce.bytes()[..bytes.next_multiple_of(BLOCK as usize)];
            let offset = self.offset + first as u64;
            // SAFETY: `first + bytes` is within the transfer, whose bytes are ours until it was waited for.
            let place = unsafe { self.address.add(first) };
            match direction {
                Direction::Out => {
                    // SAFETY: as above; the bounce buffer is another allocation.
                    unsafe { place.copy_to_nonoverlapping(blocks.as_mut_ptr(), bytes) };
                    ends.file.write_all_at(blocks, offset)?;
                }
                Direction::In => {
                    ends.file.read_exact_at(blocks, offset)?;
                    // SAFETY: as above.
                    unsafe { place.copy_from_nonoverlapping(blocks.as_ptr(), bytes) };
                }
            }
        }
        Ok(())
    }
}

/// The alignment of memory for direct I/O, found by writing a block: the reserved file holds nothing yet.
fn memory_alignment(file: &File, direct: bool) -> usize {
    if !direct {
        return 1;
    }
    let mut memory = Bounce::new();
    let block = &memory.bytes()[SECTOR as usize..][..BLOCK as usize];
    match file.write_all_at(block, 0) {
        Ok(()) => SECTOR as usize,
        Err(_) => BLOCK as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> std::path::PathBuf {
        std::env::temp_dir()
    }

    /// Sends and fetches through a tier; the vectors outlive the waits.
    fn round_trip(tier: &DiskTier, data: &mut [u8], offset: u64) -> Vec<u8> {
        let bytes = data.len() as u64;
        // SAFETY: `data` lives and is left alone until the wait below.
        let out = unsafe { tier.start(Direction::Out, data.as_mut_ptr(), bytes, offset) }.unwrap();
        tier.wait(Direction::Out, out).unwrap();
        let mut back = vec![0; data.len()];
        // SAFETY: as above.
        let number = unsafe { tier.start(Direction::In, back.as_mut_ptr(), bytes, offset) }.unwrap();
        tier.wait(Direction::In, number).unwrap();
        back
    }

    #[test]
    fn what_goes_out_comes_back_whatever_its_length() {
        let tier = DiskTier::create(&folder(), 8 << 20, 4).unwrap();
        for length in [1, 64, 4096, 4100, BOUNCE - 1, BOUNCE, BOUNCE + 1, 3 * BOUNCE + 77] {
            let mut data: Vec<u8> = (0..length).map(|i| (i * 31 % 251) as u8).collect();
            assert_eq!(round_trip(&tier, &mut data, BLOCK), data, "{length} bytes");
        }
    }

    #[test]
    fn wherever_bytes_lie_in_memory_they_come_back() {
        let tier = DiskTier::create(&folder(), 8 << 20, 4).unwrap();
        let length = BOUNCE + 5 * BLOCK as usize + 123;
        let mut memory = vec![0; length + 2 * BLOCK as usize];
        let page = memory.as_ptr().align_offset(BLOCK as usize);
        for place in [0, 64, 512, 520, 1024] {
            let data = &mut memory[page + place..][..length];
            data.iter_mut().zip(place..).for_each(|(byte, i)| *byte = (i * 37 % 253) as u8);
            assert_eq!(round_trip(&tier, data, 3 * BLOCK), data, "{place} bytes behind a page");
        }
    }

    #[test]
    fn many_transfers_keep_their_order_and_their_places() {
        let tier = DiskTier::create(&folder(), 64 * BLOCK, 64).unwrap();
        let mut values: Vec<Vec<u8>> = (0..64u8).map(|i| vec![i; 1000]).collect();
        let mut numbers = Vec::new();
        for (value, i) in values.iter_mut().zip(0..) {
            // SAFETY: the vectors live and are left alone until the waits below.
            let number = unsafe { tier.start(Direction::Out, value.as_mut_ptr(), 1000, i * BLOCK) };
            numbers.push(number.unwrap());
        }
        for number in numbers {
            tier.wait(Direction::Out, number).unwrap();
        }
        let mut back = vec![vec![0; 1000]; 64];
        for (value, i) in back.iter_mut().zip(0..) {
            // SAFETY: as above.
            let number = unsafe { tier.start(Direction::In, value.as_mut_ptr(), 1000, i * BLOCK) }.unwrap();
            tier.wait(Direction::In, number).unwrap();
        }
        assert_eq!(back, values);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = DiskTier::create(Path::new("/no/such/folder"), 1, 1).unwrap_err();
        assert!(error.to_string().contains("/no/such/folder"), "{error}");
    }

    #[test]
    fn more_than_the_disk_holds_is_refused_before_anything_runs() {
        let error = DiskTier::create(&folder(), 1 << 60, 1).unwrap_err();
        assert!(error.to_string().starts_with("cannot reserve"), "{error}");
    }

    #[test]
    fn more_transfers_than_planned_are_refused() {
        let tier = DiskTier::create(&folder(), 16 << 20, 1).unwrap();
        let mut data = vec![7; 16 << 20];
        let mut refused = false;
        let mut last = None;
        for _ in 0..4 {
            // SAFETY: the vector lives and is left alone until the wait below.
            match unsafe { tier.start(Direction::Out, data.as_mut_ptr(), 16 << 20, 0) } {
                Ok(number) => last = Some(number),
                Err(_) => refused = true,
            }
        }
        tier.wait(Direction::Out, last.unwrap()).unwrap();
        assert!(refused, "four transfers at once went through a tier made for one");
    }

    #[test]
    fn a_disk_that_fails_is_one_error_for_all_who_wait_and_holds_nobody_up() {
        let tier = DiskTier::create(&folder(), BLOCK, 4).unwrap();
        let mut place = [0_u8; 100];
        let beyond_the_file = 1 << 20;
        // SAFETY: the array lives and is left alone until the waits below.
        let start = || unsafe { tier.start(Direction::In, place.as_ptr().cast_mut(), 100, beyond_the_file) };
        // A disk that has failed before the second transfer is started refuses it with the same error.
        let both = [start(), start()];
        assert!(both[0].is_ok());
        for started in both {
            let waited = started.and_then(|number| tier.wait(Direction::In, number));
            let error = waited.unwrap_err().to_string();
            assert!(error.starts_with("cannot read from the offload file"), "{error}");
        }
        tier.drain();
        place.fill(1);
    }
}
