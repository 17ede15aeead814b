//! The request for a run, and the device, budget and planner's request that follow from it.

use std::path::{Path, PathBuf};

use plimsoll_devices::{DeviceKind, GpuFiles, Setup};
use plimsoll_exec::cpu::{BLOCK, OUTSIDE_BYTES};
use plimsoll_exec::{Device, Instructions, MemoryPool, Timings, measure_disk};
use plimsoll_graph::{DType, Graph, Precision};
use plimsoll_plan::{DeviceSpec, Facts, Link, RankLinks, Request, Strategy, Tier};

use super::train_only::TrainOnly;
use super::zero_stage::ZeroStage;
use crate::error::TrainError;
use crate::files::QuantisedBase;
use crate::memory::{Budget, BudgetOrigin};
use crate::optimizer::Update;
use crate::optimizer::{Optimizer, StateStorage};

/// Bytes outside the arena that a process needs in addition because it is a rank: buffers for messages, and the library that
/// carries them.
const MESSAGES_BYTES: u64 = 32 << 20;

/// The request for a run. The planner chooses everything left open, to be fastest inside the budget.
#[derive(Clone, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "answers to questions that have nothing to do with each other"
)]
pub struct Options {
    /// Bytes of the whole process; the free memory less a margin when not stated.
    pub memory: Option<u64>,
    /// Sequences (rows of the batch axis) of one optimizer step, over all ranks.
    pub global_batch: usize,
    /// Ranks that train together, each on an equal part of the global batch. All that is said of memory and threads is
    /// said of one rank.
    pub ranks: usize,
    /// Whether one rank is a world of its own: exchanges stay in its graph, so that they can be tried on one device.
    pub world_of_one: bool,
    /// Ranks of this machine, where each is a process; none where ranks are threads of one.
    pub processes_here: Option<usize>,
    /// The number of this rank among those of its machine.
    pub rank_here: usize,
    /// How much of the state is divided over ranks.
    pub zero_stage: ZeroStage,
    /// The links between ranks that are not here. Each is then a device of its own, and the plan is not run.
    pub rank_links: Option<RankLinks>,
    /// Rows of one micro-batch.
    pub micro_batch: Option<usize>,
    /// Values that are dropped and recomputed.
    pub recompute: Option<Strategy>,
    /// Where values and state may wait that do not fit; nowhere when absent.
    pub offload: Option<Offload>,
    /// How parameters are updated.
    pub optimizer: Optimizer,
    /// The element type of values between nodes.
    pub precision: Precision,
    /// The element types of weights, gradients and moments.
    pub storage: StateStorage,
    /// The parameters that are trained, if not all that the model trains.
    pub train_only: Option<TrainOnly>,
    /// The frozen weights that are kept in few bits, if any are.
    pub quantised: Option<QuantisedBase>,
    /// Makes weights and dropout masks repeatable.
    pub seed: u64,
    /// The device that computes.
    pub device: DeviceKind,
    /// Files of a GPU.
    pub gpu: GpuFiles,
    /// Whether runs agree bit for bit, on a GPU too.
    pub deterministic: bool,
    /// Whether a GPU multiplies f32 operands in tf32.
    pub tf32: bool,
    /// Threads, or one for each core when 0.
    pub threads: usize,
    /// Instructions of the processor; by default the fastest that it has.
    pub instructions: Option<Instructions>,
    /// Whether the run is also to compute losses without training ([`Run::evaluate`](crate::Run::evaluate)).
    pub evaluate: bool,
    /// When parameters are updated. [`Update::Separate`] unless stated: the other ways need
    /// [`Run::begin`](crate::Run::begin), and have no gradients to inspect.
    pub update: Update,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memory: None,
            global_batch: 1,
            ranks: 1,
            world_of_one: false,
            processes_here: None,
            rank_here: 0,
            zero_stage: ZeroStage::default(),
            rank_links: None,
            micro_batch: None,
            recompute: None,
            offload: None,
            optimizer: Optimizer::default(),
            precision: Precision::default(),
            storage: StateStorage::default(),
            train_only: None,
            quantised: None,
            seed: 0,
            device: DeviceKind::default(),
            gpu: GpuFiles::default(),
            deterministic: false,
            tf32: false,
            threads: 0,
            instructions: None,
            evaluate: false,
            update: Update::default(),
        }
    }
}

/// Where values and state may wait that do not fit into memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Offload {
    /// A disk, for the CPU; memory of the host, for a device that is not the host.
    pub tier: Tier,
    /// Folder for a file on disk. The file has no name and leaves nothing behind.
    pub folder: PathBuf,
    /// Bytes that may be taken; all that is free less a tenth when not stated.
    pub budget: Option<u64>,
    /// Rates of the link in both directions; measured when not stated.
    pub link: Option<Link>,
}

