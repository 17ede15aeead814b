//! `plimsoll check`: the conformance cases on this machine's CPU, or on one of its GPUs.

use std::io::{self, Write};

use plimsoll::conformance::cases::Case;
use plimsoll::conformance::{cases, judge};
use plimsoll::cuda::{CudaDevice, Limits, Options, Products, half_cases};
use plimsoll::planning::Scratch;
use plimsoll::{CpuDevice, Device, TrainError};

use crate::args::CheckArgs;
use crate::exit::Failure;
use crate::home;

/// Chunks so small that a head of a few rows is cut into several.
const SMALL: Limits = Limits { head_bytes: 0, head_rows: 40 };

pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    match gpu_index(&args.device)? {
        None => {
            let device = CpuDevice::new(args.threads.unwrap_or(0))?;
            judge_all(args, cases::all(), &mut [device], &[Scratch::Least, Scratch::Best])
        }
        Some(index) => {
            let library = home::gpu(index)?;
            // Products of our own, and every head in chunks, are judged beside the library's.
            let own = Options { products: Products::Own, limits: SMALL, ..library.clone() };
            let mut devices = [CudaDevice::open(&library)?, CudaDevice::open(&own)?];
            judge_all(args, [cases::all(), half_cases()].concat(), &mut devices, &[Scratch::Best])
        }
    }
}

/// The index of the GPU that a device's name means, none for the CPU.
fn gpu_index(name: &str) -> Result<Option<usize>, Failure> {
    let unknown = || {
        let why = format!(
            "no device is called `{name}`; known are cpu, cuda, and cuda:0, cuda:1, … for one of several GPUs"
        );
        Failure::from(TrainError::Config(why))
    };
    match name.split_once(':') {
        None if name == "cpu" => Ok(None),
        None if name == "cuda" => Ok(Some(0)),
        Some(("cuda", index)) => index.parse().map(Some).map_err(|_| unknown()),
        _ => Err(unknown()),
    }
}

/// Judges every device by the cases that the filter lets through, with each amount of scratch.
fn judge_all<D: Device>(
    args: &CheckArgs,
    cases: Vec<Case>,
    devices: &mut [D],
    scratches: &[Scratch],
) -> Result<(), Failure> {
    let filter = args.filter.as_deref().unwrap_or("");
    let cases: Vec<_> = cases.into_iter().filter(|case| case.name.contains(filter)).collect();
    if cases.is_empty() {
        return Err(TrainError::Config(format!("no case has `{filter}` in its name")).into());
    }
    let mut out = io::stdout().lock();
    let mut failed = 0;
    for case in &cases {
        let verdict = devices.iter_mut().try_fold(0.0f64, |worst, device| {
            (scratches.iter())
                .try_fold(worst, |worst, &scratch| judge(device, case, scratch).map(|off| worst.max(off)))
        });
        let line = match verdict {
            Ok(off) => format!("ok    {:<8.1e} {}", off, case.name),
            Err(why) => {
                failed += 1;
                format!("FAIL           {why}")
            }
        };
        writeln!(out, "{line}").map_err(|error| Failure::output(&error))?;
    }
    let total = cases.len();
    let names: Vec<String> = devices.iter().map(Device::name).collect();
    writeln!(out, "{} of {total} cases hold on {}", total - failed, names.join("; "))
        .map_err(|error| Failure::output(&error))?;
    if failed > 0 {
        return Err(Failure::Other(format!("{failed} of {total} cases differ from the reference kernels")));
    }
    Ok(())
}
