//! A device as unlike the CPU as the trait allows: it does no work before somebody reads a result.
//!
//! Writes and schedules are put into a queue and carried out when somebody reads; a fault of the data is reported then. The
//! first run of a schedule only captures it, as a device does that records its launches and replays them.

use std::sync::{Mutex, PoisonError};

use plimsoll_exec::{Device, ExecError, ScheduleId};
use plimsoll_graph::Graph;
use plimsoll_plan::{Facts, Schedule, Space, Tier};

/// Work that was asked for and not yet done.
#[derive(Debug)]
enum Pending {
    Write { offset: u64, bytes: Vec<u8> },
    WriteTier { tier: Tier, offset: u64, bytes: Vec<u8> },
    Expect(Option<ScheduleId>),
    Run(ScheduleId),
    Observe(u64),
}

/// The device: a queue in front of a CPU device, which does the work once somebody reads.
#[derive(Debug)]
pub(crate) struct Late {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Box<dyn Device>,
    queue: Vec<Pending>,
    observed: Vec<f32>,
    /// The inner schedules, each bound when it was first run.
    captured: Vec<Option<ScheduleId>>,
    /// Schedules as they were given.
    known: Vec<(Graph, Schedule)>,
}

impl Late {
    pub(crate) fn new(device: Box<dyn Device>) -> Late {
        let (queue, observed, captured, known) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Late { inner: Mutex::new(Inner { device, queue, observed, captured, known }) }
    }

    fn own(&mut self) -> &mut Inner {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Does everything that was asked for, up to the first fault, which ends it as a fault ends a stream.
    fn flush(&mut self) -> Result<(), ExecError> {
        for work in std::mem::take(&mut self.queue) {
            match work {
                Pending::Write { offset, bytes } => self.device.write(offset, &bytes)?,
                Pending::WriteTier { tier, offset, bytes } => self.device.write_tier(tier, offset, &bytes)?,
                Pending::Expect(next) => {
                    let next = next.map(|next| self.capture(next)).transpose()?;
                    self.device.expect(next);
                }
                Pending::Run(schedule) => {
                    let captured = self.capture(schedule)?;
                    self.device.run(captured)?;
                }
                Pending::Observe(offset) => self.observed.extend(self.device.observe(offset)?),
            }
        }
        Ok(())
    }

    /// The inner schedule, bound when it is first needed.
    fn capture(&mut self, schedule: ScheduleId) -> Result<ScheduleId, ExecError> {
        if let Some(captured) = self.captured[schedule.0] {
            return Ok(captured);
        }
        let (graph, known) = &self.known[schedule.0];
        let captured = self.device.prepare(graph, known)?;
        self.captured[schedule.0] = Some(captured);
        Ok(captured)
    }
}

impl Device for Late {
    fn name(&self) -> String {
        "late".into()
    }

    fn facts(&self, graph: &Graph) -> Facts {
        self.inner.lock().unwrap().device.facts(graph)
    }

    fn reserve(&mut self, space: Space) -> Result<(), ExecError> {
        let inner = self.own();
        inner.queue.clear();
        inner.captured.clear();
        inner.known.clear();
        inner.device.reserve(space)
    }

    fn prepare(&mut self, graph: &Graph, schedule: &Schedule) -> Result<ScheduleId, ExecError> {
        let inner = self.own();
        inner.known.push((graph.clone(), schedule.clone()));
        inner.captured.push(None);
        Ok(ScheduleId(inner.known.len() - 1))
    }

    fn map(&mut self) -> Result<(), ExecError> {
        self.own().device.map()
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.own().queue.push(Pending::Write { offset, bytes: bytes.to_vec() });
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        let mut inner = self.inner.lock().unwrap();
        inner.flush()?;
        inner.device.read(offset, bytes)
    }

    fn observe(&mut self, offset: u64) -> Result<Option<f32>, ExecError> {
        self.own().queue.push(Pending::Observe(offset));
        Ok(None)
    }

    fn observed(&mut self, floats: &mut Vec<f32>) -> Result<(), ExecError> {
        let inner = self.own();
        let result = inner.flush();
        floats.append(&mut inner.observed);
        result
    }

    fn settle(&self) -> Result<(), ExecError> {
        let mut inner = self.inner.lock().unwrap();
        inner.flush()?;
        inner.device.settle()
    }

    fn write_tier(&mut self, tier: Tier, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.own().queue.push(Pending::WriteTier { tier, offset, bytes: bytes.to_vec() });
        Ok(())
    }

    fn read_tier(&self, tier: Tier, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        let mut inner = self.inner.lock().unwrap();
        inner.flush()?;
        inner.device.read_tier(tier, offset, bytes)
    }

    fn expect(&mut self, next: Option<ScheduleId>) {
        self.own().queue.push(Pending::Expect(next));
    }

    fn run(&mut self, schedule: ScheduleId) -> Result<(), ExecError> {
        self.own().queue.push(Pending::Run(schedule));
        Ok(())
    }

    fn run_timed(&mut self, schedule: ScheduleId, _: &mut [Vec<f64>]) -> Result<(), ExecError> {
        self.run(schedule)
    }
}