/// A link to a tier whose speed does not matter, because nothing is timed by it.
pub(super) fn unmeasured(tier: Tier, room: u64) -> Link {
    Link { tier, room, block: BLOCK, out_rate: 1e9, in_rate: 1e9, latency: 1e-5, toll: 0.0 }
}

impl Options {
    /// The device, with the disk that the options offer tried.
    ///
    /// # Errors
    ///
    /// When the device does not exist, the threads cannot be started, or the folder cannot hold a file.
    pub fn device(&self) -> Result<Box<dyn Device>, TrainError> {
        let Some(Offload { folder, budget, link, .. }) = &self.offload else { return self.plain_device() };
        let link = if let Some(link) = link {
            *link
        } else {
            let tried = measure_disk(folder, *budget, plimsoll_devices::threads(self.threads));
            self.own_part(tried.map_err(|error| TrainError::Config(error.to_string()))?.link)
        };
        self.device_beside(folder, link)
    }

    /// The device of a rank that takes the plan of another. What moves and when is stated there, so its disk is not tried.
    ///
    /// # Errors
    ///
    /// As [`device`](Self::device).
    pub(crate) fn following_device(&self) -> Result<Box<dyn Device>, TrainError> {
        let Some(Offload { folder, tier, .. }) = &self.offload else { return self.plain_device() };
        self.device_beside(folder, unmeasured(*tier, u64::MAX))
    }

    fn device_beside(&self, folder: &Path, link: Link) -> Result<Box<dyn Device>, TrainError> {
        let setup = Setup { offload: Some((folder.to_owned(), link)), ..self.setup() };
        Ok(plimsoll_devices::open(self.device, &setup)?)
    }

    /// The part of a measured link that one rank of this machine has: ranks share the disk and the room that is free. Room
    /// that was stated is for each rank, as the memory is.
    pub(crate) fn own_part(&self, link: Link) -> Link {
        // Ranks that are planned for with stated links are machines of their own.
        let sharing = if self.rank_links.is_some() { 1 } else { self.ranks_here() };
        let stated = self.offload.as_ref().is_some_and(|offload| offload.budget.is_some());
        Link {
            out_rate: link.out_rate / sharing as f64,
            in_rate: link.in_rate / sharing as f64,
            room: if stated { link.room } else { link.room / sharing as u64 },
            ..link
        }
    }

    /// The device with no tier beside its memory.
    ///
    /// # Errors
    ///
    /// As [`device`](Self::device).
    pub fn plain_device(&self) -> Result<Box<dyn Device>, TrainError> {
        Ok(plimsoll_devices::open(self.device, &self.setup())?)
    }

    /// The setup of its device, with neither a tier nor measured times.
    pub fn setup(&self) -> Setup {
        Setup {
            threads: self.threads,
            instructions: self.instructions,
            gpu: self.gpu.clone(),
            deterministic: self.deterministic,
            tf32: self.tf32,
            ..Setup::default()
        }
    }

