//! Times of ops that plans use on this machine: read from the cache, measured where they are not there, learned from runs.
//!
//! A file that is broken or of another version is ignored with a note and written again. If nothing can be written, the
//! times hold for this process alone. Neither prevents training.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_exec::{Device, Probing, Timings};

use super::environment::Environment;
use super::notes::Note;
use crate::error::TrainError;
use crate::files::{read_any_text, write_whole};
use crate::measure::{Measured, OPS_FILE_VERSION, committed, measure_device, probe_room, timed_machine};
use crate::planning::Options;

/// The value of `--costs` that means no measurement at all.
pub(super) const MODELLED: &str = "modelled";

/// Where times of one machine are kept, and how that machine is called in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimesFile {
    /// The file.
    pub path: PathBuf,
    /// Processor, threads and kernels.
    pub machine: String,
}

/// Times, with notes for the user about them.
#[derive(Default)]
pub(super) struct KnownTimes {
    pub(super) measured: Measured,
    pub(super) notes: Vec<Note>,
    /// Where a run adds its own times.
    pub(super) file: Option<TimesFile>,
    /// Whether they were measured just now and the next process will find them.
    pub(super) kept: bool,
}

impl Environment {
    /// Where times of a device are kept. Nowhere, if there is no folder for caches.
    pub fn times_file(&self, device: &dyn Device) -> Option<TimesFile> {
        let Some(probing) = device.probing() else {
            let machine = device.name();
            let letters = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
            let name: String = machine.chars().map(letters).collect();
            return Some(TimesFile { path: self.cached(&format!("times-{name}.json"))?, machine });
        };
        let threads = device.threads();
        let path = self.cached(&format!("times-{}-{threads}-threads.json", probing.kernels))?;
        Some(TimesFile { path, machine: timed_machine(threads, &probing) })
    }

    /// Times of a device that is not measured at its first use: those that came with the program, and over them the times
    /// of `bench ops`. Runs add none: decision 0107 says why.
    pub(super) fn kept_times(&self, device: &dyn Device) -> KnownTimes {
        let measured = committed(&device.name()).unwrap_or_default();
        let mut known = KnownTimes { measured, ..KnownTimes::default() };
        if let Some(file) = self.times_file(device).filter(|file| file.path.exists()) {
            match file.read() {
                Ok(kept) => known.measured = known.measured.updated(kept),
                Err(error) => known.notes.push(Note::Device(format!("{error}; it is passed over"))),
            }
        }
        known
    }

    /// Times of a device: the kept ones, or else those from a second of measuring.
    pub(super) fn times(&self, device: &dyn Device, probing: &Probing, options: &Options) -> KnownTimes {
        let mut known = KnownTimes::default();
        // Without a place to keep them, every call would measure anew and plan differently.
        let Some(file) = self.times_file(device) else { return known };
        known.measured = match file.read() {
            Ok(measured) => measured,
            Err(error) => {
                if file.path.exists() {
                    known.notes.push(Note::Device(format!("{error}; it is passed over")));
                }
                Measured::nothing(file.machine.clone())
            }
        };
        let room = probe_room(options.memory).unwrap_or(0);
        let precision = options.precision.name();
        let wanted = if room >= ENOUGH_ROOM { probing.sizes.len() } else { 1 };
        if !known.measured.is_probed(precision, wanted) {
            match measure_device(options, probing, room) {
                Ok(probed) if probed.sizes > 0 => {
                    known.measured.add_probes(precision, wanted.max(probed.sizes), &probed.timings);
                    known.kept = file.write(&known.measured);
                }
                // A budget that leaves no room for the smallest model has none for a run either.
                Ok(_) => {}
                Err(error) => {
                    known.notes.push(Note::Device(format!("this machine could not be measured: {error}")));
                }
            }
        }
        known.file = Some(file);
        known
    }
}

/// With less room than this only the smallest models are tried.
const ENOUGH_ROOM: u64 = 128 << 20;

impl TimesFile {
    /// The times in the file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or was measured elsewhere.
    pub fn read(&self) -> Result<Measured, TrainError> {
        read_costs(&self.path, &self.machine)
    }

    /// Writes the whole file, or leaves the old one. Returns whether it was written.
    pub fn write(&self, measured: &Measured) -> bool {
        let folder = self.path.parent().is_some_and(|folder| fs::create_dir_all(folder).is_ok());
        let text = serde_json::to_vec(measured);
        folder && text.is_ok_and(|text| write_whole(&self.path, &text).is_ok())
    }

    /// Adds the times of a training run.
    pub(super) fn add_run(&self, timings: &Timings) {
        let mut known = self.read().unwrap_or_else(|_| Measured::nothing(self.machine.clone()));
        known.add_run(timings);
        self.write(&known);
    }
}

/// Reads a file of measured times and refuses those of another machine than `here`.
///
/// # Errors
///
/// When it cannot be read, or was measured elsewhere.
pub fn read_costs(file: &Path, here: &str) -> Result<Measured, TrainError> {
    let mistake = |why: String| TrainError::Config(format!("`{}` {why}", file.display()));
    let text = read_any_text(file).map_err(|error| mistake(format!("cannot be read: {error}")))?;
    let measured: Measured = serde_json::from_str(&text).map_err(|error| {
        mistake(format!("is no file of measured ops: {error}; `plimsoll bench ops` writes one"))
    })?;
    if measured.version != OPS_FILE_VERSION {
        let version = measured.version;
        return Err(mistake(format!("has version {version}, not {OPS_FILE_VERSION}; measure again")));
    }
    if measured.machine != here {
        let there = &measured.machine;
        return Err(mistake(format!("was measured on {there}; this is {here}; measure again here")));
    }
    Ok(measured)
}
