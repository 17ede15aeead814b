//! Foreign files are read behind a guard. More memory than the budget has, a stack overflow, work that never ends, a
//! panic or an abort in a parser: each ends the program with one error that names the file.
//!
//! ```text
//! raise ──▶ files are read ──▶ lower ──▶ planning, the arena, training
//!            allocator   asks the kernel what is resident, before memory is taken
//!            watch       a thread that looks whether the reading gets on
//!            signals     stack overflow, abort
//!            panic hook  panics that are not caught
//! ```
//!
//! Ending there is crude but right: nothing was trained so far, and nothing that was saved is touched. Once the guard
//! is lowered, its cost is one check of a flag per allocation. See
//! `docs/decisions/0018-files-are-read-behind-a-guard.md`.

mod allocator;
mod ending;
mod signals;
mod watch;

use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use plimsoll::training::RawConfig;
use plimsoll::training::memory;
use plimsoll::training::memory::Size;

use crate::exit::Failure;

/// Whether foreign files are being read.
static RAISED: AtomicBool = AtomicBool::new(false);
/// The most bytes that may be resident meanwhile.
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);
/// The budget that was stated, or 0.
static STATED: AtomicU64 = AtomicU64::new(0);

/// Files may always take this much more than the program holds when it begins to read. So a budget that is too small
/// for anything gets its own error instead of blaming a file. A small tokenizer takes 9 MiB.
const LEAST: u64 = 12 << 20;

/// Raises the guard with a budget as the user wrote it; without one, files may take all free memory of the machine.
pub(crate) fn raise(memory: Option<&str>) -> Result<(), Failure> {
    let stated = memory.filter(|&text| text != "auto").map(str::parse::<Size>).transpose();
    let stated = stated.map_err(|why| plimsoll::TrainError::Config(why.to_string()))?.map(|size| size.bytes);
    let held = memory::process().map_or(0, |process| process.resident);
    let free = || memory::available().map_or(u64::MAX, |free| held.saturating_add(free));
    STATED.store(stated.unwrap_or(0), Relaxed);
    LIMIT.store(stated.map_or_else(free, |stated| stated.max(held + LEAST)), Relaxed);
    install();
    RAISED.store(true, Relaxed);
    Ok(())
}

/// Raises the guard for a run with these settings. The budget of another device says nothing about this process.
pub(crate) fn raise_for(raw: &RawConfig) -> Result<(), Failure> {
    let here = raw.device.as_deref().is_none_or(|device| device == "cpu");
    raise(raw.memory.as_deref().filter(|_| here))
}

/// Raises the guard again, with the budget it had.
pub(crate) fn raise_again() {
    RAISED.store(LIMIT.load(Relaxed) != u64::MAX, Relaxed);
}

/// Ends the reading of foreign files.
pub(crate) fn lower() {
    RAISED.store(false, Relaxed);
}

fn is_raised() -> bool {
    RAISED.load(Relaxed)
}

fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        allocator::prepare();
        signals::install();
        watch::start();
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if is_raised() {
                ending::end(&ending::Why::Panicked(info.payload_as_str().unwrap_or("it fails")));
            }
            usual(info);
        }));
    });
}
