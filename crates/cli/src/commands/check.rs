//! `plimsoll check`: the conformance cases on this machine's CPU, or on one of its GPUs.

use std::io::{self, Write};

use plimsoll::conformance::DrawnCase;
use plimsoll::devices::{self, DeviceKind, Setup, Trial};
use plimsoll::{Device, TrainError};

use crate::args::CheckArgs;
use crate::environment::environment;
use crate::exit::Failure;

pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let kind: DeviceKind = args.device.parse()?;
    let gpu = environment().files_of(kind)?;
    let instructions = args.instructions.as_deref().map(str::parse).transpose()?;
    let setup = Setup { threads: args.threads.unwrap_or(0), instructions, gpu, ..Setup::default() };
    let trial = if args.quick { devices::quick_trial } else { devices::trial };
    judge_all(args, trial(kind, &setup)?)
}

/// Judges every device by the cases that match the filter, with each amount of scratch.
fn judge_all(args: &CheckArgs, trial: Trial) -> Result<(), Failure> {
    let Trial { mut devices, cases, scratches } = trial;
    let filter = args.filter.as_deref().unwrap_or("");
    let cases: Vec<_> = cases.into_iter().filter(|case| case.name.contains(filter)).collect();
    if cases.is_empty() {
        return Err(TrainError::Config(format!("no case has `{filter}` in its name")).into());
    }
    let mut out = io::stdout().lock();
    let mut failed = 0;
    for case in &cases {
        let verdict = DrawnCase::new(case).and_then(|drawn| {
            let mut worst = 0.0f64;
            for device in &mut devices {
                for &scratch in &scratches {
                    worst = worst.max(drawn.judge(&mut **device, scratch)?);
                }
            }
            Ok(worst)
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
    let path =
        |device: &dyn Device| device.instructions().map_or_else(String::new, |path| format!(", {path}"));
    let names: Vec<String> = devices.iter().map(|device| device.name() + &path(&**device)).collect();
    writeln!(out, "{} of {total} cases hold on {}", total - failed, names.join("; "))
        .map_err(|error| Failure::output(&error))?;
    if failed > 0 {
        return Err(Failure::Other(format!("{failed} of {total} cases differ from the reference kernels")));
    }
    Ok(())
}
