//! The CPU as a device: the arena in main memory, one thread pool, kernels on bound operands, and a disk to
//! offload to.
#![allow(unsafe_code, reason = "it writes into the arena while transfers of other bytes may be open")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_graph::op::Collective;
use plimsoll_graph::{DType, Graph, Node, Op, Type, work};
use plimsoll_plan::{Direction, Facts, Link, NodeFacts, Runnable, Space, Tier};

use crate::arena::Arena;
use crate::cpu::bound::{BoundSchedule, Lanes, act};
use crate::cpu::disk::SECTOR;
#[cfg(address_sanitizer)]
use crate::cpu::gaps::Gaps;
use crate::cpu::{DiskTier, Instructions, Pool, workspace};
use crate::device::{Device, ProbeSize, Probing, ScheduleId, no_schedule, no_tier, unsuitable};
use crate::error::ExecError;
use crate::ranks::Communicator;
use crate::timings::{Paces, Timings};

/// Offsets are multiples of a cache line, which is also the widest vector.
const ALIGNMENT: u64 = 64;

/// Rates that turn work into seconds until times are measured: per thread, typical of a server core with wide vectors.
/// Only ratios between plans depend on them.
const FLOPS_PER_THREAD: f64 = 50e9;
/// How much faster a product of bf16 is on a processor with instructions for it.
const PAIRED_FACTOR: f64 = 2.0;
const BYTES_PER_THREAD: f64 = 6e9;
const SECONDS_PER_ACTION: f64 = 3e-6;
/// How much longer a product takes in the least scratch, where it is packed in smaller pieces: a step of
/// the presets `tiny` and `s` took 1.2 to 1.7 times as long.
const LEAN_FACTOR: f64 = 1.5;

/// Sizes of the models that measure a processor's speed. The values of the first fit in its caches. The second has
/// products large enough for full speed, and values that do not fit.
const PROBES: [ProbeSize; 2] = [
    ProbeSize { width: 128, vocab: 512, seq_len: 128, rows: 4 },
    ProbeSize { width: 512, vocab: 2048, seq_len: 512, rows: 1 },
];

/// The CPU with its arena and threads.
#[derive(Debug)]
pub struct CpuDevice {
    pool: Pool,
    threads: usize,
    instructions: Instructions,
    /// Before the arena, so that other ranks read no bytes that are freed.
    ranks: Option<Membership>,
    /// The number of each node's exchange, in the schedule that is running.
    exchanges: Vec<u64>,
    /// Before the arena, so that its threads end before the bytes they copy are freed.
    disk: Option<DiskTier>,
    arena: Option<Arena>,
    /// Schedules with addresses inside the arena.
    schedules: Vec<BoundSchedule>,
    /// Measured times of ops.
    timings: Timings,
    /// Folder of the disk tier, if there is one.
    offload_folder: Option<PathBuf>,
    /// Figures of the disk tier, if planners may use it.
    link: Option<Link>,
    /// Number that the disk tier gave to each copy of the schedule that is running.
    tickets: Vec<u64>,
    /// Number of transfers started in each lane up to the end of the last schedule.
    before: [u64; 2],
    /// The schedule that ran last, if it may have left transfers open.
    last: Option<ScheduleId>,
    /// The schedule that will run after the next one.
    expected: Option<ScheduleId>,
    /// Transfers that were started ahead, and the schedule they belong to.
    ahead: Ahead,
}

/// A place among ranks, which is left when the device is dropped.
#[derive(Debug)]
struct Membership(Arc<dyn Communicator>);

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.leave("its device is gone");
    }
}

/// Copies of a schedule that the schedule before it has started, each with its number in the disk tier.
#[derive(Debug, Default)]
struct Ahead {
    of: Option<ScheduleId>,
    started: Vec<(usize, u64)>,
}

impl CpuDevice {
    /// A device of `threads` threads, or one for each core when 0, with this machine's fastest instructions.
    ///
    /// # Errors
    ///
    /// When the system refuses the threads.
    pub fn new(threads: usize) -> Result<CpuDevice, ExecError> {
        CpuDevice::of(threads, Instructions::fastest())
    }

    /// The same with instructions that may not be the fastest.
    ///
    /// # Errors
    ///
    /// Also when the processor does not have them.
    pub fn of(threads: usize, instructions: Instructions) -> Result<CpuDevice, ExecError> {
        let instructions = instructions.checked()?;
        let threads =
            if threads == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { threads };
        let pool = Pool::of(threads, instructions)
            .map_err(|error| ExecError::Memory(format!("cannot start {threads} threads: {error}")))?;
        Ok(CpuDevice {
            pool,
            threads,
            instructions,
            ranks: None,
            exchanges: Vec::new(),
            disk: None,
            arena: None,
            schedules: Vec::new(),
            timings: Timings::default(),
            offload_folder: None,
            link: None,
            tickets: Vec::new(),
            before: [0; 2],
            last: None,
            expected: None,
            ahead: Ahead::default(),
        })
    }

