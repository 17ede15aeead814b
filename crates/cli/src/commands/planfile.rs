//! Plans as files: `plan --out FILE` writes one, `train --plan FILE` runs it, and a run whose plan took more memory to find
//! than it may take itself hands it on to a process that begins anew.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use plimsoll::training::budget::{Budget, Origin};
use plimsoll::training::files::temporary_file;
use plimsoll::training::{Config, memory, plan_from_file};
use plimsoll::{Device, Planned, TrainError};

use crate::exit::Failure;
use crate::{again, guard, planning, read_file, write_file};

/// Writes the plan.
pub(crate) fn save(path: &Path, planned: &Planned) -> Result<(), Failure> {
    write_file::whole(path, planned.to_file().as_bytes())
}

/// Set in a process that was begun anew with a plan.
const PLANNED: &str = "PLIMSOLL_PLANNED";

/// Where this process has put the plan that it made before it began anew.
pub(crate) fn made_before() -> Option<PathBuf> {
    again::noted(PLANNED).map(PathBuf::from)
}

/// Begins anew with `planned` where looking for it took memory that the budget does not have, or that the run would
/// still hold.
pub(crate) fn begin_anew_with(planned: &Planned) -> Result<(), Failure> {
    let held = memory::process().map_err(Failure::memory)?;
    let Budget { total, outside, origin, .. } = planned.budget;
    let small = held.peak <= total && held.resident <= outside;
    if small || origin != Origin::Stated || made_before().is_some() {
        return Ok(());
    }
    // Where no file can be written or nothing be begun, the run goes on, and says at its end what it held.
    if let Ok((mut file, path)) = temporary_file(&env::temp_dir(), ("plimsoll-plan-", ".json"), 0o600) {
        if file.write_all(planned.to_file().as_bytes()).is_ok() {
            again::begin(PLANNED, path.as_os_str());
        }
        let _ = fs::remove_file(&path);
    }
    Ok(())
}

/// The plan in `path`, or one made now where no file is given.
pub(crate) fn load(path: Option<&Path>, config: &Config, device: &dyn Device) -> Result<Planned, Failure> {
    if let Some(path) = made_before() {
        let planned = load_from(&path, config, device);
        let _ = fs::remove_file(&path);
        return planned;
    }
    match path {
        Some(path) => {
            guard::raise_again();
            let planned = load_from(path, config, device)?;
            guard::lower();
            Ok(planned)
        }
        None => Ok(planning::plan_for(config, device, &config.options)?),
    }
}

fn load_from(path: &Path, config: &Config, device: &dyn Device) -> Result<Planned, Failure> {
    let named = |why: String| TrainError::Config(format!("{}: {why}", path.display()));
    let text = read_file::text(path).map_err(|error| named(error.to_string()))?;
    let planned = plan_from_file(&config.model, device, &config.options, &text);
    Ok(planned.map_err(|error| match error {
        TrainError::Config(why) => named(why),
        other => other,
    })?)
}
