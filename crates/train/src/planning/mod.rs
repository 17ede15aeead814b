//! From a model and options to a plan: the graphs a run needs, and the fastest way to run them in the budget.

mod adapted;
mod alternatives;
mod division;
mod exchange;
mod options;
mod plan_file;
mod train_only;
mod zero_stage;

use plimsoll_exec::Device;
use plimsoll_graph::{Graph, GraphError, differentiate, fuse, narrow, quantise, store, tile};
use plimsoll_plan::{Build, Choice, Costed, Facts, Program, Scratch, Searcher, search};

use crate::error::TrainError;
use crate::memory::Budget;
use crate::optimizer::{self, Update, append_in_backward, append_probes, append_sharded, append_two_pass};
pub use adapted::Adapted;
use alternatives::propose;
pub(crate) use alternatives::worth_planning;
use exchange::{divided, for_stage, sum_over_ranks};
pub use options::{Offload, Options};
pub use plan_file::plan_from_file;
pub(crate) use plan_file::plan_of_another_rank;
pub use train_only::TrainOnly;
pub use zero_stage::ZeroStage;

/// A program of more nodes than this is large.
const LARGE: usize = 4096;

/// The graphs of a model, each for a number of rows.
pub trait Model {
    /// The forward graph for `rows` rows, with a scalar output `loss`.
    ///
    /// # Errors
    ///
    /// When the model is wrong.
    fn training(&self, rows: usize) -> Result<Graph, GraphError>;

    /// The forward graph that computes the same loss for evaluation: without dropout.
    ///
    /// # Errors
    ///
    /// When the model is wrong.
    fn evaluation(&self, rows: usize) -> Result<Graph, GraphError> {
        self.training(rows)
    }

    /// The forward graph that yields the next token, if the run is to generate.
    ///
    /// # Errors
    ///
    /// When the model is wrong.
    fn generation(&self) -> Option<Result<Graph, GraphError>> {
        None
    }

    /// The reason, in words, why whole weights are needed outside the graphs; none if they are not.
    fn needs_whole_weights(&self) -> Option<&'static str> {
        None
    }

    /// Tensors that lie with others in one range of state, each under a name that every graph holds. Their number is
    /// asked before a graph is built, because the names alone may be more than a budget.
    fn grouped_tensors(&self) -> u64 {
        0
    }
}

impl<F: Fn(usize) -> Result<Graph, GraphError>> Model for F {
    fn training(&self, rows: usize) -> Result<Graph, GraphError> {
        self(rows)
    }
}

/// A plan for a model on this machine, before any memory is taken.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The plan, its graphs, and how the global batch divides.
    pub choice: Choice,
    /// The budget that the plan was made for.
    pub budget: Budget,
}

/// Finds the fastest plan inside the budget.
///
/// # Errors
///
/// When nothing fits (with hints), or the model or the request is at fault.
pub fn plan_for(model: &impl Model, device: &dyn Device, options: &Options) -> Result<Planned, TrainError> {
    let budget = budget_for(model, device, options)?;
    plan_within(model, |graph: &Graph| device.facts(graph), options, budget)
}

/// How the memory divides for a model on this machine, its plan taken into account.
///
/// # Errors
///
/// When the memory of the machine cannot be read, or the model is wrong.
pub fn budget_for(model: &impl Model, device: &dyn Device, options: &Options) -> Result<Budget, TrainError> {
    budget_with_rounding(model, device, options).map(|(budget, _)| budget)
}

/// As [`budget_for`]; beside the budget, the bytes of it that are [`rounding`](Budget::rounding).
pub(crate) fn budget_with_rounding(
    model: &impl Model,
    device: &dyn Device,
    options: &Options,
) -> Result<(Budget, u64), TrainError> {
    check_room_to_plan(model, device, options)?;
    // The number of nodes does not depend on the rows.
    let program = program(model, device, options, options.micro_batch.unwrap_or(1))?;
    let budget = options.budget_on(device)?;
    let rounding = if budget.ceiling.is_some() { 0 } else { Budget::rounding()? };
    Ok((budget.beside(&program), rounding))
}

/// Refuses a stated budget that is too small even to search for a plan of the model in it.
///
/// # Errors
///
/// When it is, or when the memory of the machine cannot be read, or the model is wrong.
pub fn check_room_to_plan(
    model: &impl Model,
    device: &dyn Device,
    options: &Options,
) -> Result<(), TrainError> {
    let budget = options.budget_on(device)?;
    let tensors = model.grouped_tensors();
    budget.can_name(tensors)?;
    let graph = forward(model, options, options.micro_batch.unwrap_or(1))?;
    let nodes = graph.nodes().iter().filter(|node| !node.op.is_view()).count() as u64;
    Ok(options.budget_on(device)?.can_plan(nodes, tensors, options.offload.is_some())?)
}

/// Finds the fastest plan inside `budget` for a device that `facts` speaks for and that need not be here.
///
/// # Errors
///
/// When nothing fits (with hints), or the model or the request is at fault.
pub fn plan_within(
    model: &impl Model,
    facts: impl Fn(&Graph) -> Facts,
    options: &Options,
    budget: Budget,
) -> Result<Planned, TrainError> {
    plan_with(&mut Searcher::once(Programs { model, facts: &facts, options }), budget)
}

