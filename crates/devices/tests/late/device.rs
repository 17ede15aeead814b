//! A device as unlike the CPU as the trait allows: it does nothing when told and everything when asked.
//!
//! Writes and schedules are put into a queue and carried out when somebody reads; a fault of the data is told then. The
//! first run of a schedule only captures it, as a device does that records its launches and replays them.

use std::sync::{Mutex, PoisonError};

use plimsoll_exec::{Device, ExecError, ScheduleId};
use plimsoll_graph::Graph;
use plimsoll_plan::{Facts, Judged, Role, Runnable, Schedule, Space, Tier, runnable};

/// Work that was asked for and not yet done.
#[derive(Debug)]
enum Pending {
    Write { offset: u64, bytes: Vec<u8> },
    WriteTier { tier: Tier, offset: u64, bytes: Vec<u8> },
    Expect(Option<ScheduleId>),
    Run(ScheduleId),
    Observe(u64),
}

/// The device, with a processor that does the work in the end.
#[derive(Debug)]
pub(crate) struct Late {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Box<dyn Device>,
    queue: Vec<Pending>,
    observed: Vec<f32>,
    /// The inner schedules, bound when the first was run.
    captured: Vec<ScheduleId>,
    /// Schedules as they were given.
    known: Vec<(Role, Graph, Schedule)>,
    arena: u64,
}

impl Late {
    pub(crate) fn new(device: Box<dyn Device>) -> Late {
        let (queue, observed, captured, known) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Late { inner: Mutex::new(Inner { device, queue, observed, captured, known, arena: 0 }) }
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

    /// The inner schedule; all are bound when one is first needed.
    fn capture(&mut self, schedule: ScheduleId) -> Result<ScheduleId, ExecError> {
        if self.captured.is_empty() {
            let known: Vec<Judged> = self
                .known
                .iter()
                .map(|(role, graph, schedule)| Judged { role: *role, graph, schedule })
                .collect();
            let judged = runnable(&known, self.arena).unwrap();
            self.captured =
                judged.iter().map(|schedule| self.device.prepare(schedule)).collect::<Result<_, _>>()?;
        }
        Ok(self.captured[schedule.0])
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
        inner.arena = space.arena;
        inner.device.reserve(space)
    }

    fn prepare(&mut self, judged: &Runnable) -> Result<ScheduleId, ExecError> {
        let inner = self.own();
        inner.known.push((judged.role(), judged.graph().clone(), judged.schedule().clone()));
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
