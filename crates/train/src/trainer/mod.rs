//! A run that is fed: data in, one optimizer step or evaluation at a time, records out.
//!
//! The trainer only measures. The loop over its steps is in `train_loop`, and its listeners are [`Listener`]s:
//! `metrics_file`, `tensorboard`, and any that a caller adds.

mod best_so_far;
mod confusion;
mod events;
mod experts;
mod lr;
mod metrics_file;
mod ranks;
mod records;
mod rescue;
mod tensorboard;
mod train_loop;
mod validation;
mod window;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use plimsoll_plan::Role;

use crate::checkpoint::{Best, Checkpoint, Checkpoints, EvaluationState};
use crate::data::{Batches, Feed};
use crate::error::TrainError;
use crate::run::Run;
pub use best_so_far::EarlyStopping;
use confusion::Confusion;
pub use events::{Event, Listener};
pub use experts::ExpertRecord;
pub use lr::{Decay, Lr};
pub use metrics_file::MetricsFile;
pub(crate) use ranks::dismiss;
pub use records::{BestRecord, EndRecord, EvaluationRecord, RankRecord, StepRecord, write_line};
pub use tensorboard::EventFile;
pub use train_loop::TrainLoop;
pub use validation::ValidationSet;

/// A run that feeds itself.
#[derive(Debug)]
pub struct Trainer {
    run: Run,
    batches: Batches,
    lr: Lr,
    /// The factor on the distance of the probes at each step; 1 where absent.
    noise: Option<Lr>,
    feed: Feed,
    seconds: f64,
    /// The part of them in which this rank did not wait for others.
    busy: Duration,
    positions: u64,
    stop: Arc<AtomicBool>,
    facts: BTreeMap<String, String>,
    /// Groups of the data that the steps so far have taken, without that of a failed step.
    taken: u64,
    /// Measurements so far, for the next checkpoint.
    reached: EvaluationState,
}

impl Trainer {
    /// A trainer of `run` on `batches`, which must have the run's micro-batch.
    pub fn new(run: Run, batches: Batches, lr: Lr) -> Trainer {
        let type_of = |name: &str| run.engine().input(Role::First, name);
        let feed = Feed::new(run.micro_batch(), batches.source().seq_len(), type_of);
        let facts = facts(&run, &batches);
        Trainer {
            run,
            batches,
            lr,
            noise: None,
            feed,
            seconds: 0.0,
            busy: Duration::ZERO,
            positions: 0,
            stop: Arc::default(),
            facts,
            taken: 0,
            reached: EvaluationState::default(),
        }
    }

    /// Lets the probes of each step lie a part of their distance away from the weights, as `noise` says of the step.
    #[must_use]
    pub fn with_noise(self, noise: Option<Lr>) -> Trainer {
        Trainer { noise, ..self }
    }

    /// Adds further facts that must be equal in a run that resumes from a checkpoint of this one, by the names that
    /// users know: the model's configuration, the data.
    #[must_use]
    pub fn with_facts(mut self, facts: impl IntoIterator<Item = (String, String)>) -> Trainer {
        self.facts.extend(facts);
        self
    }

    /// The switch that asks the loop to end after the current step. A signal handler may set it.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Whether a stop was requested.
    pub fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Saves the run between two steps; returns the checkpoint's folder.
    ///
    /// # Errors
    ///
    /// When it cannot be written; earlier checkpoints stay as they were.
    pub fn save(&self, checkpoints: &Checkpoints, progress: &EvaluationState) -> Result<PathBuf, TrainError> {
        checkpoints.save(&self.run, self.taken, &self.facts, progress)
    }

    /// Saves the run as it was before a step that was not finite; returns the checkpoint's folder, which rotation does
    /// not touch.
    ///
    /// # Errors
    ///
    /// When it cannot be written; earlier checkpoints stay as they were.
    pub fn save_last_finite(
        &self,
        checkpoints: &Checkpoints,
        progress: &EvaluationState,
    ) -> Result<PathBuf, TrainError> {
        checkpoints.save_last_finite(&self.run, self.taken, &self.facts, progress)
    }

