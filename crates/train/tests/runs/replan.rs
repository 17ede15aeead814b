//! A device that turns out to hold more beside the arena than was planned for gets one more plan, inside the same budget.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_exec::{Device, ExecError, MemoryPool, ScheduleId};
use plimsoll_graph::Graph;
use plimsoll_plan::{Facts, Runnable, Space};
use plimsoll_train::{LanguageModel, Options, Planned, Run, TrainError, plan_for};

use crate::support::{Batch, Size, llama};

const SEQ: usize = 128;
const TOTAL: u64 = 1 << 30;
/// Bytes that the card holds once it is open.
const OPENED: u64 = 16 << 20;

/// The processor as a card whose libraries take `grown` bytes when they first run.
#[derive(Debug)]
struct Card {
    inner: Box<dyn Device>,
    taken: u64,
    grown: u64,
    arena: u64,
}

impl Card {
    fn open(grown: u64) -> Box<dyn Device> {
        Box::new(Card { inner: plimsoll_devices::cpu(1).unwrap(), taken: OPENED, grown, arena: 0 })
    }
}

impl Device for Card {
    fn name(&self) -> String {
        "card".into()
    }

    fn pool(&self) -> Result<MemoryPool, ExecError> {
        Ok(MemoryPool::Own { total: TOTAL, free: TOTAL - self.taken, taken: self.taken })
    }

    fn facts(&self, graph: &Graph) -> Facts {
        self.inner.facts(graph)
    }

    fn reserve(&mut self, space: Space) -> Result<(), ExecError> {
        self.arena = space.arena;
        self.inner.reserve(space)
    }

    fn prepare(&mut self, schedule: &Runnable) -> Result<ScheduleId, ExecError> {
        self.inner.prepare(schedule)
    }

    fn warm_up(&mut self) -> Result<(), ExecError> {
        // Libraries that have run once take nothing more.
        self.taken = OPENED + self.grown;
        self.inner.warm_up()
    }

    fn map(&mut self) -> Result<(), ExecError> {
        self.taken += self.arena;
        self.inner.map()
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.inner.write(offset, bytes)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.inner.read(offset, bytes)
    }

    fn run(&mut self, schedule: ScheduleId) -> Result<(), ExecError> {
        self.inner.run(schedule)
    }

    fn run_timed(&mut self, schedule: ScheduleId, seconds: &mut [Vec<f64>]) -> Result<(), ExecError> {
        self.inner.run_timed(schedule, seconds)
    }
}

fn model() -> LanguageModel {
    let size = Size { seq: SEQ, width: 256, layers: 4, ..Size::GOLDEN };
    LanguageModel { architecture: llama(size), seq_len: SEQ, generate: false, lora: None }
}

fn options(memory: u64) -> Options {
    Options { memory: Some(memory), global_batch: 32, micro_batch: Some(32), seed: 7, ..Options::default() }
}

/// Starts a run on a card whose memory in use grows by `grown` bytes. Returns it with its plan and the number of
/// plans made.
fn started(options: &Options, grown: u64) -> Result<(Run, Planned, usize), TrainError> {
    let device = Card::open(grown);
    let mut planned = plan_for(&model(), &*device, options)?;
    let mut plans = 1;
    let run = Run::start_or_replan(device, &mut planned, options.seed, |device| {
        plans += 1;
        plan_for(&model(), device, options)
    })?;
    Ok((run, planned, plans))
}

#[test]
fn a_device_that_grew_is_planned_again_and_stays_inside_the_budget() {
    let (_, wide, plans) = started(&options(512 << 20), 1 << 20).unwrap();
    assert_eq!(plans, 1, "growth that was allowed for is no reason to plan again");
    // The first plan keeps everything, because it does not know that the device will grow. After the growth and the reserve
    // 80 MiB are left.
    let grown = 200 << 20;
    let budget = OPENED + grown + (144 << 20);
    let (mut run, planned, plans) = started(&options(budget), grown).unwrap();
    assert_eq!(plans, 2);
    assert!(planned.choice.plan.arena_bytes < wide.choice.plan.arena_bytes);
    assert!(run.held().unwrap() <= budget, "{} of {budget}", run.held().unwrap());
    let [card, host] = [run.held().unwrap(), run.held_by_host().unwrap().unwrap()];
    assert!(host > 0 && host != card, "the process is counted by itself: {host} beside {card}");
    let batch = Batch::synthetic(32, SEQ, 64, false, 0);
    assert!(batch.step(&mut run, 1e-2).1.is_finite());
}

#[test]
fn a_device_that_grew_beyond_the_whole_budget_is_an_error_with_the_budget() {
    let error = started(&options(160 << 20), 200 << 20).unwrap_err().to_string();
    assert!(error.contains("budget"), "{error}");
}
