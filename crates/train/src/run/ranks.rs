//! A run that is one of several ranks: its place among them, and the words they exchange beside their schedules.
//!
//! Micro-batches of a step are dealt out in turn: micro-batch `k` of rank `r` is number `k · ranks + r` of the global batch. So
//! data, dropout and divisor belong to rows of the global batch, and the number of ranks changes only the order of sums.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_exec::{Communicator, Data, Device, ExecError};
use plimsoll_graph::{DType, Type};
use plimsoll_plan::Role;

use super::Run;
use super::probes::Probes;
use super::start::held;
use super::words::Word;
use crate::error::TrainError;
use crate::planning::Planned;

/// The other ranks of a run.
#[derive(Debug)]
pub(super) struct Peers {
    communicator: Arc<dyn Communicator>,
    /// Memory for words: this rank's, and those of all.
    own: Vec<u8>,
    all: Vec<u8>,
    /// The loss of the last step, summed over ranks.
    loss: f64,
    /// The most bytes that the process of another rank held; 0 where all ranks are threads of this one.
    held: u64,
}

/// Bytes of a number in a word.
const NUMBER: usize = size_of::<f64>();
/// Numbers that every word begins with: the loss, the bytes of the process and the targets.
const NUMBERS: usize = 3;

impl Run {
    /// As [`start`](Self::start), for one of several ranks, each of which starts with the same plan and seed. The targets that a
    /// step is [begun](Self::begin) with are those of all ranks.
    ///
    /// # Errors
    ///
    /// When the memory cannot be had, the device cannot exchange anything, or the plan is for another number of ranks.
    pub fn start_rank(
        mut device: Box<dyn Device>,
        planned: Planned,
        seed: u64,
        communicator: &Arc<dyn Communicator>,
    ) -> Result<Run, TrainError> {
        device.join(Arc::clone(communicator))?;
        Run::start_joined(device, planned, seed, communicator)
    }

    /// As [`start_rank`](Self::start_rank), on a device that has joined the other ranks.
    pub(crate) fn start_joined(
        device: Box<dyn Device>,
        planned: Planned,
        seed: u64,
        communicator: &Arc<dyn Communicator>,
    ) -> Result<Run, TrainError> {
        // Without exchanges each rank would train a model of its own.
        let [planned_for, here] = [planned.choice.program.ranks(), communicator.ranks()];
        if planned_for != here {
            let why =
                format!("the plan is for {planned_for} rank{}, and {here} are here", plural(planned_for));
            return Err(ExecError::Mismatch(why).into());
        }
        let mut run = Run::start(device, planned, seed)?;
        run.join(communicator);
        Ok(run)
    }

    /// Makes the run one rank of several; its device has joined them already.
    pub(crate) fn join(&mut self, communicator: &Arc<dyn Communicator>) {
        let ranks = communicator.ranks();
        // After them come the losses that the graph adds, the losses of probes, and the answers.
        let probed = self.probes.as_ref().map_or(0, |probes| probes.count() + 1);
        let bytes = (NUMBERS + self.added.len() + probed) * NUMBER;
        self.others = Some(Peers {
            communicator: Arc::clone(communicator),
            own: vec![0; bytes],
            all: vec![0; bytes * ranks],
            loss: 0.0,
            held: 0,
        });
    }

    /// The number of this rank; 0 for a run alone.
    pub fn rank(&self) -> usize {
        self.others.as_ref().map_or(0, |others| others.communicator.rank())
    }

    /// How many ranks train together.
    pub fn ranks(&self) -> usize {
        self.others.as_ref().map_or(1, |others| others.communicator.ranks())
    }

    /// Seed, step and first row in the global batch of a micro-batch with `before` others of this rank's step before it.
    pub(crate) fn rng(&self, before: usize) -> [i32; 4] {
        let row = (before * self.ranks() + self.rank()) * self.micro_batch;
        self.drawn(row as i32)
    }

    /// Seed, step and the number of this rank's shards, by whose place in the whole they are rounded at random.
    pub(super) fn rounding(&self, [low, high, step, _]: [i32; 4]) -> [i32; 4] {
        [low, high, step, self.rank() as i32]
    }

    /// How this rank reaches the others, if there are any.
    pub(crate) fn communicator(&self) -> Option<&dyn Communicator> {
        self.others.as_ref().map(|others| &*others.communicator)
    }

    /// Whether other ranks are other processes.
    fn has_processes(&self) -> bool {
        self.communicator().is_some_and(|world| world.ranks_in_process() < world.ranks())
    }

    /// Bytes that this rank has sent in exchanges of its schedules.
    pub fn sent_bytes(&self) -> u64 {
        self.communicator().map_or(0, Communicator::sent)
    }

