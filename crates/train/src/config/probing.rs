//! Settings of methods without gradients: how many probes a step takes, how far from the weights, and what they are ranked by.

use super::DataConfig;
use super::bounds::mistake;
use super::data::no_answers;
use crate::data::Task;
use crate::error::TrainError;
use crate::optimizer::{Fitness, OptimizerKind};
use crate::settings::RawConfig;
use crate::trainer::Decay;

/// Directions of a step without gradients, as stated for either of its methods.
pub(super) fn directions(raw: &RawConfig, kind: OptimizerKind) -> Result<Option<usize>, TrainError> {
    let stated = [
        ("--zo-directions", raw.zo_directions.is_some(), kind == OptimizerKind::Mezo, "mezo"),
        ("--population", raw.population.is_some(), kind == OptimizerKind::Es, "es"),
        ("--zo-eps", raw.zo_eps.is_some(), kind.is_zeroth_order(), "mezo and es"),
    ];
    if let Some((flag, _, _, method)) = stated.iter().find(|(_, given, meant, _)| *given && !meant) {
        return Err(mistake(format!("{flag} is for --optim {method}; leave it out")));
    }
    match raw.population {
        Some(members) if members < 2 || members % 2 == 1 => Err(mistake(format!(
            "--population must be an even number of at least 2, got {members}: each member has one on the other side of \
             the weights"
        ))),
        Some(members) => Ok(Some(members / 2)),
        None => Ok(raw.zo_directions),
    }
}

/// How the distance of probes falls. Slopes are divided by it, and their rule knows only one.
pub(super) fn noise(raw: &RawConfig, kind: OptimizerKind) -> Result<Decay, TrainError> {
    let Some(name) = raw.zo_eps_scheduler_type.as_deref() else { return Ok(Decay::Constant) };
    if kind != OptimizerKind::Es {
        return Err(mistake("--zo-eps-scheduler-type is for --optim es; leave it out"));
    }
    match name.parse() {
        Ok(Decay::ConstantWithWarmup) | Err(_) => Err(mistake(format!(
            "`{name}` is no zo_eps_scheduler_type; known are constant, linear and cosine"
        ))),
        Ok(decay) => Ok(decay),
    }
}

/// The quantity by which the members of a population are ranked.
pub(super) fn fitness(raw: &RawConfig, kind: OptimizerKind) -> Result<Fitness, TrainError> {
    match raw.es_fitness.as_deref() {
        Some(_) if kind != OptimizerKind::Es => {
            Err(mistake("--es-fitness is for --optim es: slopes are those of a loss; leave it out"))
        }
        Some(name) => name.parse().map_err(mistake),
        None => Ok(Fitness::Loss),
    }
}

/// Refuses a fitness that the data cannot show.
pub(super) fn check_fitness(fitness: Fitness, task: &Task, data: &DataConfig) -> Result<(), TrainError> {
    let name = fitness.name();
    let why = match (fitness, task, data) {
        (Fitness::Loss, _, _) => return Ok(()),
        (_, Task::Classify { .. }, _) => "counts words, and a classifier writes none; leave it out",
        (Fitness::ExactMatch, Task::Masked, _) => {
            "compares answers, and hidden words are none; take --es-fitness accuracy"
        }
        (Fitness::ExactMatch, _, DataConfig::Text(_)) => return Err(no_answers()),
        _ => return Ok(()),
    };
    Err(mistake(format!("--es-fitness {name} {why}")))
}
