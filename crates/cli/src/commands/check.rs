//! `plimsoll check`: the conformance cases on this machine.

use std::io::{self, Write};

use plimsoll::conformance::{cases, judge};
use plimsoll::planning::Scratch;
use plimsoll::{CpuDevice, Device};

use crate::args::CheckArgs;
use crate::exit::Failure;

pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let mut device = CpuDevice::new(args.threads.unwrap_or(0))?;
    let filter = args.filter.as_deref().unwrap_or("");
    let cases: Vec<_> = cases::all().into_iter().filter(|case| case.name.contains(filter)).collect();
    if cases.is_empty() {
        return Err(plimsoll::TrainError::Config(format!("no case has `{filter}` in its name")).into());
    }
    let mut out = io::stdout().lock();
    let mut failed = 0;
    for case in &cases {
        let verdict = [Scratch::Least, Scratch::Best]
            .iter()
            .try_fold(0.0f64, |worst, &scratch| judge(&mut device, case, scratch).map(|off| worst.max(off)));
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
    writeln!(out, "{} of {total} cases hold on {}", total - failed, device.name())
        .map_err(|error| Failure::output(&error))?;
    if failed > 0 {
        return Err(Failure::Other(format!("{failed} of {total} cases differ from the reference kernels")));
    }
    Ok(())
}