/// As [`plan_within`], with a searcher that the caller keeps for further questions.
///
/// # Errors
///
/// When nothing fits (with hints), or the model or the request is at fault.
pub fn plan_with<M: Model, F: Fn(&Graph) -> Facts + Copy>(
    searcher: &mut Searcher<Programs<'_, M, F>>,
    budget: Budget,
) -> Result<Planned, TrainError> {
    plan_alone(searcher, budget).map_err(|error| propose(error, searcher.build(), searcher.work().largest))
}

/// As [`plan_with`], but plans no alternatives where nothing fits.
pub(crate) fn plan_alone<M: Model, F: Fn(&Graph) -> Facts + Copy>(
    searcher: &mut Searcher<Programs<'_, M, F>>,
    budget: Budget,
) -> Result<Planned, TrainError> {
    let &Programs { model, facts, options } = searcher.build();
    options.check_update()?;
    options.check_division(model)?;
    let found = searcher.search(options.request(&budget));
    let two = options.in_two_passes();
    let in_two = |two: &Options| search(two.request(&budget), Programs { model, facts, options: two });
    let mut error = match found {
        Ok(choice) => {
            // Of a large program only a faster plan is looked for, since a whole search takes as long as the first. Beside
            // a tier not even that: gradients can leave the arena there, so two passes gain little.
            let seconds = choice.step_seconds();
            let Costed { graph, facts: of_graph } = &choice.program.train;
            let large = graph.nodes().len() > LARGE;
            let tier = of_graph.link.is_some();
            let worth = |two: &&Options| !(large && tier) && could_be_faster(model, facts, two, &choice);
            let below = |two: &Options| {
                let mut searcher = Searcher::once(Programs { model, facts, options: two });
                searcher.search_below(two.request(&budget), seconds).ok().flatten()
            };
            let other = two.as_ref().filter(worth);
            let other = other.and_then(|two| if large { below(two) } else { in_two(two).ok() });
            let choice = match other {
                Some(other) => faster(choice, other),
                None => choice,
            };
            let choice = faster_stage(choice, searcher.build(), &budget);
            return Ok(Planned { choice, budget });
        }
        Err(error) => TrainError::search(error, &budget),
    };
    // Two passes are for one rank, and stages for several.
    for other in two.into_iter().chain(options.stages(model).into_iter().skip(1)) {
        if !matches!(error, TrainError::Budget { .. }) {
            break;
        }
        match search(other.request(&budget), Programs { model, facts, options: &other }) {
            Ok(choice) => return Ok(Planned { choice, budget }),
            Err(other) => error = error.closer(TrainError::search(other, &budget)),
        }
    }
    Err(error)
}

/// The fastest of a choice that offloads and those of higher stages, which divide state over ranks instead of moving it.
/// Where nothing moves, the lowest stage stays.
fn faster_stage<M: Model, F: Fn(&Graph) -> Facts + Copy>(
    choice: Choice,
    &Programs { model, facts, options }: &Programs<'_, M, F>,
    budget: &Budget,
) -> Choice {
    if choice.plan.schedules.values().all(|schedule| schedule.copies.is_empty()) {
        return choice;
    }
    options.stages(model).iter().skip(1).fold(choice, |choice, stage| {
        let mut searcher = Searcher::once(Programs { model, facts, options: stage });
        let below = searcher.search_below(stage.request(budget), choice.step_seconds());
        match below.ok().flatten() {
            Some(other) => faster(choice, other),
            None => choice,
        }
    })
}

/// Whether two passes, which recompute everything once but keep no gradients, could take less time than a plan that
/// recomputes much or has little scratch.
fn could_be_faster(
    model: &impl Model,
    facts: impl Fn(&Graph) -> Facts,
    two: &Options,
    choice: &Choice,
) -> bool {
    let batch = two.global_batch;
    let seconds = choice.step_seconds();
    // In two passes a step takes twice as long as in one: most often that settles it.
    if choice.micro_batch == batch && seconds < 1.5 * choice.program.once_seconds(Scratch::Best, 1) {
        return false;
    }
    let program = costed_program(model, &facts, two, batch);
    program.is_ok_and(|program| program.once_seconds(Scratch::Best, 1) < seconds)
}

/// The faster of two choices, the first of equals, with a bound for both.
fn faster(one: Choice, other: Choice) -> Choice {
    let bound = one.lower_bound_seconds.zip(other.lower_bound_seconds).map(|(a, b)| a.min(b));
    let fastest = if other.step_seconds() < one.step_seconds() { other } else { one };
    Choice { lower_bound_seconds: bound, ..fastest }
}

