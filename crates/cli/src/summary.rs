//! What is said of a plan, gathered once for the table, the JSON and the page.

use std::time::Instant;

use plimsoll::planning::{Facts, Point, Report, Request, SearchError, Searcher, faster, report, unbudgeted};
use plimsoll::training::budget::{Budget, Origin};
use plimsoll::training::{Config, LanguageModel, Programs, plan_with};
use plimsoll::{Graph, Options, Planned, TrainError, plan_within};

use crate::exit::Failure;

/// A plan with everything people ask about it.
pub(crate) struct Summary {
    pub(crate) planned: Planned,
    /// What its layers keep and rebuild.
    pub(crate) report: Report,
    /// The fastest plan without a budget.
    pub(crate) unbudgeted: Point,
    /// No schedule inside the budget is faster.
    pub(crate) lower_bound_seconds: f64,
    /// Larger budgets that bring something.
    pub(crate) faster: Vec<Point>,
    /// How long it took to find the plan.
    pub(crate) planning_seconds: f64,
    /// How long it then took to find out how it stands: the plan without a budget, the optimum inside it where a
    /// strategy was fixed, and what larger ones would bring.
    pub(crate) comparing_seconds: f64,
    pub(crate) seq_len: usize,
    /// Steps that the run would take, where that is known.
    pub(crate) steps: Option<u64>,
}

impl Summary {
    /// Predicted time of the whole run.
    pub(crate) fn run_seconds(&self) -> Option<f64> {
        self.steps.map(|steps| steps as f64 * self.step_seconds())
    }

    /// Predicted time of one step.
    pub(crate) fn step_seconds(&self) -> f64 {
        self.planned.choice.step_seconds()
    }

    /// At most this fraction slower than the optimum.
    pub(crate) fn gap(&self) -> f64 {
        (self.step_seconds() / self.lower_bound_seconds - 1.0).max(0.0)
    }

    /// Sequences of one step.
    pub(crate) fn global_batch(&self) -> usize {
        self.planned.choice.micro_batch * self.planned.choice.accumulation
    }

    /// Bytes of the whole process with an arena of `arena` bytes.
    pub(crate) fn process_bytes(&self, arena: u64) -> u64 {
        arena + self.planned.budget.outside
    }
}

/// What a device says of a graph.
pub(crate) type DeviceFacts<'a> = &'a dyn Fn(&Graph) -> Facts;

/// Questions about one model under one budget.
pub(crate) struct Questions<'a> {
    pub(crate) searcher: Searcher<Programs<'a, LanguageModel, DeviceFacts<'a>>>,
    pub(crate) request: Request,
    budget: Budget,
    seq_len: usize,
}

/// Prepares questions about the model of `config`.
pub(crate) fn questions<'a>(config: &'a Config, facts: DeviceFacts<'a>, budget: Budget) -> Questions<'a> {
    Questions {
        searcher: Searcher::new(Programs { model: &config.model, facts, options: &config.options }),
        request: config.options.request(&budget),
        budget,
        seq_len: config.model.seq_len,
    }
}

impl Questions<'_> {
    /// The plan.
    pub(crate) fn search(&mut self) -> Result<Planned, Failure> {
        Ok(plan_with(&mut self.searcher, self.budget)?)
    }

    /// The plan with no strategy fixed.
    pub(crate) fn search_open(&self) -> Result<Planned, Failure> {
        let &Programs { model, facts, options } = self.searcher.build();
        let options = Options { recompute: None, ..options.clone() };
        Ok(plan_within(model, facts, &options, self.budget)?)
    }

    /// Searches for the plan and says how it stands.
    pub(crate) fn plan(&mut self) -> Result<Summary, Failure> {
        let clock = Instant::now();
        let planned = self.search()?;
        let planning_seconds = clock.elapsed().as_secs_f64();
        let mut summary = self.summarise(planned)?;
        if self.request.strategy.is_some() && summary.planned.choice.lower_bound_seconds.is_none() {
            // What is optimal inside the budget is another question than what the fixed strategy takes.
            if let Some(bound) = self.auto_bound()? {
                summary.lower_bound_seconds = summary.lower_bound_seconds.max(bound);
            }
        }
        if self.budget.origin == Origin::Stated {
            let chosen = Point::of(&summary.planned.choice);
            let points = faster(&mut self.searcher, self.request, chosen, summary.unbudgeted);
            summary.faster = points.map_err(|error| self.failure(error))?;
        }
        let comparing_seconds = clock.elapsed().as_secs_f64() - planning_seconds;
        Ok(Summary { planning_seconds, comparing_seconds, ..summary })
    }

    /// How a plan stands, without asking for others.
    pub(crate) fn summarise(&mut self, planned: Planned) -> Result<Summary, Failure> {
        let unbudgeted = unbudgeted(&mut self.searcher, self.request).map_err(|error| self.failure(error))?;
        let choice = &planned.choice;
        // Both hold, so the higher one does.
        let bound = choice.lower_bound_seconds.unwrap_or(0.0).max(unbudgeted.step_seconds);
        Ok(Summary {
            report: report(&choice.program, &choice.plan),
            unbudgeted,
            lower_bound_seconds: bound,
            faster: Vec::new(),
            planning_seconds: 0.0,
            comparing_seconds: 0.0,
            seq_len: self.seq_len,
            steps: None,
            planned,
        })
    }

    fn auto_bound(&mut self) -> Result<Option<f64>, Failure> {
        match self.searcher.search(Request { strategy: None, ..self.request }) {
            Ok(choice) => Ok(choice.lower_bound_seconds),
            Err(SearchError::Budget { .. }) => Ok(None),
            Err(other) => Err(self.failure(other)),
        }
    }

    /// What a search that failed means to the user.
    pub(crate) fn failure(&self, error: SearchError) -> Failure {
        TrainError::search(error, &self.budget).into()
    }
}
