//! What ops cost on this machine: measured by `plimsoll bench ops` and kept in a file, or modelled.

use std::path::{Path, PathBuf};

use plimsoll::devices::{self, Setup};
use plimsoll::training::{Config, Measured, OPS_FILE_VERSION, measured_machine};
use plimsoll::{Device, TrainError};

use crate::exit::Failure;
use crate::{disks, home, read_file};

/// The device with the costs that `--costs` names (a file, `modelled`, or by default what was measured here), and
/// what to call it.
pub(crate) fn device(config: &Config) -> Result<(Box<dyn Device>, String), Failure> {
    let options = &config.options;
    let threads = devices::threads(options.threads);
    let offload = options.offload.as_ref();
    let offload =
        offload.map(|offload| Ok::<_, Failure>((offload.folder.clone(), disks::link(offload, threads)?)));
    let measured = match config.costs.as_deref() {
        Some("modelled") => None,
        Some(file) => Some(read(Path::new(file), threads)?),
        None => match cache_file(threads) {
            // A file that is no longer readable must not keep anybody from training.
            Some(file) => read(&file, threads).ok(),
            None => None,
        },
    };
    let source = if measured.is_some() { "times from measured ops" } else { "times modelled" };
    let timings = measured.map(|measured| measured.timings()).unwrap_or_default();
    let setup = Setup { offload: offload.transpose()?, timings, ..options.setup() };
    let device = devices::open(options.device, &setup)?;
    let name = format!("{}, {source}", device.name());
    Ok((device, name))
}

/// Reads a file of measured times and refuses those of another machine.
pub(crate) fn read(file: &Path, threads: usize) -> Result<Measured, Failure> {
    let mistake = |why: String| TrainError::Config(format!("`{}` {why}", file.display()));
    let text = read_file::text(file).map_err(|error| mistake(format!("cannot be read: {error}")))?;
    let measured: Measured = serde_json::from_str(&text).map_err(|error| {
        mistake(format!("is no file of measured ops: {error}; `plimsoll bench ops` writes one"))
    })?;
    if measured.version != OPS_FILE_VERSION {
        let version = measured.version;
        return Err(mistake(format!("has version {version}, not {OPS_FILE_VERSION}; measure again")).into());
    }
    let here = measured_machine(threads);
    if measured.machine != here {
        let there = &measured.machine;
        return Err(mistake(format!("was measured on {there}; this is {here}; measure again here")).into());
    }
    Ok(measured)
}

/// Where times for this many threads are kept, if there is a home for them.
pub(crate) fn cache_file(threads: usize) -> Option<PathBuf> {
    let caches = home::caches()?;
    Some(caches.join("plimsoll").join(format!("ops-{threads}-threads.json")))
}