/// Whether [`plan_within`] would find a plan, without looking for the fastest.
///
/// # Errors
///
/// When the model or the request is at fault.
pub fn fits_within(
    model: &impl Model,
    facts: impl Fn(&Graph) -> Facts,
    options: &Options,
    budget: &Budget,
) -> Result<bool, TrainError> {
    options.check_update()?;
    options.check_division(model)?;
    let others = options.in_two_passes().into_iter().chain(options.stages(model).into_iter().skip(1));
    let others: Vec<Options> = others.collect();
    for options in std::iter::once(options).chain(&others) {
        let mut searcher = Searcher::once(Programs { model, facts: &facts, options });
        let fits = searcher.fits(options.request(budget));
        if fits.map_err(|error| TrainError::search(error, budget))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The programs of a model, which a search builds; `facts` gives the facts of the device.
#[derive(Clone, Copy, Debug)]
pub struct Programs<'a, M, F> {
    /// The model.
    pub model: &'a M,
    /// Facts of the device about a graph.
    pub facts: F,
    /// The request for the run.
    pub options: &'a Options,
}

impl<M: Model, F: Fn(&Graph) -> Facts> Build for Programs<'_, M, F> {
    fn whole(&mut self, rows: usize) -> Result<Program, GraphError> {
        costed_program(self.model, &self.facts, self.options, rows)
    }

    fn tiled(&mut self, rows: usize) -> Result<Option<Program>, GraphError> {
        let Some(forward) = tile(&forward(self.model, self.options, rows)?)? else { return Ok(None) };
        assembled(self.model, &self.facts, self.options, rows, &forward).map(Some)
    }
}

/// All graphs of a run with micro-batches of `rows` rows.
///
/// # Errors
///
/// When the model is wrong.
pub fn program(
    model: &impl Model,
    device: &dyn Device,
    options: &Options,
    rows: usize,
) -> Result<Program, GraphError> {
    costed_program(model, |graph| device.facts(graph), options, rows)
}

/// All graphs of a run with micro-batches of `rows` rows, for a device that `facts` speaks for.
///
/// # Errors
///
/// When the model is wrong.
pub fn costed_program(
    model: &impl Model,
    facts: impl Fn(&Graph) -> Facts,
    options: &Options,
    rows: usize,
) -> Result<Program, GraphError> {
    assembled(model, facts, options, rows, &forward(model, options, rows)?)
}

/// The forward pass of a step. Probes compare losses, so dropout would only add noise to them.
pub(crate) fn forward(model: &impl Model, options: &Options, rows: usize) -> Result<Graph, GraphError> {
    let zeroth = options.optimizer.kind.is_zeroth_order();
    let graph = if zeroth { model.evaluation(rows)? } else { model.training(rows)? };
    match &options.train_only {
        Some(chosen) => chosen.of(graph),
        None => Ok(graph),
    }
}

/// All graphs of a run whose forward pass is `forward`. If that works on tiles, so do the others.
fn assembled(
    model: &impl Model,
    facts: impl Fn(&Graph) -> Facts,
    options: &Options,
    rows: usize,
    forward: &Graph,
) -> Result<Program, GraphError> {
    let costed = |graph: Graph| {
        let own = facts(&graph);
        let facts = match options.rank_links {
            Some(links) => links.applied(&graph, own),
            None => own,
        };
        Costed { facts, graph }
    };
    let loss = forward.output_named("loss").ok_or_else(|| GraphError {
        what: "model".into(),
        block: String::new(),
        why: "has no output `loss`; name the scalar to be minimised with `g.output(\"loss\", value)`".into(),
        at: None,
    })?;
    let stored = |graph: Graph| {
        let graph = store(narrow(graph, options.precision)?, options.storage.of_graph())?;
        match &options.quantised {
            Some(base) => quantise(graph, &base.weights(), base.form, options.dequantised()),
            None => Ok(graph),
        }
    };
    let (optimizer, storage) = (&options.optimizer, options.storage);
    let backward = |forward: &Graph| stored(fuse(differentiate(forward, loss)?)?);
    let train = if optimizer.kind.is_zeroth_order() {
        append_probes(stored(forward.clone())?, optimizer, storage, options.world())?
    } else if options.update == Update::TwoPass && rows == options.global_batch {
        append_two_pass(backward(forward)?, optimizer, storage)?
    } else if options.updates_in_backward(rows) {
        append_in_backward(backward(forward)?, optimizer, storage)?
    } else if let Some(ranks) = options.world().filter(|_| options.zero_stage.divides_moments()) {
        append_sharded(for_stage(backward(forward)?, options)?, optimizer, storage, ranks)?
    } else {
        optimizer::append(sum_over_ranks(backward(forward)?, options.world()), optimizer, storage)?
    };
    let tiled = forward.tile_rows().is_some();
    let forward_only = |graph: Graph| {
        let tiles = if tiled { tile(&graph)? } else { None };
        let graph = divided(stored(tiles.unwrap_or(graph))?, options)?;
        Ok(costed(graph))
    };
    let generate = model.generation().transpose()?.map(forward_only).transpose()?;
    let evaluate = options.evaluate.then(|| model.evaluation(rows)).transpose()?;
    let evaluate = evaluate.map(forward_only).transpose()?;
    Ok(Program { train: costed(train), evaluate, generate })
}
