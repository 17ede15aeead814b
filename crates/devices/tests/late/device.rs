//! A device as unlike the CPU as the trait allows: a thread of its own does the work, in order and behind the caller's back.
//!
//! Writes and schedules are queued, and the call returns before they have happened. Every write lands with a delay. Reads wait
//! for the queue. A fault of the data ends what is queued behind it, and is told at the next read. Schedules are bound in
//! `warm_up`, as a device does that records its launches and replays them.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_exec::{Device, ExecError, ScheduleId};
use plimsoll_graph::Graph;
use plimsoll_plan::{Facts, Judged, Role, Runnable, Schedule, Space, Tier, runnable};

/// How much later than asked a write lands.
const DELAY: Duration = Duration::from_micros(20);

type Work = Box<dyn FnOnce(&mut Stream) + Send>;

/// The device as its caller sees it: one end of a queue.
#[derive(Debug)]
pub(crate) struct Late {
    queue: Option<Sender<Work>>,
    worker: Option<JoinHandle<()>>,
}

/// The other end, with a processor that does the work.
struct Stream {
    device: Box<dyn Device>,
    /// The first fault since the last read.
    fault: Option<ExecError>,
    observed: Vec<f32>,
    /// Schedules as the caller gave them.
    known: Vec<(Role, Graph, Schedule)>,
    /// The inner ones, all bound when one is first needed.
    bound: Vec<ScheduleId>,
    arena: u64,
}

impl Late {
    pub(crate) fn new(device: Box<dyn Device>) -> Late {
        let (queue, works) = channel::<Work>();
        let worker = std::thread::spawn(move || {
            let (observed, known, bound) = (Vec::new(), Vec::new(), Vec::new());
            let mut stream = Stream { device, fault: None, observed, known, bound, arena: 0 };
            for work in works {
                work(&mut stream);
            }
        });
        Late { queue: Some(queue), worker: Some(worker) }
    }

    fn push(&self, work: impl FnOnce(&mut Stream) + Send + 'static) {
        self.queue.as_ref().unwrap().send(Box::new(work)).unwrap();
    }

    /// Queues work, which is left undone behind a fault.
    fn later(&self, work: impl FnOnce(&mut Stream) -> Result<(), ExecError> + Send + 'static) {
        self.push(move |stream| {
            if stream.fault.is_none() {
                stream.fault = work(stream).err();
            }
        });
    }

    fn late_write(&self, write: impl FnOnce(&mut dyn Device) -> Result<(), ExecError> + Send + 'static) {
        self.later(move |stream| {
            std::thread::sleep(DELAY);
            write(&mut *stream.device)
        });
    }

    /// Waits for everything queued so far, and for the answer to this question.
    fn ask<T: Send + 'static>(&self, question: impl FnOnce(&mut Stream) -> T + Send + 'static) -> T {
        let (answer, answered) = channel();
        self.push(move |stream| answer.send(question(stream)).unwrap());
        answered.recv().unwrap()
    }

    /// As [`ask`](Self::ask), where a fault of earlier work is the answer.
    fn result<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Stream) -> Result<T, ExecError> + Send + 'static,
    ) -> Result<T, ExecError> {
        self.ask(|stream| stream.fault.take().map_or_else(|| question(stream), Err))
    }

    /// Fills `bytes` as a read does that runs after everything queued so far.
    fn fill(
        &self,
        bytes: &mut [u8],
        read: impl FnOnce(&dyn Device, &mut [u8]) -> Result<(), ExecError> + Send + 'static,
    ) -> Result<(), ExecError> {
        let mut found = vec![0; bytes.len()];
        let found = self.result(move |stream| read(&*stream.device, &mut found).map(|()| found))?;
        bytes.copy_from_slice(&found);
        Ok(())
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        drop(self.queue.take());
        self.worker.take().unwrap().join().unwrap();
    }
}

