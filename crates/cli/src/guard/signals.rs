//! Processor faults and aborts while foreign files are read. At any other time they have their usual effect.
//!
//! The standard library has given every thread a second stack for this, and its own handler names the thread that
//! overflowed; that handler is put back and runs when the guard is down.
#![allow(unsafe_code, reason = "handlers of faults are set in libc")]

use std::mem;
use std::sync::OnceLock;

use super::ending::{self, Why};
use super::is_raised;

/// The signal handlers that were installed before ours.
static BEFORE: OnceLock<[(libc::c_int, libc::sigaction); 3]> = OnceLock::new();

pub(super) fn install() {
    let handled = [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT];
    let _ = BEFORE.set(handled.map(|signal| (signal, replace(signal))));
}

/// Sets our handler; returns the one before.
fn replace(signal: libc::c_int) -> libc::sigaction {
    // SAFETY: both structures are plain numbers, for which zero is a value; the handler calls nothing that is not allowed in
    // one; the flags let it run on the thread's second stack, as the first may be full.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = (mem::zeroed(), mem::zeroed());
        new.sa_sigaction = handle as *const () as libc::sighandler_t;
        new.sa_flags = libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigemptyset(&raw mut new.sa_mask);
        libc::sigaction(signal, &raw const new, &raw mut old);
        old
    }
}

extern "C" fn handle(signal: libc::c_int) {
    if is_raised() {
        ending::end(if signal == libc::SIGABRT { &Why::Aborted } else { &Why::Deep });
    }
    let before = BEFORE.get().and_then(|all| all.iter().find(|(of, _)| *of == signal));
    if let Some((_, before)) = before {
        // SAFETY: the structure came from the system. On return the fault or the abort happens again, and is handled as if
        // we had not been here.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    }
}
