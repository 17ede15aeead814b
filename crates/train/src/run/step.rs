//! One optimizer step of a run: micro-batches are added to it one by one, then it is finished.
//!
//! ```text
//! let mut step = run.begin(lr, targets);             targets of the whole step that carry a loss
//! for batch in micro_batches { step.backward(&batch)?; }
//! step.finish()?;                                    clips and updates; the next step may begin
//! ```
//!
//! The first `backward` of a step replaces the gradients, the others add to them. Each loss is divided by the targets
//! of the *whole* step, so the losses of its micro-batches add up to the mean over the global batch, and so do the
//! gradients. A wrong number would scale both unseen; so the step counts the targets it is given and refuses a sum that
//! differs. The step borrows the run and holds the learning rate: no call can come in the wrong order or with another
//! rate. On an asynchronous device, `backward` waits for the loss it returns; [`queue`](Step::queue) leaves the loss to
//! `finish`, so that a whole step waits once. A step that is dropped before it is finished changes no parameter, unless
//! the plan updates parameters inside the backward pass.
//!
//! Without gradients, `backward` runs the forward pass alone, once for each probe.

use std::panic::Location;

use plimsoll_exec::Data;
use plimsoll_graph::gradient_name;
use plimsoll_plan::{Program, Role};

use crate::error::TrainError;
use crate::optimizer::PROBE_LOSSES;
use crate::run::probes::Probes;
use crate::run::{OwnInputs, Run, SCALE};

/// An optimizer step under way.
#[derive(Debug)]
#[must_use = "a step changes nothing until it is finished"]
pub struct Step<'r> {
    run: &'r mut Run,
    lr: f32,
    /// Targets of the whole step, over all ranks, and the line that states them.
    targets: u64,
    stated_at: &'static Location<'static>,
    /// Targets of this rank's micro-batches so far; none where the loss is not divided by [`targets`](Self::targets).
    counted: Option<u64>,
    /// Micro-batches so far, and their total number if known.
    gathered: usize,
    expected: Option<usize>,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stepped {
    /// Mean loss over the targets of the step, before its update; without the losses that the graph adds, which are
    /// [`Run::added_losses`].
    pub loss: f32,
    /// Norm of all gradients, before clipping.
    pub grad_norm: f32,
}

impl Run {
    /// Begins a step with the learning rate `lr`, whose micro-batches have `targets` targets that carry a loss; see
    /// [`count_targets`](Self::count_targets). The step is refused where they have another number.
    #[track_caller]
    pub fn begin(&mut self, lr: f32, targets: u64) -> Step<'_> {
        for added in &mut self.added {
            added.sum = 0.0;
        }
        self.losses.clear();
        if let Some(probes) = &mut self.probes {
            probes.begin();
        }
        // A step that was dropped may have left some.
        self.engine.forget_observed();
        let divides = !self.targets.is_empty() && self.engine.reads(Role::First, SCALE);
        Step {
            lr,
            targets,
            stated_at: Location::caller(),
            counted: divides.then_some(0),
            gathered: 0,
            expected: None,
            run: self,
        }
    }

    /// A whole step over these micro-batches, each the graph's inputs by name.
    ///
    /// # Errors
    ///
    /// As [`Step::backward`] and [`Step::finish`].
    #[track_caller]
    pub fn step<'b>(
        &mut self,
        lr: f32,
        batches: &[impl AsRef<[(&'b str, Data<'b>)]>],
    ) -> Result<Stepped, TrainError> {
        let targets = batches.iter().map(|batch| self.count_targets(batch.as_ref())).sum();
        let mut step = self.begin(lr, targets).expecting(batches.len());
        for batch in batches {
            step.queue(batch.as_ref())?;
        }
        step.finish()
    }
}