    /// The mean loss of the last step over the targets of all ranks.
    pub fn step_loss(&self) -> f64 {
        let own = || self.losses.iter().copied().map(f64::from).sum();
        let sum: f64 = self.others.as_ref().map_or_else(own, |others| others.loss);
        sum / self.probes.as_ref().map_or(1.0, Probes::divisor)
    }

    /// Time that this rank has waited for others.
    pub(crate) fn waited(&self) -> Duration {
        self.communicator().map_or(Duration::ZERO, Communicator::waited)
    }

    /// Bytes that this rank holds of the memory that its budget counts: its part of the process, where ranks are threads.
    pub(crate) fn own_bytes(&self) -> Result<u64, TrainError> {
        let threads = self.communicator().map_or(1, Communicator::ranks_in_process);
        held(self.engine.device()).map(|bytes| bytes.div_ceil(threads as u64))
    }

    /// The most bytes that the process of another rank held.
    pub(super) fn held_elsewhere(&self) -> u64 {
        self.others.as_ref().map_or(0, |others| others.held)
    }

    /// Has all other ranks run a schedule together with rank 0, if they divide the weights that it reads.
    pub(super) fn call(&self, role: Role) -> Result<(), TrainError> {
        match self.communicator() {
            Some(world) if world.rank() == 0 && self.divides_weights() => {
                Ok(world.broadcast(&mut Word::Pass { role }.to_bytes())?)
            }
            _ => Ok(()),
        }
    }

    /// Runs a schedule that rank 0 has called for, with zeros for its inputs: this rank gives its part of the weights, and
    /// its result is not read.
    pub(crate) fn come_along(&mut self, role: Role) -> Result<(), TrainError> {
        let inputs: Vec<(String, Type)> =
            self.engine.inputs(role)?.map(|(name, ty)| (name.to_owned(), ty)).collect();
        let most = inputs.iter().map(|(_, ty)| ty.shape.elements()).max().unwrap_or(0);
        let (numbers, ids) = (vec![0.0; most], vec![0; most]);
        let zeros = |ty: &Type| match ty.dtype {
            DType::F32 => Data::F32(&numbers[..ty.shape.elements()]),
            _ => Data::I32(&ids[..ty.shape.elements()]),
        };
        let inputs: Vec<(&str, Data)> = inputs.iter().map(|(name, ty)| (name.as_str(), zeros(ty))).collect();
        Ok(self.engine.run(role, &inputs)?)
    }

    /// Sums the losses of a step over all ranks, in their order, and learns what their processes hold. This rank has counted
    /// `targets` targets; returns those of all ranks.
    pub(super) fn share_losses(&mut self, targets: u64) -> Result<u64, TrainError> {
        let own: f64 = self.losses.iter().copied().map(f64::from).sum();
        let held = if self.has_processes() { self.own_bytes()? } else { 0 };
        let Some(others) = &mut self.others else {
            self.probes.iter_mut().for_each(Probes::are_all);
            return Ok(targets);
        };
        let probed = self.probes.iter().flat_map(|probes| &probes.losses).map(|&loss| f64::from(loss));
        let added = self.added.iter().map(|added| f64::from(added.sum));
        let answers = self.probes.iter().map(|probes| probes.answers as f64);
        let numbers =
            [own, held as f64, targets as f64].into_iter().chain(added).chain(probed).chain(answers);
        for (place, number) in others.own.chunks_exact_mut(NUMBER).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        others.communicator.gather(&others.own, &mut others.all)?;
        let words = others.all.chunks_exact(others.own.len());
        let number = |word: &[u8], at: usize| {
            let bytes = word.get(at * NUMBER..).and_then(|bytes| bytes.first_chunk::<NUMBER>());
            bytes.map_or(f64::NAN, |bytes| f64::from_le_bytes(*bytes))
        };
        others.loss = words.clone().map(|word| number(word, 0)).sum();
        others.held = words.clone().map(|word| number(word, 1) as u64).fold(others.held, u64::max);
        for (at, added) in self.added.iter_mut().enumerate() {
            added.sum = words.clone().map(|word| number(word, NUMBERS + at)).sum::<f64>() as f32;
        }
        if let Some(probes) = &mut self.probes {
            let (first, count) = (NUMBERS + self.added.len(), probes.count());
            probes.answers = words.clone().map(|word| number(word, first + count) as u64).sum();
            for (rank, word) in words.clone().enumerate() {
                probes.add_rank(rank, (first..first + count).map(|at| number(word, at) as f32));
            }
        }
        Ok(words.map(|word| number(word, 2) as u64).sum())
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