    /// Continues from a checkpoint: on the same plan bit for bit, on another within rounding. Remains of a kill after
    /// that save are cleared. The best checkpoint so far is copied along. If it cannot be found, the search for the
    /// best starts anew, and the old best is returned.
    ///
    /// # Errors
    ///
    /// When the checkpoint is of another model or another run, or the best cannot be copied; then this trainer must not
    /// be used any more.
    pub fn resume(
        &mut self,
        checkpoints: &Checkpoints,
        from: &Checkpoint,
    ) -> Result<Option<Best>, TrainError> {
        checkpoints.restore(&mut self.run, from, &self.facts)?;
        self.batches.go_to(from.state.position);
        self.taken = from.state.position;
        self.reached = from.state.progress.clone();
        let lost = if checkpoints.bring_best(from)? { None } else { self.reached.best.take() };
        checkpoints.clear_left_over(from, &self.facts, &self.reached);
        Ok(lost)
    }

    /// Settings that have changed since a checkpoint was saved and are allowed to: name, value then and value now.
    pub fn changes_since(&self, from: &Checkpoint) -> Vec<(&'static str, String, String)> {
        from.changes(&self.facts)
    }

    /// One optimizer step on the next global batch. At the end of an epoch that batch is the rest of the epoch, with a
    /// divisor of its own.
    ///
    /// # Errors
    ///
    /// When the data cannot be read, or the loss or the gradient is not finite.
    pub fn step(&mut self) -> Result<StepRecord, TrainError> {
        let (begin, waited) = (Instant::now(), self.run.waited());
        self.lead()?;
        let step = self.run.steps() + 1;
        let group = self.batches.next_group()?;
        let lr = self.lr.at(step);
        if let Some(noise) = &self.noise {
            self.run.scale_probes(noise.at(step) as f32)?;
        }
        let [ranks, rank] = [self.run.ranks(), self.run.rank()].map(|number| number as u64);
        let under_way = self.run.begin(lr as f32, group.valid_tokens);
        let own = group.micro_batches.div_ceil(ranks);
        let mut under_way = under_way.expecting(own as usize);
        for which in (0..own).map(|turn| turn * ranks + rank) {
            self.feed.fill(|rows| self.batches.read(&group, which, rows))?;
            under_way.queue(self.feed.inputs().as_slice())?;
        }
        let grad_norm = f64::from(under_way.finish()?.grad_norm);
        let loss = self.run.step_loss();
        self.taken = self.batches.position();
        let tokens = group.sequences * self.batches.source().seq_len() as u64;
        let taken = begin.elapsed();
        let seconds = taken.as_secs_f64();
        self.seconds += seconds;
        self.busy += taken.saturating_sub(self.run.waited().saturating_sub(waited));
        self.positions += tokens;
        let tokens_per_second = tokens as f64 / seconds;
        let passed = group.first + group.sequences;
        let epoch_length = self.batches.source().sequences_per_epoch();
        Ok(StepRecord {
            step,
            epoch: epoch_length.map(|length| group.epoch as f64 + passed as f64 / length as f64),
            loss,
            mean_over: 1,
            grad_norm,
            lr,
            tokens,
            valid_tokens: group.valid_tokens,
            tokens_per_second,
            memory_bytes: self.run.held()?,
            router_balance: self.router_loss("router.balance"),
            router_z: self.router_loss("router.z"),
        })
    }

    /// The mean over layers of a loss of routers in the last step.
    fn router_loss(&self, name: &str) -> Option<f64> {
        let of_name = self.run.added_losses().filter(|(added, _)| added.ends_with(name));
        let (count, sum) =
            of_name.fold((0, 0.0), |(count, sum), (_, value)| (count + 1, sum + f64::from(value)));
        (count > 0).then(|| sum / f64::from(count))
    }

