//! Transfers that a schedule leaves open: the schedule judged together with it runs beside them, and everything else waits
//! for them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex};

use plimsoll_exec::{CpuDevice, Device, Engine, ExecError, ScheduleId};
use plimsoll_graph::Graph;
use plimsoll_plan::{Facts, Role, Runnable, Space, Tier};

#[path = "support/streaming.rs"]
mod streaming;
use streaming::disk::device;
use streaming::{pass, streaming};

/// The CPU, with a list of the calls it received.
#[derive(Debug)]
struct Listening {
    device: CpuDevice,
    names: Vec<String>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Listening {
    fn hear(&self, what: &str) {
        self.heard.lock().unwrap().push(what.to_owned());
    }
}

impl Device for Listening {
    fn name(&self) -> String {
        "listening".into()
    }

    fn facts(&self, graph: &Graph) -> Facts {
        self.device.facts(graph)
    }

    fn reserve(&mut self, space: Space) -> Result<(), ExecError> {
        self.device.reserve(space)
    }

    fn prepare(&mut self, schedule: &Runnable) -> Result<ScheduleId, ExecError> {
        self.names.push(schedule.schedule().name.clone());
        self.device.prepare(schedule)
    }

    fn map(&mut self) -> Result<(), ExecError> {
        self.device.map()
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.hear("write");
        self.device.write(offset, bytes)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.hear("read");
        self.device.read(offset, bytes)
    }

    fn write_input(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.device.write_input(offset, bytes)
    }

    fn read_output(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.device.read_output(offset, bytes)
    }

    fn settle(&self) -> Result<(), ExecError> {
        self.hear("settle");
        self.device.settle()
    }

    fn write_tier(&mut self, tier: Tier, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.device.write_tier(tier, offset, bytes)
    }

    fn read_tier(&self, tier: Tier, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.device.read_tier(tier, offset, bytes)
    }

    fn expect(&mut self, next: Option<ScheduleId>) {
        self.device.expect(next);
    }

    fn run(&mut self, schedule: ScheduleId) -> Result<(), ExecError> {
        self.hear(&self.names[schedule.0]);
        self.device.run(schedule)
    }

    fn run_timed(&mut self, schedule: ScheduleId, seconds: &mut [Vec<f64>]) -> Result<(), ExecError> {
        self.device.run_timed(schedule, seconds)
    }
}

/// The calls that passes in this order make.
fn heard(roles: &[Role]) -> Vec<String> {
    let choice = streaming();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listening = Listening { device: device(), names: Vec::new(), heard: Arc::clone(&heard) };
    let mut engine = Engine::new(Box::new(listening), &choice.program, &choice.plan, 1).unwrap();
    heard.lock().unwrap().clear();
    for &role in roles {
        pass(&mut engine, role).unwrap();
        if role != Role::Update {
            engine.scalar(role, "loss").unwrap();
        }
    }
    heard.lock().unwrap().clone()
}

#[test]
fn steps_follow_each_other_without_waiting_for_transfers() {
    let calls = heard(&[Role::First, Role::Update, Role::First, Role::Update, Role::First]);
    assert_eq!(calls, ["settle", "first", "update", "first", "update", "first"]);
}

#[test]
fn an_evaluation_and_whatever_was_not_expected_wait_for_all_of_them() {
    let calls = heard(&[Role::First, Role::Update, Role::Evaluate, Role::First]);
    assert_eq!(calls, ["settle", "first", "update", "settle", "evaluate", "settle", "first"]);
    // The step is given up: an update is expected, and another first pass comes.
    let calls = heard(&[Role::First, Role::First, Role::Update]);
    assert_eq!(calls, ["settle", "first", "settle", "first", "update"]);
}

#[test]
fn passes_that_were_not_expected_change_no_bit() {
    let choice = streaming();
    let moments = |roles: &[Role]| {
        let mut engine = Engine::new(Box::new(device()), &choice.program, &choice.plan, 1).unwrap();
        for &role in roles {
            pass(&mut engine, role).unwrap();
        }
        let state = |name: &str| {
            let mut values = vec![0.0; streaming::WIDTH * streaming::WIDTH];
            engine.read_state(name, 0, &mut values).unwrap();
            values.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        };
        ["w", "m", "v"].map(state)
    };
    let step = [Role::First, Role::Update];
    let expected = moments(&[step, step].concat());
    let disturbed = [
        Role::Evaluate,
        Role::First,
        Role::First,
        Role::Update,
        Role::Evaluate,
        Role::First,
        Role::Evaluate,
        Role::Update,
    ];
    assert!(moments(&disturbed) == expected);
}

#[test]
fn state_that_is_written_between_two_schedules_is_what_the_second_finds() {
    let choice = streaming();
    let after = |write: bool| {
        let mut engine = Engine::new(Box::new(device()), &choice.program, &choice.plan, 1).unwrap();
        pass(&mut engine, Role::First).unwrap();
        if write {
            engine.write_state("m", 0, &vec![1.0; streaming::WIDTH * streaming::WIDTH]).unwrap();
        }
        pass(&mut engine, Role::Update).unwrap();
        let mut moment = [0.0];
        engine.read_state("m", 7, &mut moment).unwrap();
        moment[0]
    };
    let (plain, written) = (after(false), after(true));
    assert!((written - plain - 0.9).abs() < 1e-5, "{plain} and {written}");
}
