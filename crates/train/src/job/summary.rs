//! The facts of a plan for people, gathered once for the table, the JSON and the page.

use std::time::Instant;

use plimsoll_exec::Instructions;
use plimsoll_graph::Graph;
use plimsoll_plan::{
    ArenaBytes, Facts, Point, ProcessBytes, Report, Request, SearchError, Searcher, Space, Tier, faster,
    report, unbudgeted,
};

use crate::config::{Config, LanguageModel};
use crate::error::TrainError;
use crate::memory::{Budget, BudgetOrigin};
use crate::planning::Options;
use crate::planning::{Planned, Programs, plan_with, plan_within};

/// A plan with everything people ask about it.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The plan and its budget.
    pub planned: Planned,
    /// Values that its layers keep and recompute.
    pub report: Report,
    /// The fastest plan without a budget.
    pub unbudgeted: Point,
    /// A lower bound on the time of any schedule inside the budget.
    pub lower_bound_seconds: f64,
    /// Larger budgets that bring something.
    pub faster: Vec<Point>,
    /// Seconds that it took to find the plan.
    pub planning_seconds: f64,
    /// Time of the comparison with other plans: the plan without a budget, the optimum inside the budget if a strategy
    /// was fixed, and plans in larger budgets.
    pub comparing_seconds: f64,
    /// The instruction path of this machine's processor, where it computes.
    pub instructions: Option<Instructions>,
    /// Tokens of a sequence.
    pub seq_len: usize,
    /// Steps that the run would take, where that is known.
    pub steps: Option<u64>,
}

impl Summary {
    /// Predicted time of the whole run.
    pub fn run_seconds(&self) -> Option<f64> {
        self.steps.map(|steps| steps as f64 * self.step_seconds())
    }

    /// Predicted time of one step.
    pub fn step_seconds(&self) -> f64 {
        self.planned.choice.step_seconds()
    }

    /// The plan is slower than the optimum by at most this fraction.
    pub fn gap(&self) -> f64 {
        (self.step_seconds() / self.lower_bound_seconds - 1.0).max(0.0)
    }

    /// Sequences of one step.
    pub fn global_batch(&self) -> usize {
        let choice = &self.planned.choice;
        choice.micro_batch * choice.accumulation * choice.program.ranks()
    }

    /// Bytes that the plan takes on its tier, and bytes that it may take there; none without a tier.
    pub fn waiting_bytes(&self) -> Option<(u64, u64)> {
        let choice = &self.planned.choice;
        let link = choice.program.train.facts.link?;
        let space = Space::of(choice.plan.arena_bytes.0, choice.plan.schedules.values());
        let taken = match link.tier {
            Tier::Host => space.host,
            Tier::Disk => space.disk,
        };
        Some((taken, link.room))
    }

    /// The process with an arena of this size.
    pub fn process_bytes(&self, arena: ArenaBytes) -> ProcessBytes {
        arena.process(self.planned.budget.outside)
    }
}

/// Facts of a device about a graph.
pub type DeviceFacts<'a> = &'a dyn Fn(&Graph) -> Facts;

/// Questions about one model under one budget.
#[allow(missing_debug_implementations, reason = "it holds a function")]
pub struct Questions<'a> {
    /// Answers them.
    pub searcher: Searcher<Programs<'a, LanguageModel, DeviceFacts<'a>>>,
    /// The request.
    pub request: Request,
    budget: Budget,
    instructions: Option<Instructions>,
    seq_len: usize,
}

impl<'a> Questions<'a> {
    /// Questions about the model of `config` on a device that `facts` speaks for.
    pub fn new(config: &'a Config, facts: DeviceFacts<'a>, budget: Budget) -> Questions<'a> {
        let request = config.options.request(&budget);
        // Before the run, planning may use the bytes of its arena; the arena of another device says nothing about this
        // process.
        let here = budget.origin == BudgetOrigin::Stated && budget.ceiling.is_none();
        let room = if here { request.budget.0 / 4 * 3 } else { u64::MAX };
        let programs = Programs { model: &config.model, facts, options: &config.options };
        Questions {
            searcher: Searcher::within(programs, room),
            request,
            budget,
            instructions: config.instructions(),
            seq_len: config.model.seq_len,
        }
    }
}

impl Questions<'_> {
    /// The plan.
    ///
    /// # Errors
    ///
    /// When nothing fits, or the model or the request is at fault.
    pub fn search(&mut self) -> Result<Planned, TrainError> {
        plan_with(&mut self.searcher, self.budget)
    }

    /// The plan with no strategy fixed.
    ///
    /// # Errors
    ///
    /// When nothing fits, or the model or the request is at fault.
    pub fn search_open(&self) -> Result<Planned, TrainError> {
        let &Programs { model, facts, options } = self.searcher.build();
        let options = Options { recompute: None, ..options.clone() };
        plan_within(model, facts, &options, self.budget)
    }

    /// Searches for the plan and describes it.
    ///
    /// # Errors
    ///
    /// When nothing fits, or the model or the request is at fault.
    pub fn plan(&mut self) -> Result<Summary, TrainError> {
        let clock = Instant::now();
        let planned = self.search()?;
        let planning_seconds = clock.elapsed().as_secs_f64();
        let mut summary = self.summarise(planned)?;
        if self.request.strategy.is_some() && summary.planned.choice.lower_bound_seconds.is_none() {
            // The optimum inside the budget says nothing about the time of a fixed strategy.
            if let Some(bound) = self.auto_bound()? {
                summary.lower_bound_seconds = summary.lower_bound_seconds.max(bound);
            }
        }
        if self.budget.origin == BudgetOrigin::Stated {
            let chosen = Point::of(&summary.planned.choice);
            let points = faster(&mut self.searcher, self.request, chosen, summary.unbudgeted);
            summary.faster = points.map_err(|error| self.failure(error))?;
        }
        let comparing_seconds = clock.elapsed().as_secs_f64() - planning_seconds;
        Ok(Summary { planning_seconds, comparing_seconds, ..summary })
    }

    /// The summary of a plan beside the one without a budget; larger budgets are not searched.
    ///
    /// # Errors
    ///
    /// When nothing fits, or the model or the request is at fault.
    pub fn summarise(&mut self, planned: Planned) -> Result<Summary, TrainError> {
        let unbudgeted = unbudgeted(&mut self.searcher, self.request).map_err(|error| self.failure(error))?;
        let choice = &planned.choice;
        // Both are lower bounds, so the higher one counts.
        let bound = choice.lower_bound_seconds.unwrap_or(0.0).max(unbudgeted.step_seconds);
        Ok(Summary {
            report: report(&choice.program, &choice.plan),
            unbudgeted,
            lower_bound_seconds: bound,
            faster: Vec::new(),
            planning_seconds: 0.0,
            comparing_seconds: 0.0,
            instructions: self.instructions,
            seq_len: self.seq_len,
            steps: None,
            planned,
        })
    }

    fn auto_bound(&mut self) -> Result<Option<f64>, TrainError> {
        match self.searcher.search(Request { strategy: None, ..self.request }) {
            Ok(choice) => Ok(choice.lower_bound_seconds),
            Err(SearchError::Budget { .. }) => Ok(None),
            Err(other) => Err(self.failure(other)),
        }
    }

    /// The user's error for a search that failed.
    pub fn failure(&self, error: SearchError) -> TrainError {
        TrainError::search(error, &self.budget)
    }
}
