//! A disk that fails after the schedule has ended whose state it was to hold: whoever saves, evaluates or takes the next step
//! gets the error, and no old moment is read as if it were the newest. The limit on file sizes holds for the process, so this
//! test has a file of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "limits of the process are set by system calls")]

use plimsoll_exec::Engine;
use plimsoll_plan::Role;

#[path = "support/streaming.rs"]
mod streaming;
use streaming::{WIDTH, device, pass, streaming};

/// Lets files of this process grow to `bytes`, and has writes beyond fail instead of ending the process.
fn limit_files(bytes: libc::rlim_t) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: ignoring a signal needs no handler, and the struct is ours.
    let set = unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit);
        limit.rlim_cur = bytes.min(limit.rlim_max);
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit)
    };
    assert_eq!(set, 0);
}

#[test]
fn an_open_transfer_that_fails_is_the_error_of_whatever_comes_next() {
    let choice = streaming();
    let read = |engine: &Engine, name: &str| {
        let mut values = vec![0.0; WIDTH * WIDTH];
        engine.read_state(name, 0, &mut values)
    };
    for next in [None, Some(Role::First), Some(Role::Evaluate)] {
        let mut engine = Engine::new(Box::new(device()), &choice.program, &choice.plan, 1).unwrap();
        pass(&mut engine, Role::First).unwrap();
        limit_files(4096);
        let ended = pass(&mut engine, Role::Update);
        let error = match next {
            None => read(&engine, "m"),
            Some(role) => ended.and_then(|()| pass(&mut engine, role)),
        };
        // What has not reached the disk by now has failed.
        let saved = read(&engine, "m");
        limit_files(libc::RLIM_INFINITY);
        for error in [error, saved, read(&engine, "v")] {
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with("cannot write to the offload file: "), "{error}");
        }
    }
}