    /// Facts of a described device about a graph, with times measured on such a device, and with the host's memory
    /// beside it if the options offer that.
    pub fn facts_of<'a>(
        &self,
        spec: &'a DeviceSpec,
        timings: &'a Timings,
    ) -> impl Fn(&Graph) -> Facts + Copy + use<'a> {
        let link = self.offload.as_ref().map(|offload| spec.host_link(offload.budget));
        move |graph| {
            let mut facts = Facts { link, ..spec.facts(graph) };
            timings.refine(graph, &mut facts, DeviceSpec::LAUNCH_SECONDS);
            facts
        }
    }

    /// How the memory of this machine divides.
    ///
    /// # Errors
    ///
    /// When the memory of the machine cannot be read.
    pub fn budget(&self) -> Result<Budget, TrainError> {
        let mut budget = Budget::resolve(self.memory)?;
        if self.memory.is_none() && self.rank_links.is_none() {
            budget.total.0 /= self.ranks_here() as u64;
        }
        if self.processes_here.is_some() {
            budget.outside += MESSAGES_BYTES;
        }
        if self.offload.is_some() {
            budget.outside += OUTSIDE_BYTES;
        }
        if let Some(base) = &self.quantised {
            budget.outside += base.loading_bytes();
        }
        Ok(budget)
    }

    /// How the memory that holds the device's arena is divided.
    ///
    /// # Errors
    ///
    /// When that memory cannot be read, or less is there than was stated.
    pub fn budget_on(&self, device: &dyn Device) -> Result<Budget, TrainError> {
        match device.pool()? {
            MemoryPool::Process => self.budget(),
            MemoryPool::Own { total, free, taken } => Ok(Budget::of_card(total, free, taken, self.memory)?),
        }
    }

    /// The request to the planner for `budget`.
    pub fn request(&self, budget: &Budget) -> Request {
        Request {
            global_batch: self.rank_batch(),
            micro_batch: self.fixed_micro_batch(),
            strategy: self.recompute,
            budget: budget.arena(),
            // With a stated budget the user wants speed; without one, memory that brings no speed is saved. Nothing is
            // saved in two passes, which are used because little fits.
            slack: if budget.origin == BudgetOrigin::Stated || self.update == Update::TwoPass {
                0.0
            } else {
                0.01
            },
        }
    }

    /// The number of ranks whose exchanges are part of the run's graph; none for a run alone.
    pub fn world(&self) -> Option<usize> {
        (self.ranks > 1 || self.world_of_one).then_some(self.ranks)
    }

    /// Ranks that share the memory and the threads of this machine.
    pub fn ranks_here(&self) -> usize {
        self.processes_here.unwrap_or(self.ranks).max(1)
    }

    /// Sequences of one step that one rank works on.
    pub fn rank_batch(&self) -> usize {
        self.global_batch / self.ranks.max(1)
    }

    /// Rows of one micro-batch, where it was stated or the update takes all of a step at once.
    pub fn fixed_micro_batch(&self) -> Option<usize> {
        match self.update {
            Update::InBackward | Update::TwoPass => self.micro_batch.or(Some(self.global_batch)),
            Update::Auto | Update::Separate => self.micro_batch,
        }
    }

    /// The element type in which readers get quantised weights.
    pub(crate) fn dequantised(&self) -> DType {
        let half = self.precision == Precision::Bf16 || self.storage.of_graph().weights == DType::Bf16;
        if half { DType::Bf16 } else { DType::F32 }
    }

    /// Whether micro-batches of `rows` rows are updated inside their backward pass.
    pub(crate) fn updates_in_backward(&self, rows: usize) -> bool {
        let possible = rows == self.global_batch
            && self.world().is_none()
            && self.optimizer.max_grad_norm.is_none()
            && !self.optimizer.kind.is_zeroth_order();
        possible && matches!(self.update, Update::Auto | Update::InBackward)
    }

    /// The same with two passes, if these were not requested and could help.
    pub(crate) fn in_two_passes(&self) -> Option<Options> {
        let two = Options { update: Update::TwoPass, ..self.clone() };
        let helps = self.update == Update::Auto
            && self.world().is_none()
            && self.optimizer.max_grad_norm.is_some()
            && !self.optimizer.kind.is_zeroth_order();
        (helps && two.check_update().is_ok()).then_some(two)
    }

    /// Refuses a division among ranks that does not come out even, or an update that has no exchange.
    ///
    /// # Errors
    ///
    /// The error says which setting to change.
    pub fn check_ranks(&self) -> Result<(), TrainError> {
        let (ranks, global) = (self.ranks, self.global_batch);
        if ranks == 0 {
            return Err(TrainError::Config("--ranks must be at least 1".into()));
        }
        if !global.is_multiple_of(ranks) {
            let next = global.next_multiple_of(ranks);
            return Err(TrainError::Config(format!(
                "--ranks {ranks} does not divide --global-batch {global}; the next global batch that works is {next}"
            )));
        }
        if self.world().is_some() && matches!(self.update, Update::InBackward | Update::TwoPass) {
            let update = self.update.name();
            return Err(TrainError::Config(format!(
                "--update {update} has no gradients that ranks could sum; leave it out with --ranks {ranks}"
            )));
        }
        self.check_stage()
    }

    /// Refuses an update inside the backward pass where all gradients must be there first.
    ///
    /// # Errors
    ///
    /// When the norm of the gradients is limited, or a step has several micro-batches.
    pub fn check_update(&self) -> Result<(), TrainError> {
        self.check_ranks()?;
        if matches!(self.update, Update::Auto | Update::Separate) {
            return Ok(());
        }
        if self.optimizer.kind.is_zeroth_order() {
            let name = self.optimizer.kind.name();
            return Err(TrainError::Config(format!(
                "`--optim {name}` has no backward pass; leave out `--update`"
            )));
        }
        let limit = self.optimizer.max_grad_norm.filter(|_| self.update == Update::InBackward);
        if let Some(norm) = limit {
            return Err(TrainError::Config(format!(
                "updates inside the backward pass cannot limit the norm of all gradients to {norm}; \
                 add `--max-grad-norm 0`, or take `--update two-pass`"
            )));
        }
        match self.micro_batch {
            Some(micro_batch) if micro_batch != self.global_batch => Err(TrainError::Config(format!(
                "updates inside the backward pass take one micro-batch a step, and a global batch of {} in \
                 micro-batches of {micro_batch} has more; leave out `--update`",
                self.global_batch
            ))),
            _ => Ok(()),
        }
    }
}
