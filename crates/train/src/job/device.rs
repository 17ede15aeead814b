//! The device of a job, with the times that its ops were measured to take, or modelled ones.

use std::path::Path;

use plimsoll_devices::{DeviceKind, GpuFiles, Setup};
use plimsoll_exec::{Device, Timings};
use plimsoll_plan::DeviceSpec;

use super::disk_speed;
use super::environment::Environment;
use super::notes::Note;
use super::times::{KnownTimes, MODELLED, TimesFile, read_costs};
use crate::config::Config;
use crate::error::TrainError;
use crate::measure::{Measured, committed, timed_machine};
use crate::planning::Offload;

/// A device and its name.
#[derive(Debug)]
pub struct OpenedDevice {
    /// The device.
    pub device: Box<dyn Device>,
    /// The device's name, and the source of its times.
    pub name: String,
    /// The file to which a run on this device adds its own times, if they are kept.
    pub times: Option<TimesFile>,
    /// Things that a user should know about its times.
    pub notes: Vec<Note>,
    /// Whether this process has measured it. Such a process is larger than one that finds the times in the cache.
    pub measured: bool,
}

impl Environment {
    /// The device of `config`, with the costs that it names: a file, `modelled`, or by default the times measured here.
    /// A device whose times are not known yet is measured first, which takes about a second.
    ///
    /// # Errors
    ///
    /// When its threads cannot be had, its disk cannot be used, or a file of costs that was named is of another machine.
    pub fn device(&self, config: &Config) -> Result<OpenedDevice, TrainError> {
        let options = &config.options;
        let threads = plimsoll_devices::threads(options.threads);
        let link = |offload: &Offload| match offload.link {
            Some(link) => Ok(link),
            None => disk_speed::link(self, offload, threads).map(|link| options.own_part(link)),
        };
        let link = options.offload.as_ref().map(link).transpose()?;
        let offload = options.offload.as_ref().map(|offload| offload.folder.clone()).zip(link);
        let mut setup = Setup { offload, ..options.setup() };
        if options.device != DeviceKind::Cpu && setup.gpu == GpuFiles::default() {
            setup.gpu = self.gpu()?;
        }
        self.with_times(plimsoll_devices::open(options.device, &setup)?, config)
    }

    /// A device that is open, with the costs that `config` names, and the file to which a run adds its own times.
    pub(super) fn with_times(
        &self,
        mut device: Box<dyn Device>,
        config: &Config,
    ) -> Result<OpenedDevice, TrainError> {
        let options = &config.options;
        let known = self.costs(&*device, config)?;
        let KnownTimes { measured, notes, file, kept } = known;
        let name = format!("{}, {}", device.name(), measured.source(options.precision.name()));
        device.use_timings(measured.timings());
        // Transfers slow the ops beside them, and ranks share the memory's bandwidth. So a run that offloads or has ranks
        // records no times.
        let times = file.filter(|_| options.offload.is_none() && options.world().is_none());
        Ok(OpenedDevice { device, name, times, notes, measured: kept })
    }

    /// Times that were measured on a device like the described one and came with the program; none if modelled times
    /// are requested.
    pub fn times_of(&self, config: &Config, spec: &DeviceSpec) -> Timings {
        let modelled = config.costs.as_deref().or(self.costs.as_deref()) == Some(MODELLED);
        let committed = committed(&spec.name()).filter(|_| !modelled);
        committed.map(|measured| measured.timings()).unwrap_or_default()
    }

    /// The times that `config` or the environment names.
    fn costs(&self, device: &dyn Device, config: &Config) -> Result<KnownTimes, TrainError> {
        let probing = device.probing();
        let machine = || match &probing {
            Some(probing) => timed_machine(device.threads(), probing),
            None => device.name(),
        };
        let measured = match (config.costs.as_deref().or(self.costs.as_deref()), &probing) {
            (None, Some(probing)) => return Ok(self.times(device, probing, &config.options)),
            (None, None) => return Ok(self.kept_times(device)),
            (Some(MODELLED), _) => Measured::default(),
            (Some(file), _) => read_costs(Path::new(file), &machine())?,
        };
        Ok(KnownTimes { measured, ..KnownTimes::default() })
    }
}