    /// The loss on validation data, whose micro-batch must be the run's; `None` if a stop is requested meanwhile.
    /// Nothing is trained.
    ///
    /// # Errors
    ///
    /// When the run was not planned to evaluate, or the data cannot be read.
    pub fn evaluate_unless_stopped(
        &mut self,
        validation: &mut ValidationSet,
    ) -> Result<Option<EvaluationRecord>, TrainError> {
        let begin = Instant::now();
        let Some(group) = validation.group(|| self.stop_requested())? else { return Ok(None) };
        let mut eval_loss = 0.0;
        let logits = self.run.engine().output_type(Role::Evaluate, "logits");
        let mut logits = logits.map(|ty| (vec![0.0; ty.shape.elements()], ty.shape.columns()));
        let mut confusion = logits.as_ref().map(|(_, classes)| Confusion::new(*classes));
        for which in 0..group.micro_batches {
            if self.stop_requested() {
                return Ok(None);
            }
            self.feed.fill(|rows| validation.read(&group, which, rows))?;
            eval_loss +=
                f64::from(self.run.evaluate_share(self.feed.inputs().as_slice(), group.valid_tokens)?);
            if let (Some((logits, classes)), Some(confusion), Some(labels)) =
                (&mut logits, &mut confusion, self.feed.labels())
            {
                self.run.engine().output(Role::Evaluate, "logits", logits)?;
                for (row, &label) in logits.chunks(*classes).zip(labels).filter(|(_, label)| **label >= 0) {
                    confusion.add(likeliest(row), label as usize);
                }
            }
        }
        Ok(Some(EvaluationRecord {
            step: self.run.steps(),
            eval_loss,
            eval_perplexity: confusion.is_none().then(|| eval_loss.exp()),
            eval_accuracy: confusion.as_ref().and_then(Confusion::accuracy),
            eval_f1: confusion.as_ref().and_then(Confusion::macro_f1),
            valid_tokens: group.valid_tokens,
            seconds: begin.elapsed().as_secs_f64(),
            best: false,
        }))
    }

    /// The result of the run.
    ///
    /// # Errors
    ///
    /// When the process's memory cannot be read, or a rank has ended.
    pub fn end(&self) -> Result<EndRecord, TrainError> {
        let (planned, own) = (self.run.plan().arena_bytes.0, self.run.engine().measured_peak().0);
        let ranks = self.rank_records()?;
        let other = ranks.iter().map(|rank| rank.peak_bytes).find(|&peak| peak != planned);
        Ok(EndRecord {
            planned_peak_bytes: planned,
            measured_peak_bytes: other.unwrap_or(own),
            process_peak_bytes: self.run.held()?,
            host_peak_bytes: self.run.held_by_host()?,
            tokens_per_second: self.positions as f64 / self.seconds.max(f64::MIN_POSITIVE),
            best: None,
            stopped_early: false,
            slowest_rank: RankRecord::slowest(&ranks),
            ranks,
        })
    }

    /// Measurements so far that a checkpoint keeps.
    pub(crate) fn reached(&self) -> &EvaluationState {
        &self.reached
    }

    /// Facts that must be the same in a resumed run.
    pub(crate) fn facts(&self) -> &BTreeMap<String, String> {
        &self.facts
    }

    pub(crate) fn reach(&mut self, reached: EvaluationState) {
        self.reached = reached;
    }

    /// The run inside.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The run inside, to generate with.
    pub fn run_mut(&mut self) -> &mut Run {
        &mut self.run
    }
}

/// The place of the largest number, the first of equals.
fn likeliest(numbers: &[f32]) -> usize {
    let better = |best: usize, at: usize| if numbers[at] > numbers[best] { at } else { best };
    (0..numbers.len()).reduce(better).unwrap_or(0)
}

/// The settings that decide the numbers of a step under every plan.
fn facts(run: &Run, batches: &Batches) -> BTreeMap<String, String> {
    let epoch = batches.source().sequences_per_epoch();
    let facts = [
        ("seed", run.seed().to_string()),
        ("global batch", batches.global_batch().to_string()),
        ("sequence length", batches.source().seq_len().to_string()),
        ("number of sequences", epoch.map_or("endless".into(), |sequences| sequences.to_string())),
    ];
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
