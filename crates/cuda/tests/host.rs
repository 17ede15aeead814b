//! Every kernel, compiled for the host, judged by the conformance cases.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fetched;
mod prototypes;
mod support;

use plimsoll_cuda::lower::{DocumentForm, Limits};
use plimsoll_cuda::{faulty_cases, half_cases};
use plimsoll_devices::cpu;
use plimsoll_exec::cases::{self, Case};
use plimsoll_exec::conformance::judge;
use plimsoll_plan::Scratch;
use support::{HostDevice, host_kernels};

/// Limits that cut a head of a few rows into chunks.
const SMALL: Limits =
    Limits { head_bytes: 0, head_rows: 40, deterministic: true, documents: DocumentForm::Masked, rank: 0 };

fn faults(limits: Limits, cases: &[Case]) -> Vec<String> {
    let Some(kernels) = host_kernels() else { return Vec::new() };
    let mut device = HostDevice::new(kernels, limits);
    cases.iter().filter_map(|case| judge(&mut device, case, Scratch::Best).err()).collect()
}

#[test]
fn every_case_holds_with_kernels_built_for_the_host() {
    let faults = faults(Limits::default(), &cases::all());
    assert!(faults.is_empty(), "{}:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn a_head_in_chunks_of_forty_rows_gives_the_same_loss_gradients_and_errors() {
    let faults = faults(SMALL, &heads());
    assert!(faults.is_empty(), "{}:\n{}", faults.len(), faults.join("\n"));
}

fn heads() -> Vec<Case> {
    cases::all().into_iter().filter(|case| case.op.name().starts_with("head_")).collect()
}

#[test]
fn every_case_holds_with_activations_in_bf16() {
    let cases = half_cases();
    assert!(cases.len() > 300, "{} cases", cases.len());
    let faults = faults(Limits::default(), &cases);
    assert!(faults.is_empty(), "{}:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn an_id_outside_its_table_is_told_when_results_are_read_in_the_words_of_the_cpu() {
    let Some(kernels) = host_kernels() else { return };
    let (mut host, mut cpu) = (HostDevice::new(kernels, Limits::default()), cpu(1).unwrap());
    for case in faulty_cases() {
        let expected = judge(&mut *cpu, &case, Scratch::Best).unwrap_err();
        let told = ["is outside the", "is not a number"];
        assert!(told.iter().any(|part| expected.contains(part)), "{expected}");
        assert_eq!(judge(&mut host, &case, Scratch::Best).unwrap_err(), expected);
    }
    // Reports are cleared.
    let good = cases::all().into_iter().find(|case| case.op.name() == "embedding").unwrap();
    assert!(judge(&mut host, &good, Scratch::Best).is_ok());
}
