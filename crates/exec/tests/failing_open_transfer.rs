//! A disk that fails after a schedule has ended and while the schedule's state is still on its way: saving, evaluating or
//! taking the next step gives the error, and no old moment is read as the newest. The limit on file sizes holds for the
//! process, so this test has a file of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_exec::Engine;
use plimsoll_plan::Role;

#[path = "support/streaming.rs"]
mod streaming;
use streaming::disk::{device, limit_files};
use streaming::{WIDTH, pass, streaming};

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
        // By now every open transfer has reached the disk or failed.
        let saved = read(&engine, "m");
        limit_files(libc::RLIM_INFINITY);
        for error in [error, saved, read(&engine, "v")] {
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with("cannot write to the offload file: "), "{error}");
        }
    }
}
