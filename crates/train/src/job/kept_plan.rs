//! The plan that a checkpoint keeps: a run that resumes uses it, unless settings that decide a plan have changed.
//!
//! Times of ops change from one day to the next, and with them the fastest plan. A run that was interrupted must not notice:
//! another division into micro-batches would add gradients in another order.
//!
//! ```text
//! {"global_batch":8,"memory":"67108864B",…}      the settings that decided it
//! {"plimsoll_plan":4,"hash":…,"plan":…}          the plan, in the form of plan files
//! ```

use plimsoll_exec::Device;

use super::Job;
use super::notes::Note;
use super::run_folder::RunFolder;
use crate::config::Config;
use crate::error::TrainError;
use crate::planning::{Planned, plan_from_file};
use crate::settings::RawConfig;

/// Settings that decide a plan, beside the graphs, with which a plan file is compared anyway.
fn settings_of(config: &Config) -> String {
    let all = config.effective();
    let deciding = RawConfig {
        global_batch: all.global_batch,
        micro_batch: all.micro_batch,
        device: all.device,
        memory: all.memory,
        recompute: all.recompute,
        offload: all.offload,
        offload_folder: all.offload_folder,
        host_memory: all.host_memory,
        disk_space: all.disk_space,
        costs: all.costs,
        instructions: all.instructions,
        threads: all.threads,
        ranks: all.ranks,
        zero_stage: all.zero_stage,
        update: all.update,
        ..RawConfig::default()
    };
    serde_json::to_string(&deciding).unwrap_or_default()
}

impl Job<'_> {
    /// The plan of the checkpoint that the run resumes from, if it keeps one for these settings. A plan that cannot be
    /// used is noted, and another is searched for.
    pub(super) fn kept_plan(&mut self, device: &dyn Device) -> Option<Planned> {
        let (kept, micro_batch) = self.folder.as_ref().and_then(RunFolder::kept_plan)?;
        let (settings, plan) = kept.split_once('\n')?;
        if settings != settings_of(&self.config) {
            return None;
        }
        match plan_from_file(&self.config.model, device, &self.config.options, plan) {
            Ok(planned) => Some(planned).filter(|planned| planned.choice.micro_batch == micro_batch),
            Err(TrainError::Config(why)) => {
                self.notes.push(Note::OtherPlan { why });
                None
            }
            Err(_) => None,
        }
    }

    /// Makes the checkpoints of the run keep its plan; `plan` is the text of the plan file.
    pub(super) fn keep_plan(&mut self, plan: &str) {
        let settings = settings_of(&self.config);
        self.folder = self.folder.take().map(|folder| folder.with_plan(format!("{settings}\n{plan}")));
    }
}