    /// The device with a folder that schedules may offload to.
    #[must_use]
    pub fn with_offload_folder(self, folder: PathBuf) -> CpuDevice {
        CpuDevice { offload_folder: Some(folder), ..self }
    }

    /// The device with a folder that planners may offload to, over a link that [`measure_disk`] or the caller
    /// describes.
    ///
    /// [`measure_disk`]: crate::measure_disk
    #[must_use]
    pub fn with_offload(self, folder: PathBuf, link: Link) -> CpuDevice {
        CpuDevice { link: Some(link), ..self.with_offload_folder(folder) }
    }

    /// Time and scratch of a node: measured, or at the pace of measured ops, or by typical rates.
    fn node_facts(&self, graph: &Graph, node: &Node, paces: Option<&Paces>) -> NodeFacts {
        let (inputs, outputs) = (graph.input_types(node), graph.output_types(node));
        let workspace = workspace(&node.op, &inputs, &outputs, self.threads);
        let lean_factor = if workspace.least < workspace.best { LEAN_FACTOR } else { 1.0 };
        let work = work(&node.op, &inputs, &outputs);
        let (seconds, lean) = if let Some(paces) = paces {
            let signature = graph.signature(node);
            let (pace, units) = paces.of(&signature, &work);
            let known = self.timings.get(&signature).copied().unwrap_or_default();
            let seconds = known.seconds.unwrap_or(units * pace.seconds);
            let lean = pace.lean_seconds.map_or(lean_factor * seconds, |pace| units * pace);
            (seconds, known.lean_seconds.unwrap_or(lean))
        } else {
            let threads = self.threads as f64;
            let compute = work.matmul_flops / (self.flops_per_thread(&node.op, &inputs) * threads);
            let fixed = work.bytes / (BYTES_PER_THREAD * threads) + SECONDS_PER_ACTION;
            (compute + fixed, lean_factor * compute + fixed)
        };
        // Less scratch never makes an op faster; if a measurement shows that, the clock was disturbed.
        NodeFacts { seconds, lean_seconds: lean.max(seconds), workspace }
    }

    /// The typical rate of an op's products.
    fn flops_per_thread(&self, op: &Op, inputs: &[Type]) -> f64 {
        let paired = self.instructions == Instructions::Avx512Bf16 && multiplies_halves(op, inputs);
        if paired { PAIRED_FACTOR * FLOPS_PER_THREAD } else { FLOPS_PER_THREAD }
    }

    fn taken(&self) -> Result<&Arena, ExecError> {
        let taken = self.arena.as_ref().filter(|arena| arena.is_mapped());
        taken.ok_or_else(|| ExecError::Memory("the arena has not been taken yet".into()))
    }
}

/// Whether the products of an op have factors of bf16 alone.
fn multiplies_halves(op: &Op, inputs: &[Type]) -> bool {
    let factors = match op {
        Op::Linear { .. }
        | Op::LinearGradInput { .. }
        | Op::LinearGradWeight { .. }
        | Op::Matmul { .. }
        | Op::HeadLoss(_)
        | Op::HeadLossGrad { .. }
        | Op::HeadErrors { .. }
        | Op::Mlp(_) => [0, 1],
        Op::MlpGrad { .. } => [0, 2],
        _ => return false,
    };
    factors.iter().all(|&factor| inputs[factor].dtype == DType::Bf16)
}

