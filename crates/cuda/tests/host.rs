//! Every kernel, compiled for the host, judged by the conformance cases.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use plimsoll_cuda::lower::Limits;
use plimsoll_exec::cases;
use plimsoll_exec::conformance::judge;
use plimsoll_plan::Scratch;
use support::{HostDevice, host_kernels};

/// Limits that cut a head of a few rows into chunks.
const SMALL: Limits = Limits { head_bytes: 0, head_rows: 3 };

fn faults(limits: Limits, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let Some(kernels) = host_kernels() else { return Vec::new() };
    let mut device = HostDevice::new(kernels, limits);
    let cases = cases::all().into_iter().filter(|case| wanted(case.op.name()));
    cases.filter_map(|case| judge(&mut device, &case, Scratch::Best).err()).collect()
}

#[test]
fn every_case_holds_with_kernels_built_for_the_host() {
    let faults = faults(Limits::default(), |_| true);
    assert!(faults.is_empty(), "{}:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn a_head_in_chunks_of_three_rows_gives_the_same_loss_and_gradients() {
    let faults = faults(SMALL, |op| op.starts_with("head_loss"));
    assert!(faults.is_empty(), "{}:\n{}", faults.len(), faults.join("\n"));
}
