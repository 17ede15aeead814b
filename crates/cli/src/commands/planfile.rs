//! Plans as files: `plan --out FILE` writes one, `train --plan FILE` runs it.

use std::fs;
use std::path::Path;

use plimsoll::training::{Config, plan_from_file};
use plimsoll::{CpuDevice, Planned, TrainError, plan_for};

use crate::exit::Failure;
use crate::write_file;

/// Writes the plan.
pub(crate) fn save(path: &Path, planned: &Planned) -> Result<(), Failure> {
    write_file::whole(path, planned.to_file().as_bytes())
}

/// The plan in `path`, or one made now where no file is given.
pub(crate) fn load(path: Option<&Path>, config: &Config, device: &CpuDevice) -> Result<Planned, Failure> {
    let Some(path) = path else {
        return Ok(plan_for(&config.model, device, &config.options)?);
    };
    let named = |why: String| TrainError::Config(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
    let planned = plan_from_file(&config.model, device, &config.options, &text);
    Ok(planned.map_err(|error| match error {
        TrainError::Config(why) => named(why),
        other => other,
    })?)
}