impl Device for CpuDevice {
    fn name(&self) -> String {
        format!("cpu, {} thread{}", self.threads, if self.threads == 1 { "" } else { "s" })
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn instructions(&self) -> Option<Instructions> {
        Some(self.instructions)
    }

    fn facts(&self, graph: &Graph) -> Facts {
        let paces = self.timings.paces();
        let facts = |node| self.node_facts(graph, node, paces.as_ref());
        // With a disk, buffers that begin at a sector need not be copied on their way.
        let alignment = if self.link.is_some() { SECTOR } else { ALIGNMENT };
        Facts { alignment, nodes: graph.nodes().iter().map(facts).collect(), link: self.link }
    }

    fn probing(&self) -> Option<Probing> {
        Some(Probing { kernels: self.instructions.name().to_owned(), sizes: PROBES.to_vec() })
    }

    fn use_timings(&mut self, timings: Timings) {
        self.timings = timings;
    }

    fn join(&mut self, ranks: Arc<dyn Communicator>) -> Result<(), ExecError> {
        self.ranks = Some(Membership(ranks));
        Ok(())
    }

    fn rank(&self) -> usize {
        self.ranks.as_ref().map_or(0, |ranks| ranks.0.rank())
    }

    fn arenas_ahead(&self) -> usize {
        self.ranks.as_ref().map_or(1, |ranks| ranks.0.arenas_ahead())
    }

    fn reserve(&mut self, space: Space) -> Result<(), ExecError> {
        if space.host > 0 {
            return Err(ExecError::Unsupported(
                "on the CPU host memory is the arena: offload to disk".into(),
            ));
        }
        self.schedules.clear();
        self.tickets = vec![0; space.transfers];
        (self.before, self.last, self.expected) = ([0; 2], None, None);
        self.ahead = Ahead { of: None, started: Vec::with_capacity(space.transfers) };
        // The disk's threads end here, before the bytes that they copy are freed.
        self.disk = None;
        self.disk = match (&self.offload_folder, space.disk) {
            (_, 0) => None,
            (Some(folder), bytes) => Some(DiskTier::create(folder, bytes, space.transfers)?),
            (None, _) => return Err(ExecError::Unsupported("no folder was named to offload to".into())),
        };
        self.arena = None;
        self.arena = Some(Arena::reserve(space.arena)?);
        Ok(())
    }

    fn prepare(&mut self, schedule: &Runnable) -> Result<ScheduleId, ExecError> {
        let arena = self.arena.as_ref();
        let arena = arena.ok_or_else(|| ExecError::Memory("no addresses were reserved yet".into()))?;
        let graph = schedule.graph();
        self.fits_ranks(graph)?;
        // Sectors are for speed; kernels need no more than lines of the cache.
        let facts = Facts { alignment: ALIGNMENT, ..self.facts(graph) };
        schedule.suits(&facts).map_err(|fault| unsuitable(schedule, &fault))?;
        let bound = BoundSchedule::of(arena, schedule)?;
        self.exchanges.resize(self.exchanges.len().max(graph.nodes().len()), 0);
        self.schedules.push(bound);
        Ok(ScheduleId(self.schedules.len() - 1))
    }

    fn map(&mut self) -> Result<(), ExecError> {
        if let Some(arena) = &mut self.arena {
            arena.map();
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.drain();
        // SAFETY: the device is borrowed mutably, so no schedule runs, and no transfer is under way any more.
        unsafe { self.taken()?.write(offset, bytes) }
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.drain();
        self.read_output(offset, bytes)
    }

    fn write_input(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        let arena = self.taken()?;
        self.free(arena.address(offset, bytes.len() as u64)?, bytes.len(), &[Direction::In, Direction::Out]);
        // SAFETY: the device is borrowed mutably, so no schedule runs, and no transfer under way touches these bytes.
        unsafe { arena.write(offset, bytes) }
    }

    fn read_output(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        let arena = self.taken()?;
        self.free(arena.address(offset, bytes.len() as u64)?, bytes.len(), &[Direction::In]);
        bytes.copy_from_slice(arena.range(offset, bytes.len() as u64)?);
        Ok(())
    }

    fn settle(&self) -> Result<(), ExecError> {
        self.drain();
        self.homecomings()
    }

    fn write_tier(&mut self, tier: Tier, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.settle()?;
        // State that was fetched ahead may be the one that changes.
        self.ahead.of = None;
        self.tier(tier)?.write(offset, bytes)
    }

    fn read_tier(&self, tier: Tier, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.settle()?;
        self.tier(tier)?.read(offset, bytes)
    }

    fn expect(&mut self, next: Option<ScheduleId>) {
        self.expected = next;
    }

    fn run(&mut self, schedule: ScheduleId) -> Result<(), ExecError> {
        self.each_action(schedule, |_, run| run())
    }

    fn run_timed(&mut self, schedule: ScheduleId, seconds: &mut [Vec<f64>]) -> Result<(), ExecError> {
        self.each_action(schedule, |action, run| {
            let begin = Instant::now();
            run()?;
            seconds[action].push(begin.elapsed().as_secs_f64());
            Ok(())
        })
    }

    fn guard_is_intact(&self) -> bool {
        self.arena.as_ref().is_none_or(Arena::guard_is_intact)
    }

    fn notes(&self) -> Vec<String> {
        let cached = self.disk.as_ref().is_some_and(|disk| !disk.bypasses_page_cache());
        let note = "this file system does not let --offload bypass the page cache; the kernel may keep copies in memory";
        cached.then(|| note.to_owned()).into_iter().collect()
    }
}

impl CpuDevice {
    /// Refuses a graph whose exchanges are for another number of ranks than the device has joined.
    fn fits_ranks(&self, graph: &Graph) -> Result<(), ExecError> {
        let joined = self.ranks.as_ref().map_or(1, |ranks| ranks.0.ranks());
        let expected = graph.nodes().iter().find_map(|node| node.op.collective()).map(Collective::ranks);
        match expected.filter(|&expected| expected != joined) {
            Some(expected) => {
                Err(ExecError::Mismatch(format!("the plan is for {expected} ranks, and {joined} are here")))
            }
            None => Ok(()),
        }
    }

    /// Waits for transfers that a schedule has started and not waited for.
    fn drain(&self) {
        if let Some(disk) = &self.disk {
            disk.drain();
        }
    }

    /// Waits for transfers of these directions that touch the bytes from `first` on. In a run that the
    /// judge has checked there are none, since inputs and outputs lie elsewhere.
    fn free(&self, first: *mut u8, bytes: usize, directions: &[Direction]) {
        if let Some(disk) = &self.disk {
            for &way in directions {
                disk.free(way, first.addr()..first.addr() + bytes);
            }
        }
    }

    /// Waits for transfers that the last schedule left open, unless the judge saw this one begin while they were.
    fn follow(&mut self, schedule: ScheduleId) -> Result<(), ExecError> {
        let bound = self.schedules.get(schedule.0).ok_or_else(|| no_schedule(schedule))?;
        let last = self.last.replace(schedule).and_then(|last| self.schedules.get(last.0));
        if last.is_none_or(|last| !bound.may_follow(last)) {
            self.drain();
        }
        Ok(())
    }

    /// Refuses a tier whose state is out of date, because a transfer that a finished schedule left open has failed.
    fn homecomings(&self) -> Result<(), ExecError> {
        self.disk
            .as_ref()
            .map_or(Ok(()), |disk| disk.reached(Direction::Out, self.before[Direction::Out as usize]))
    }

    fn tier(&self, tier: Tier) -> Result<&DiskTier, ExecError> {
        let disk = self.disk.as_ref().filter(|_| tier == Tier::Disk);
        disk.ok_or_else(|| no_tier(&self.name(), tier))
    }

    /// Calls `each` with every action of a schedule, inside the thread pool.
    fn each_action(
        &mut self,
        schedule: ScheduleId,
        mut each: impl FnMut(usize, &mut dyn FnMut() -> Result<(), ExecError>) -> Result<(), ExecError> + Send,
    ) -> Result<(), ExecError> {
        self.taken()?;
        self.follow(schedule)?;
        let expected = self.expected.take();
        let found = self.found_ahead(schedule);
        let bound = self.schedules.get(schedule.0).ok_or_else(|| no_schedule(schedule))?;
        let next = expected.and_then(|next| self.schedules.get(next.0));
        let next = next.filter(|next| next.may_follow(bound));
        let ranks = self.ranks.as_ref().map(|ranks| &*ranks.0);
        let mut lanes = Lanes {
            ranks,
            exchanges: &mut self.exchanges,
            disk: self.disk.as_ref(),
            tickets: &mut self.tickets,
            before: self.before,
            found,
            next,
            ahead: &mut self.ahead.started,
        };
        let result = self.pool.enter(|| {
            let mut actions = bound.actions.iter().enumerate();
            actions.try_for_each(|(index, action)| {
                #[cfg(address_sanitizer)]
                let _gaps = Gaps::around(self.arena.as_ref(), action, &lanes);
                each(index, &mut || act(action, &mut lanes))
            })
        });
        if result.is_ok() {
            self.ahead.started.drain(..found);
            self.ahead.of = expected;
            let started = |disk: &DiskTier| [Direction::Out, Direction::In].map(|way| disk.started(way));
            self.before = self.disk.as_ref().map_or([0; 2], started);
        } else {
            // The schedule ends here, and nothing will wait for the transfers it has started.
            self.drain();
            self.ahead.of = None;
            if let (Some(ranks), Err(error)) = (&self.ranks, &result) {
                ranks.0.leave(&error.to_string());
            }
        }
        result
    }

    /// Takes over the transfers that were started for this schedule, and returns how many there are. Those for another
    /// schedule are waited for and forgotten.
    fn found_ahead(&mut self, schedule: ScheduleId) -> usize {
        if self.ahead.of.take() != Some(schedule) && !self.ahead.started.is_empty() {
            self.drain();
            self.ahead.started.clear();
        }
        for &(copy, ticket) in &self.ahead.started {
            self.tickets[copy] = ticket;
        }
        self.ahead.started.len()
    }
}