impl Step<'_> {
    /// The step, with the number of its micro-batches known in advance. If state lives on a disk, the update's first
    /// moments are then fetched while the last micro-batch still runs. No result depends on it.
    pub fn expecting(self, micro_batches: usize) -> Self {
        Step { expected: Some(micro_batches), ..self }
    }

    /// The schedule after the current micro-batch, as far as is known.
    fn next_role(&self) -> Option<Role> {
        match self.expected?.checked_sub(self.gathered + 1)? {
            0 if self.run.updating_passes > 0 => Some(Role::First),
            0 => Some(Role::Update),
            _ if self.run.probes.is_some() => Some(Role::First),
            _ => Some(Role::Further),
        }
    }

    /// Runs forward and backward of one micro-batch; returns its share of the loss, without the losses that the graph
    /// adds.
    ///
    /// `inputs` are the graph's inputs by name. The run supplies `scale` and `rng` itself, unless they are given, and takes
    /// every position for a token where a mixture is not given `present`.
    ///
    /// # Errors
    ///
    /// When an input is missing or of the wrong size, with the line of the caller; when it holds bad data, or more targets
    /// than are left of those of the step; when the plan updates parameters inside the backward pass and the step has a
    /// micro-batch already.
    #[track_caller]
    pub fn backward(&mut self, inputs: &[(&str, Data)]) -> Result<f32, TrainError> {
        self.queue(inputs)?;
        self.collect()?;
        Ok(self.run.losses.last().copied().unwrap_or(0.0))
    }

    /// As [`backward`](Self::backward), but does not wait for the loss: it is among [`Run::losses`] when the step is
    /// finished.
    ///
    /// # Errors
    ///
    /// As [`backward`](Self::backward); bad data may be reported only by [`finish`](Self::finish).
    #[track_caller]
    pub fn queue(&mut self, inputs: &[(&str, Data)]) -> Result<(), TrainError> {
        let passes = self.run.updating_passes;
        if passes > 0 && self.gathered > 0 {
            return Err(TrainError::Config(
                "this plan updates parameters inside the backward pass, so a step has one micro-batch".into(),
            ));
        }
        self.count(inputs)?;
        if let Some(probes) = &self.run.probes {
            return self.probe(inputs, probes.count());
        }
        let role = if self.gathered == 0 { Role::First } else { Role::Further };
        let clip = if passes == 2 { self.clip_factor(inputs)? } else { f32::NAN };
        self.run.torn |= passes > 0;
        self.run_pass(role, inputs, clip, self.next_role())?;
        self.gathered += 1;
        self.run.engine.observe(role, "loss")?;
        for added in &self.run.added {
            self.run.engine.observe(role, &added.name)?;
        }
        Ok(())
    }

    /// Counts the targets of a micro-batch. Once a micro-batch brings a divisor of its own, the targets of the step
    /// are neither counted nor compared.
    fn count(&mut self, inputs: &[(&str, Data)]) -> Result<(), TrainError> {
        let stated = !inputs.iter().any(|(name, _)| *name == SCALE);
        self.counted =
            self.counted.filter(|_| stated).map(|counted| counted + self.run.count_targets(inputs));
        // If the backward pass updates, this micro-batch is the whole step, and `finish` is too late.
        self.compare_targets(self.run.updating_passes > 0)
    }

    /// Refuses more targets than the step was begun with, and also fewer targets if `all` micro-batches of the step have
    /// come. A rank counts only the targets of its own share, which may be fewer.
    fn compare_targets(&self, all: bool) -> Result<(), TrainError> {
        let Some(counted) = self.counted else { return Ok(()) };
        let fewer = all && self.run.ranks() == 1 && counted < self.targets;
        if counted > self.targets || fewer { Err(self.miscounted(counted)) } else { Ok(()) }
    }

    fn miscounted(&self, counted: u64) -> TrainError {
        let (at, stated) = (self.stated_at, self.targets);
        TrainError::Config(format!(
            "{}:{}: the step was begun with {stated} targets that carry a loss, and its micro-batches have {counted}; \
             `Run::count_targets` counts them",
            at.file(),
            at.line()
        ))
    }

    /// Shares losses with the other ranks, and refuses targets of all ranks that are not those the step was begun with.
    fn share_losses(&mut self) -> Result<(), TrainError> {
        let counted = self.run.share_losses(self.counted.unwrap_or(0))?;
        if self.counted.is_some() && counted != self.targets {
            return Err(self.miscounted(counted));
        }
        Ok(())
    }

    /// Runs the forward pass of one micro-batch once for each probe.
    #[track_caller]
    fn probe(&mut self, inputs: &[(&str, Data)], probes: usize) -> Result<(), TrainError> {
        self.run.add_answers(inputs);
        for probe in 0..probes {
            let of_loss = self.scale();
            let place = |probes: &Probes| (probes.place(probe), probes.scale(of_loss));
            let ((direction, size), scale) = self.run.probes.as_ref().map_or(((0, 0.0), of_loss), place);
            let next = if probe + 1 < probes { Some(Role::First) } else { self.next_role() };
            let own = OwnInputs {
                probe: self.run.drawn(direction),
                probe_size: [size],
                scale: [scale],
                ..self.own_inputs(self.gathered, f32::NAN)
            };
            self.run_with(Role::First, inputs, &own, next)?;
            self.run.engine.observe(Role::First, "loss")?;
        }
        self.gathered += 1;
        Ok(())
    }

    /// Waits for the losses of all probes and moves the parameters along the directions that were probed.
    fn finish_probes(mut self) -> Result<Stepped, TrainError> {
        let number = self.run.steps() + 1;
        self.collect()?;
        self.share_losses()?;
        let slope = self.run.probes.as_mut().and_then(Probes::slope);
        let grad_norm = slope.ok_or(TrainError::NotFinite { step: number, what: "loss" })?;
        self.run.torn = true;
        let losses =
            self.run.probes.as_mut().map(|probes| std::mem::take(&mut probes.losses)).unwrap_or_default();
        let own = OwnInputs { probe: self.run.drawn(0), ..self.own_inputs(0, f32::NAN) };
        let ran = self.run_with(Role::Update, &[(PROBE_LOSSES, Data::F32(&losses))], &own, Some(Role::First));
        if let Some(probes) = &mut self.run.probes {
            probes.losses = losses;
        }
        ran?;
        self.run.torn = false;
        self.run.steps = number;
        Ok(Stepped { loss: self.loss(), grad_norm })
    }

    /// Sums the losses of each probe over the micro-batches; the loss of a micro-batch is the mean over its probes.
    fn collect_probes(&mut self) -> Result<(), TrainError> {
        let of_loss = self.scale();
        let Run { engine, losses, probes, .. } = &mut *self.run;
        let Some(probes) = probes else { return Ok(()) };
        let mut observed = engine.observed()?;
        for _ in losses.len()..self.gathered {
            let mut mean = 0.0;
            for (sum, loss) in probes.losses.iter_mut().zip(&mut observed) {
                *sum += loss;
                mean += loss;
            }
            losses.push(mean / probes.count() as f32 * probes.share(of_loss));
        }
        Ok(())
    }

    /// Waits for the observed numbers: for each micro-batch its loss and the losses that the graph adds, then possibly
    /// the norm, which is returned.
    fn collect(&mut self) -> Result<Option<f32>, TrainError> {
        if self.run.probes.is_some() {
            return self.collect_probes().map(|()| None);
        }
        let Run { engine, losses, added, .. } = &mut *self.run;
        let mut observed = engine.observed()?;
        while losses.len() < self.gathered {
            let Some(loss) = observed.next() else { break };
            losses.push(loss);
            for (added, number) in added.iter_mut().zip(&mut observed) {
                added.sum += number;
            }
        }
        Ok(observed.next())
    }

    /// The mean loss over the targets of the step, of all ranks once they have shared theirs.
    fn loss(&self) -> f32 {
        if self.run.ranks() > 1 || self.run.probes.is_some() {
            return self.run.step_loss() as f32;
        }
        self.run.losses.iter().sum()
    }

    /// Clips the gathered gradients and updates the parameters.
    ///
    /// # Errors
    ///
    /// When the step has no micro-batch, or its micro-batches have another number of targets than it was begun with. When a loss
    /// or the norm is not finite: then nothing has changed, and the gathered gradients are forgotten. If the backward pass
    /// updates parameters, some may have been updated before a gradient that is not finite is found; the error says so.
    pub fn finish(mut self) -> Result<Stepped, TrainError> {
        if self.gathered == 0 {
            return Err(TrainError::Config(
                "a step needs at least one `backward` before its `finish`".into(),
            ));
        }
        self.compare_targets(true)?;
        if self.run.probes.is_some() {
            return self.finish_probes();
        }
        let (number, passes) = (self.run.steps() + 1, self.run.updating_passes);
        let known_first = passes == 0 && !self.run.losses_guard_themselves;
        if known_first {
            self.collect()?;
            self.share_losses()?;
            self.finite_loss(number)?;
        }
        let role = if passes > 0 { Role::First } else { Role::Update };
        if passes == 0 {
            self.run.torn = true;
            self.run_pass(role, &[], f32::NAN, Some(Role::First))?;
        }
        self.run.engine.observe(role, "grad_norm")?;
        let grad_norm = self.collect()?.unwrap_or(f32::NAN);
        if !known_first {
            self.share_losses()?;
        }
        self.finite_loss(number)?;
        self.run.torn = !grad_norm.is_finite() && passes == 1 && self.run.some_gradient_is_finite()?;
        if self.run.torn {
            self.run.steps = number;
            return Err(TrainError::PartlyUpdated { step: number });
        }
        if !grad_norm.is_finite() {
            return Err(TrainError::NotFinite { step: number, what: "gradient norm" });
        }
        self.run.steps = number;
        Ok(Stepped { loss: self.loss(), grad_norm })
    }

    /// Refuses a loss that is not finite: no update was begun, or each saw the loss or its gradient and changed nothing.
    fn finite_loss(&mut self, number: u64) -> Result<(), TrainError> {
        if self.loss().is_finite() {
            return Ok(());
        }
        self.run.torn = false;
        Err(TrainError::NotFinite { step: number, what: "loss" })
    }

    /// The gradient of a parameter, summed over the micro-batches so far.
    ///
    /// # Errors
    ///
    /// As [`Run::gradient`].
    pub fn gradient(&self, parameter: &str) -> Result<Vec<f32>, TrainError> {
        self.run.gradient(parameter)
    }

    /// Replaces the gradient of a parameter before the update: for noise, or clipping of one's own.
    ///
    /// # Errors
    ///
    /// When it has none that outlives the backward pass, or it has another size.
    pub fn set_gradient(&mut self, parameter: &str, values: &[f32]) -> Result<(), TrainError> {
        self.run.gradient(parameter)?;
        self.run.set_state(&gradient_name(parameter), values)
    }

    /// Runs the pass that changes nothing; returns the clipping factor, NaN where the next pass must change nothing
    /// either.
    #[track_caller]
    fn clip_factor(&mut self, inputs: &[(&str, Data)]) -> Result<f32, TrainError> {
        self.run_pass(Role::First, inputs, f32::NAN, Some(Role::First))?;
        let loss = self.run.engine().scalar(Role::First, "loss")?;
        let factor = self.run.engine().scalar(Role::First, Program::CLIP)?;
        Ok(if loss.is_finite() { factor } else { f32::NAN })
    }

    #[track_caller]
    fn run_pass(
        &mut self,
        role: Role,
        inputs: &[(&str, Data)],
        clip: f32,
        next: Option<Role>,
    ) -> Result<(), TrainError> {
        // The update draws random numbers per parameter, not per row.
        let before = if role == Role::Update { 0 } else { self.gathered };
        self.run_with(role, inputs, &self.own_inputs(before, clip), next)
    }

    /// One over the targets of the whole step.
    fn scale(&self) -> f32 {
        1.0 / self.targets.max(1) as f32
    }

    /// The inputs of a pass that come from the run itself; `before` micro-batches of the step have run.
    fn own_inputs(&self, before: usize, clip: f32) -> OwnInputs {
        OwnInputs {
            clip: [clip],
            lr: [self.lr],
            scale: [self.scale()],
            step: [(self.run.steps() + 1) as f32],
            rng: self.run.rng(before),
            ..OwnInputs::default()
        }
    }

    #[track_caller]
    fn run_with(
        &mut self,
        role: Role,
        inputs: &[(&str, Data)],
        own: &OwnInputs,
        next: Option<Role>,
    ) -> Result<(), TrainError> {
        self.run.run_pass(role, inputs, own, next)
    }
}
