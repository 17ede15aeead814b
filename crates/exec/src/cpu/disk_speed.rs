//! The speed of a disk, by a short trial through the tier that runs will use.
//!
//! The answer goes to the planner as data. It is rounded to a quarter of an octave, so that the same disk gives
//! the same plan from one day to the next.

#![allow(unsafe_code, reason = "it hands a buffer of its own to the disk tier")]

use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll_plan::{Direction, Link, Tier};

use crate::ExecError;
use crate::cpu::bounce::{BOUNCE, Bounce};
use crate::cpu::disk::{BLOCK, DiskTier};
use crate::cpu::free_disk_bytes;

/// Bytes of one transfer of the trial, and the most transfers each way.
const PIECE: u64 = BOUNCE as u64;
const PIECES: u64 = 64;
/// The fewest transfers that say anything.
const LEAST: u64 = 4;
/// Time after which one direction has been measured enough.
const ENOUGH: Duration = Duration::from_millis(250);
/// Small transfers, which show the fixed cost of a transfer.
const SMALL: u64 = 16;
/// The share of free space that is left to others when the user states no limit.
const LEFT_TO_OTHERS: u64 = 10;

/// A disk as the planner sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskSpeed {
    /// Rates and room.
    pub link: Link,
    /// Whether the page cache was bypassed. If not, the rates are partly those of memory, and the kernel may keep
    /// copies that no budget counts.
    pub direct: bool,
}

/// Measures the disk that holds `folder` for runs of `threads` threads. Without `room`, a tenth of its free space is
/// left to other programs.
///
/// # Errors
///
/// When the folder cannot hold a file, or the disk fails.
pub fn measure_disk(folder: &Path, room: Option<u64>, threads: usize) -> Result<DiskSpeed, ExecError> {
    // The trial takes no more room than a run may.
    let pieces = room.map_or(PIECES, |stated| (stated / PIECE).clamp(LEAST, PIECES));
    let tier = DiskTier::create(folder, pieces * PIECE, pieces as usize)?;
    let room = disk_room(folder, room)?;
    let mut memory = Bounce::new();
    let piece = memory.bytes();
    piece.fill(0x5a);
    let written = trial(&tier, Direction::Out, piece, pieces, PIECE)?;
    let read = trial(&tier, Direction::In, piece, written.transfers, PIECE)?;
    let small = trial(&tier, Direction::Out, piece, SMALL, BLOCK)?;
    let link = Link {
        tier: Tier::Disk,
        room,
        block: BLOCK,
        out_rate: rounded(written.rate(PIECE)),
        in_rate: rounded(read.rate(PIECE)),
        latency: rounded(small.seconds / small.transfers as f64),
        toll: toll([&written, &read], threads),
    };
    Ok(DiskSpeed { link, direct: tier.bypasses_page_cache() })
}

/// The result of a trial.
struct Trial {
    transfers: u64,
    seconds: f64,
    /// Time of processors.
    busy_seconds: f64,
}

impl Trial {
    fn rate(&self, bytes: u64) -> f64 {
        (self.transfers * bytes) as f64 / self.seconds.max(1e-9)
    }
}

/// Moves up to `most` pieces of `bytes` bytes, one after another.
fn trial(
    tier: &DiskTier,
    direction: Direction,
    piece: &mut [u8],
    most: u64,
    bytes: u64,
) -> Result<Trial, ExecError> {
    let (clock, busy) = (Instant::now(), processor_seconds());
    let mut transfers = 0;
    while transfers < most && (transfers < LEAST || clock.elapsed() < ENOUGH) {
        // SAFETY: the piece has this many bytes and is borrowed until the wait on the next line.
        let number = unsafe { tier.start(direction, piece.as_mut_ptr(), bytes, transfers * bytes) }?;
        tier.wait(direction, number)?;
        transfers += 1;
    }
    let busy_seconds = processor_seconds() - busy;
    Ok(Trial { transfers, seconds: clock.elapsed().as_secs_f64(), busy_seconds })
}

/// Processor time per byte, divided among the computing threads; 0 if a core is left to move the bytes.
fn toll(ways: [&Trial; 2], threads: usize) -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if threads < cores {
        return 0.0;
    }
    let busy: f64 = ways.iter().map(|way| way.busy_seconds).sum();
    let bytes: u64 = ways.iter().map(|way| way.transfers * PIECE).sum();
    rounded(1e9 * busy / bytes as f64 / threads as f64) / 1e9
}

/// Time of all processors that this process has had, in seconds.
fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is ours. Where there is no such clock it stays zero, and nothing is charged.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

/// The nearest quarter of an octave.
fn rounded(number: f64) -> f64 {
    ((number.max(1e-9).log2() * 4.0).round() / 4.0).exp2()
}

/// Bytes of the disk that holds `folder` that may be used: as `stated`, or nine tenths of the free space.
///
/// # Errors
///
/// When the file system does not say how much is free.
pub fn disk_room(folder: &Path, stated: Option<u64>) -> Result<u64, ExecError> {
    if let Some(stated) = stated {
        return Ok(stated);
    }
    let free = free_disk_bytes(folder).map_err(|error| {
        ExecError::Device(format!("cannot ask for the free space of {}: {error}", folder.display()))
    })?;
    Ok(free - free / LEFT_TO_OTHERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_gives_rates_of_a_disk_and_all_the_room_that_was_stated() {
        let DiskSpeed { link, .. } =
            measure_disk(&std::env::temp_dir(), Some(123 << 20), usize::MAX).unwrap();
        assert_eq!((link.tier, link.room, link.block), (Tier::Disk, 123 << 20, BLOCK));
        for rate in [link.out_rate, link.in_rate] {
            assert!((1e5..1e12).contains(&rate), "{rate} bytes a second");
            assert_eq!(rounded(rate).to_bits(), rate.to_bits(), "rounded once and for all");
        }
        assert!(link.latency > 0.0 && link.latency < 1.0);
        assert!(
            link.toll >= 0.0 && link.toll * link.out_rate < 2.0,
            "two lanes: {} seconds a byte",
            link.toll
        );
    }

    #[test]
    fn whoever_computes_on_all_cores_loses_what_transfers_take_and_others_lose_nothing() {
        let way = Trial { transfers: 1, seconds: 1.0, busy_seconds: 0.5 };
        let lost = toll([&way; 2], 1 << 20) * (1 << 20) as f64 * PIECE as f64;
        assert!((0.45..0.55).contains(&lost), "half a second a piece, shared by all: {lost}");
        assert!(toll([&way; 2], 0) <= 0.0);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = measure_disk(Path::new("/no/such/folder"), None, 1).unwrap_err();
        assert!(error.to_string().contains("/no/such/folder"), "{error}");
    }
}
