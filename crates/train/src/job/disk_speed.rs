//! Speeds of disks: each is measured once and kept in a file, so that every call gives the same plan.
//!
//! A trial takes half a second and never gives quite the same result. A plan must not depend on the moment of the
//! trial, or `plan` would describe another run than `train` makes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use plimsoll_exec::cpu::{BLOCK, disk_room};
use plimsoll_exec::{ExecError, measure_disk};
use plimsoll_plan::Link;

use super::environment::Environment;
use crate::error::TrainError;
use crate::files::write_whole;
use crate::measure::measured_machine;
use crate::planning::Offload;

/// The file's form. Disks in files of another form are measured again.
const VERSION: u32 = 1;

#[derive(Default, Deserialize, Serialize)]
struct Disks {
    version: u32,
    disks: Vec<Disk>,
}

/// Measurements of a disk.
#[derive(Deserialize, Serialize)]
struct Disk {
    /// The machine and its threads, since computing threads also move bytes.
    machine: String,
    /// The file system's number, the same for all of its folders.
    device: u64,
    out_rate: f64,
    in_rate: f64,
    latency: f64,
    toll: f64,
}

impl Disk {
    /// Whether the figures are possible: figures changed by hand are measured again.
    fn is_likely(&self) -> bool {
        let rates = [self.out_rate, self.in_rate].iter().all(|rate| (1e3..1e13).contains(rate));
        rates && (0.0..10.0).contains(&self.latency) && (0.0..1e-3).contains(&self.toll)
    }
}

/// The link to the disk that `offload` names, for runs of `threads` threads, with the speed measured when it was first
/// used.
pub(crate) fn link(environment: &Environment, offload: &Offload, threads: usize) -> Result<Link, TrainError> {
    let machine = measured_machine(threads);
    let device = device(offload);
    let known =
        read(environment).disks.into_iter().find(|disk| (&disk.machine, disk.device) == (&machine, device));
    let Some(Disk { out_rate, in_rate, latency, toll, .. }) = known else {
        return environment.measure_disk(offload, threads);
    };
    let room = disk_room(&offload.folder, offload.budget).map_err(|error| mistake(&error))?;
    Ok(Link { tier: offload.tier, room, block: BLOCK, out_rate, in_rate, latency, toll })
}

impl Environment {
    /// Measures the disk that `offload` names and keeps the result.
    ///
    /// # Errors
    ///
    /// When no file can be made there.
    pub fn measure_disk(&self, offload: &Offload, threads: usize) -> Result<Link, TrainError> {
        let tried = measure_disk(&offload.folder, offload.budget, threads);
        let link = tried.map_err(|error| mistake(&error))?.link;
        let Link { out_rate, in_rate, latency, toll, .. } = link;
        let (machine, device) = (measured_machine(threads), device(offload));
        keep(self, Disk { machine, device, out_rate, in_rate, latency, toll });
        Ok(link)
    }
}

fn mistake(error: &ExecError) -> TrainError {
    TrainError::Config(error.to_string())
}

/// The number of the file system. A missing folder has none, and the trial reports the fault.
fn device(offload: &Offload) -> u64 {
    fs::metadata(&offload.folder).map_or(0, |data| data.dev())
}

/// The file in which speeds are kept, if there is a folder for it.
fn file(environment: &Environment) -> Option<PathBuf> {
    environment.cached("disks.json")
}

/// The measurements on file; none if the file cannot be read, since that must not stop a run.
fn read(environment: &Environment) -> Disks {
    let text = file(environment).and_then(|file| fs::read_to_string(file).ok());
    let disks: Option<Disks> = text.and_then(|text| serde_json::from_str(&text).ok());
    let mut disks = disks.filter(|disks| disks.version == VERSION).unwrap_or_default();
    disks.disks.retain(Disk::is_likely);
    disks
}

/// Keeps the measurements, where that is possible: the next call can measure again.
fn keep(environment: &Environment, disk: Disk) {
    let Some(file) = file(environment) else { return };
    let mut all = read(environment);
    all.version = VERSION;
    all.disks.retain(|known| (&known.machine, known.device) != (&disk.machine, disk.device));
    all.disks.push(disk);
    if file.parent().is_some_and(|folder| fs::create_dir_all(folder).is_ok()) {
        let _ = write_whole(&file, &serde_json::to_vec(&all).unwrap_or_default());
    }
}
