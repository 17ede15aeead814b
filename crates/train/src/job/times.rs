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
    /// of `bench ops` and of runs.
    pub(super) fn kept_times(&self, device: &dyn Device) -> KnownTimes {
        let measured = committed(&device.name()).unwrap_or_default();
        let mut known = KnownTimes { measured, file: self.times_file(device), ..KnownTimes::default() };
        if let Some(file) = known.file.as_ref().filter(|file| file.path.exists()) {
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

#[cfg(test)]
mod tests {
    use plimsoll_exec::{ExecError, ScheduleId};
    use plimsoll_graph::Graph;
    use plimsoll_plan::{Facts, Runnable, Space};

    use super::*;
    use crate::config::Config;
    use crate::job::{Job, Session};
    use crate::scratch::Scratch;
    use crate::settings::RawConfig;

    const NAME: &str = "NVIDIA H200, cuBLASLt, cuDNN, fast";

    /// The processor under a GPU's name: not measured at its first use, and with times of ops that came with the program.
    #[derive(Debug)]
    struct Card(Box<dyn Device>);

    impl Device for Card {
        fn name(&self) -> String {
            NAME.into()
        }

        fn facts(&self, graph: &Graph) -> Facts {
            self.0.facts(graph)
        }

        fn use_timings(&mut self, timings: Timings) {
            self.0.use_timings(timings);
        }

        fn reserve(&mut self, space: Space) -> Result<(), ExecError> {
            self.0.reserve(space)
        }

        fn prepare(&mut self, schedule: &Runnable) -> Result<ScheduleId, ExecError> {
            self.0.prepare(schedule)
        }

        fn map(&mut self) -> Result<(), ExecError> {
            self.0.map()
        }

        fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
            self.0.write(offset, bytes)
        }

        fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
            self.0.read(offset, bytes)
        }

        fn run(&mut self, schedule: ScheduleId) -> Result<(), ExecError> {
            self.0.run(schedule)
        }

        fn run_timed(&mut self, schedule: ScheduleId, seconds: &mut [Vec<f64>]) -> Result<(), ExecError> {
            self.0.run_timed(schedule, seconds)
        }
    }

    fn session(raw: &RawConfig, environment: &Environment) -> Session {
        let config = Config::check(raw).unwrap();
        let card = Card(config.options.plain_device().unwrap());
        let opened = environment.with_times(Box::new(card), &config).unwrap();
        let mut job = Job { device: Some(opened), ..config.open(environment).unwrap() };
        let planned = job.plan().unwrap();
        job.start(planned).unwrap()
    }

    #[test]
    fn a_run_on_a_gpu_adds_its_times_to_those_that_came_with_the_program() {
        let folder = Scratch::new();
        let environment = Environment { caches: Some(folder.path().into()), ..Environment::default() };
        let raw = RawConfig { threads: Some(1), max_steps: Some(6), ..RawConfig::default() };
        for before in ["", " and from 1 run"] {
            let mut session = session(&raw, &environment);
            assert_eq!(session.device_name(), format!("{NAME}, times from measured ops{before}"));
            session.train::<TrainError>(&mut []).unwrap();
        }
        let card = Card(plimsoll_devices::cpu(1).unwrap());
        let [known, own] =
            [environment.kept_times(&card).measured, environment.times_file(&card).unwrap().read().unwrap()];
        assert!(own.ops().iter().any(|(op, _)| op.starts_with("head_loss")), "{own:?}");
        let all = known.timings();
        let passed_over =
            own.ops().iter().find(|(op, timing)| all.get(op) != Some(timing)).map(|(op, _)| op.to_owned());
        assert_eq!(passed_over, None, "a run's own times count for more");
        assert!(known.len() > own.len() && known.len() > committed(NAME).unwrap().len());
        // Whoever states times gets no others, and adds none.
        let modelled = RawConfig { costs: Some(MODELLED.into()), ..raw };
        session(&modelled, &environment).train::<TrainError>(&mut []).unwrap();
        assert_eq!(environment.kept_times(&card).measured, known);
    }
}
