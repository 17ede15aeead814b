//! Planning, with a word of what is being looked at for those who wait for it.

use plimsoll::planning::Facts;
use plimsoll::training::{Config, budget_for};
use plimsoll::{Device, Graph, Options, Planned, TrainError, plan_within};

use crate::heartbeat;

/// The fastest plan for the model of `config` on this machine, where `options` are asked of it.
pub(crate) fn plan_for(
    config: &Config,
    device: &dyn Device,
    options: &Options,
) -> Result<Planned, TrainError> {
    let budget = budget_for(&config.model, device, options)?;
    plan_within(&config.model, watched(|graph| device.facts(graph)), options, budget)
}

/// Facts of graphs from a device, with a word to the user for each program that a search asks about.
pub(crate) fn watched(facts: impl Fn(&Graph) -> Facts) -> impl Fn(&Graph) -> Facts {
    move |graph| {
        if let Some(what) = looked_at(graph) {
            heartbeat::come_to(what);
        }
        facts(graph)
    }
}

/// The program whose graph this is.
fn looked_at(graph: &Graph) -> Option<String> {
    let tokens = graph.input_named("tokens")?; // (B, T)
    let rows = graph.shape(tokens).rows();
    let tiles = if graph.tile_rows().is_some() { ", with tiles" } else { "" };
    Some(format!("planning, now micro-batches of {rows}{tiles}"))
}

#[cfg(test)]
mod tests {
    use plimsoll::Model;
    use plimsoll::training::RawConfig;

    use super::*;

    #[test]
    fn whoever_waits_is_told_which_micro_batch_is_looked_at() {
        let raw = RawConfig { memory: Some("64MiB".into()), ..RawConfig::default() };
        let model = Config::check(&raw).unwrap().model;
        assert_eq!(
            looked_at(&model.training(4).unwrap()).as_deref(),
            Some("planning, now micro-batches of 4")
        );
    }
}
