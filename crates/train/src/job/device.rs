//! The device of a job, with the times of its ops: measured by `plimsoll bench ops` and kept in a file,
//! or modelled.

use std::path::{Path, PathBuf};

use plimsoll_devices::{DeviceKind, GpuFiles, Setup};
use plimsoll_exec::Device;

use super::disk_speed;
use super::environment::Environment;
use crate::config::Config;
use crate::error::TrainError;
use crate::files::read_any_text;
use crate::measure::{Measured, OPS_FILE_VERSION, measured_machine};

/// A device and its name.
#[derive(Debug)]
pub struct OpenedDevice {
    /// The device.
    pub device: Box<dyn Device>,
    /// Its name, and where its times come from.
    pub name: String,
}

impl Environment {
    /// The device of `config`, with the costs that it names: a file, `modelled`, or by default what was measured here.
    ///
    /// # Errors
    ///
    /// When its threads cannot be had, its disk cannot be used, or a file of costs that was named is of another machine.
    pub fn device(&self, config: &Config) -> Result<OpenedDevice, TrainError> {
        let options = &config.options;
        let threads = plimsoll_devices::threads(options.threads);
        let link = |offload| disk_speed::link(self, offload, threads);
        let link = options.offload.as_ref().map(link).transpose()?;
        let offload = options.offload.as_ref().map(|offload| offload.folder.clone()).zip(link);
        let measured = match config.costs.as_deref() {
            // Times of a processor say nothing of a GPU.
            _ if options.device != DeviceKind::Cpu => None,
            Some("modelled") => None,
            Some(file) => Some(read_costs(Path::new(file), threads)?),
            None => match self.costs_file(threads) {
                // A file that cannot be read must not stop a run.
                Some(file) => read_costs(&file, threads).ok(),
                None => None,
            },
        };
        let source = if measured.is_some() { "times from measured ops" } else { "times modelled" };
        let timings = measured.map(|measured| measured.timings()).unwrap_or_default();
        let mut setup = Setup { offload, timings, ..options.setup() };
        if options.device != DeviceKind::Cpu && setup.gpu == GpuFiles::default() {
            setup.gpu = self.gpu()?;
        }
        let device = plimsoll_devices::open(options.device, &setup)?;
        let name = format!("{}, {source}", device.name());
        Ok(OpenedDevice { device, name })
    }

    /// Where times for this many threads are kept, if there is a folder for them.
    pub fn costs_file(&self, threads: usize) -> Option<PathBuf> {
        self.cached(&format!("ops-{threads}-threads.json"))
    }
}

/// Reads a file of measured times and refuses those of another machine.
///
/// # Errors
///
/// When it cannot be read, or was measured elsewhere.
pub fn read_costs(file: &Path, threads: usize) -> Result<Measured, TrainError> {
    let mistake = |why: String| TrainError::Config(format!("`{}` {why}", file.display()));
    let text = read_any_text(file).map_err(|error| mistake(format!("cannot be read: {error}")))?;
    let measured: Measured = serde_json::from_str(&text).map_err(|error| {
        mistake(format!("is no file of measured ops: {error}; `plimsoll bench ops` writes one"))
    })?;
    if measured.version != OPS_FILE_VERSION {
        let version = measured.version;
        return Err(mistake(format!("has version {version}, not {OPS_FILE_VERSION}; measure again")));
    }
    let here = measured_machine(threads);
    if measured.machine != here {
        let there = &measured.machine;
        return Err(mistake(format!("was measured on {there}; this is {here}; measure again here")));
    }
    Ok(measured)
}