impl Stream {
    /// Binds all schedules, unless they are bound.
    fn bind(&mut self) -> Result<(), ExecError> {
        if self.bound.is_empty() {
            let known = self.known.iter();
            let known: Vec<Judged> =
                known.map(|(role, graph, schedule)| Judged { role: *role, graph, schedule }).collect();
            let judged = runnable(&known, self.arena).unwrap();
            self.bound =
                judged.iter().map(|schedule| self.device.prepare(schedule)).collect::<Result<_, _>>()?;
        }
        Ok(())
    }

    /// The inner schedule.
    fn bound(&mut self, schedule: ScheduleId) -> Result<ScheduleId, ExecError> {
        self.bind()?;
        Ok(self.bound[schedule.0])
    }
}

impl Device for Late {
    fn name(&self) -> String {
        "late".into()
    }

    fn facts(&self, graph: &Graph) -> Facts {
        let graph = graph.clone();
        self.ask(move |stream| stream.device.facts(&graph))
    }

    fn reserve(&mut self, space: Space) -> Result<(), ExecError> {
        self.ask(move |stream| {
            (stream.fault, stream.known, stream.bound) = (None, Vec::new(), Vec::new());
            stream.arena = space.arena;
            stream.device.reserve(space)
        })
    }

    fn prepare(&mut self, judged: &Runnable) -> Result<ScheduleId, ExecError> {
        let given = (judged.role(), judged.graph().clone(), judged.schedule().clone());
        Ok(self.ask(move |stream| {
            stream.known.push(given);
            ScheduleId(stream.known.len() - 1)
        }))
    }

    fn warm_up(&mut self) -> Result<(), ExecError> {
        self.ask(Stream::bind)
    }

    fn map(&mut self) -> Result<(), ExecError> {
        self.ask(|stream| stream.device.map())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        let bytes = bytes.to_vec();
        self.late_write(move |device| device.write(offset, &bytes));
        Ok(())
    }

    fn write_input(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        let bytes = bytes.to_vec();
        self.late_write(move |device| device.write_input(offset, &bytes));
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.fill(bytes, move |device, bytes| device.read(offset, bytes))
    }

    fn read_output(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.fill(bytes, move |device, bytes| device.read_output(offset, bytes))
    }

    fn observe(&mut self, offset: u64) -> Result<Option<f32>, ExecError> {
        self.later(move |stream| {
            let float = stream.device.observe(offset)?;
            stream.observed.extend(float);
            Ok(())
        });
        Ok(None)
    }

    fn observed(&mut self, floats: &mut Vec<f32>) -> Result<(), ExecError> {
        let (seen, fault) = self.ask(|stream| (std::mem::take(&mut stream.observed), stream.fault.take()));
        floats.extend(seen);
        fault.map_or(Ok(()), Err)
    }

    fn settle(&self) -> Result<(), ExecError> {
        self.result(|stream| stream.device.settle())
    }

    fn write_tier(&mut self, tier: Tier, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        let bytes = bytes.to_vec();
        self.late_write(move |device| device.write_tier(tier, offset, &bytes));
        Ok(())
    }

    fn read_tier(&self, tier: Tier, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.fill(bytes, move |device, bytes| device.read_tier(tier, offset, bytes))
    }

    fn expect(&mut self, next: Option<ScheduleId>) {
        self.later(move |stream| {
            let next = next.map(|next| stream.bound(next)).transpose()?;
            stream.device.expect(next);
            Ok(())
        });
    }

    fn run(&mut self, schedule: ScheduleId) -> Result<(), ExecError> {
        self.later(move |stream| {
            let bound = stream.bound(schedule)?;
            stream.device.run(bound)
        });
        Ok(())
    }

    fn run_timed(&mut self, schedule: ScheduleId, _: &mut [Vec<f64>]) -> Result<(), ExecError> {
        self.run(schedule)
    }

    fn guard_is_intact(&self) -> bool {
        self.ask(|stream| stream.device.guard_is_intact())
    }
}
