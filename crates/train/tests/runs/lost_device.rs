//! A device that is lost in the middle of a run answers every call with the same fault. The run ends with that fault, the last
//! checkpoint stays whole, and remarks that the device made before still reach the listener.

use plimsoll_exec::{Device, ExecError, ScheduleId};
use plimsoll_graph::Graph;
use plimsoll_plan::{Facts, Runnable, Space, Tier};
use plimsoll_train::TrainError;
use plimsoll_train::trainer::{Event, Listener, TrainLoop};
use tempfile::TempDir;

use crate::running::{bits, latest, on, open, pinned, take, trainer, write_text};

const REMARK: &str = "another process took 1024 MiB of the card during this run";
/// Runs of schedules before the device is lost: a step is two micro-batches and an update, so it is lost in the sixth.
const RUNS: usize = 16;
const LOST: &str = "the GPU failed: waiting for the GPU: illegal address";

/// A processor that is lost when its runs are used up.
#[derive(Debug)]
struct Lost {
    device: Box<dyn Device>,
    runs: usize,
}

impl Lost {
    fn ready(&self) -> Result<(), ExecError> {
        if self.runs == 0 { Err(ExecError::Device(LOST.into())) } else { Ok(()) }
    }
}

impl Device for Lost {
    fn name(&self) -> String {
        self.device.name()
    }

    fn facts(&self, graph: &Graph) -> Facts {
        self.device.facts(graph)
    }

    fn reserve(&mut self, space: Space) -> Result<(), ExecError> {
        self.device.reserve(space)
    }

    fn prepare(&mut self, schedule: &Runnable) -> Result<ScheduleId, ExecError> {
        self.device.prepare(schedule)
    }

    fn map(&mut self) -> Result<(), ExecError> {
        self.device.map()
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.ready()?;
        self.device.write(offset, bytes)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.ready()?;
        self.device.read(offset, bytes)
    }

    fn read_tier(&self, tier: Tier, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.ready()?;
        self.device.read_tier(tier, offset, bytes)
    }

    fn run(&mut self, schedule: ScheduleId) -> Result<(), ExecError> {
        self.ready()?;
        self.runs -= 1;
        self.device.run(schedule)
    }

    fn take_remarks(&self) -> Vec<String> {
        // After the first step of three runs.
        if self.runs == RUNS - 3 { vec![REMARK.to_owned()] } else { Vec::new() }
    }

    fn run_timed(&mut self, schedule: ScheduleId, seconds: &mut [Vec<f64>]) -> Result<(), ExecError> {
        self.ready()?;
        self.device.run_timed(schedule, seconds)
    }
}

#[test]
fn a_device_is_heard_while_the_run_goes_on_and_lost_it_ends_the_run_whose_last_checkpoint_is_whole() {
    let home = TempDir::new().unwrap();
    let data = write_text(home.path());
    let options = pinned();
    let course = TrainLoop {
        steps: 12,
        pause: None,
        logging_steps: 4,
        eval_steps: None,
        stopping: None,
        save_steps: Some(2),
    };
    let mut lost =
        on(Box::new(Lost { device: options.plain_device().unwrap(), runs: RUNS }), &data, &options);
    let out = open(&home.path().join("out"), None).unwrap();
    let mut notes = Vec::new();
    let mut listener = |event: &Event<'_>| {
        if let Event::Note(note) = event {
            notes.push((*note).to_owned());
        }
        Ok(())
    };
    let listeners: &mut [&mut dyn Listener<TrainError>] = &mut [&mut listener];
    let fault = lost.train(&course, None, Some(&out), listeners).unwrap_err();
    assert_eq!(fault.to_string(), LOST);
    assert_eq!(notes[0], REMARK, "heard while the run goes on");
    assert_eq!(notes[1..], [format!("steps since the last checkpoint are lost: {LOST}")]);

    let checkpoint = latest(&out).unwrap();
    let mut resumed = trainer(&data, &options);
    resumed.resume(&out, &checkpoint).unwrap();
    assert_eq!(resumed.run().steps(), 4);
    let mut expected = trainer(&data, &options);
    take(&mut resumed, 3);
    take(&mut expected, 7);
    assert_eq!(bits(&resumed), bits(&expected));
}
