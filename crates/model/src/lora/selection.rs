//! Which modules get an adapter, and of which rank: PEFT's rules for names, patterns, exclusions and layers.
//!
//! PEFT is lenient: a name that matches nothing is ignored. An existing adapter is read that way. For a new adapter
//! such a name is a typing error, and [`Lora::check_names`] refuses it.

use std::collections::BTreeSet;

use plimsoll_graph::{Graph, GraphError};

use super::layers::{Adapter, Form, heads, is_head_name, is_named, layers, no_adapter_for_head};
use super::pattern::Pattern;
use super::{AdapterKind, Lora, saves};
use crate::language::refuse;

/// Which modules get an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Every linear layer but the output head.
    AllLinear,
    /// Modules that have one of these names, or end in one after a dot.
    Names(Vec<String>),
    /// Modules whose whole name fits.
    Pattern(Pattern),
}

/// Modules that get no adapter though a target fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Excluded {
    /// Modules that have one of these names, or end in one after a dot.
    Names(Vec<String>),
    /// Modules whose whole name fits.
    Pattern(Pattern),
}

impl Default for Excluded {
    fn default() -> Excluded {
        Excluded::Names(Vec::new())
    }
}

impl Excluded {
    /// Whether nothing is excluded.
    pub fn is_empty(&self) -> bool {
        *self == Excluded::default()
    }

    fn holds(&self, module: &str) -> Result<bool, GraphError> {
        match self {
            Excluded::Names(names) => Ok(names.iter().any(|name| is_named(module, name))),
            Excluded::Pattern(pattern) => pattern.fits(module),
        }
    }
}

/// Layers that get adapters, where not all do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerChoice {
    /// The numbers of the layers, from 0.
    pub numbers: Vec<usize>,
    /// Expressions for the name before the number, tried in order; any name where there is none.
    pub patterns: Vec<Pattern>,
}

impl LayerChoice {
    fn holds(&self, module: &str) -> Result<bool, GraphError> {
        let mut number = None;
        if self.patterns.is_empty() {
            number = Pattern::before_layer("")?.layer_of(module)?;
        }
        for pattern in &self.patterns {
            number = number.or(pattern.layer_of(module)?);
        }
        Ok(number.is_some_and(|number| self.numbers.contains(&number)))
    }
}

impl Lora {
    /// Whether a layer is meant: a target fits, its layer is chosen, and nothing excludes it.
    pub(super) fn means(&self, layer: &Adapter) -> Result<bool, GraphError> {
        let module = &layer.module;
        if self.excludes(module)? {
            return Ok(false);
        }
        match &self.targets {
            Targets::AllLinear => Ok(layer.form != Form::Table),
            Targets::Pattern(pattern) => pattern.fits(module),
            // A name that is written out in full matches in every layer.
            Targets::Names(names) if names.contains(module) => Ok(true),
            Targets::Names(names) => Ok(names.iter().any(|name| is_named(module, name))
                && self.layers.as_ref().map_or(Ok(true), |layers| layers.holds(module))?),
        }
    }

    /// Whether a module gets no adapter, whatever the targets are.
    pub(super) fn excludes(&self, module: &str) -> Result<bool, GraphError> {
        Ok(self.saves(&format!("{module}.weight")) || self.excluded.holds(module)?)
    }

    /// The rank of a module's adapter.
    pub(super) fn rank_of(&self, module: &str) -> Result<usize, GraphError> {
        Ok(first_that_fits(&self.rank_pattern, module)?.unwrap_or(self.rank))
    }

    /// `alpha` of a module's adapter.
    pub(super) fn alpha_of(&self, module: &str) -> Result<f32, GraphError> {
        Ok(first_that_fits(&self.alpha_pattern, module)?.unwrap_or(self.alpha))
    }

    /// Refuses names, patterns and numbers that match no layer of the model; a typing error would otherwise train
    /// something else than intended.
    ///
    /// # Errors
    ///
    /// The first of them, with the names that the model has.
    pub fn check_names(&self, forward: &Graph) -> Result<(), GraphError> {
        let (layers, heads) = (layers(forward), heads(forward));
        if let Targets::Names(names) = &self.targets {
            check_targets(names, &layers, &heads)?;
        }
        self.check_parameters(forward)?;
        let adapters = self.adapters(forward)?;
        let adapted = self.pattern_keys(forward, &adapters)?;
        let unused = |what: &str, text: &str| {
            let known = short_names(&adapters);
            refuse("lora", format!("{what} `{text}` fits none of the modules that get adapters: {known}"))
        };
        for (what, patterns) in
            [("the rank pattern", keys(&self.rank_pattern)), ("the alpha pattern", keys(&self.alpha_pattern))]
        {
            for pattern in patterns {
                if !any(adapted.iter().map(String::as_str), |name| pattern.fits(name))? {
                    return Err(unused(what, pattern.text()));
                }
            }
        }
        if let AdapterKind::Ia3(feedforward) = &self.kind {
            feedforward.check(&adapters)?;
        }
        self.check_excluded(&layers)?;
        self.check_layers(&layers)
    }

    fn check_excluded(&self, layers: &[Adapter]) -> Result<(), GraphError> {
        let unused = |text: &str| {
            let known = short_names(layers);
            refuse("lora", format!("no layer is excluded by `{text}`; the model has {known}"))
        };
        match &self.excluded {
            Excluded::Pattern(pattern) if !any(modules(layers), |module| pattern.fits(module))? => {
                Err(unused(pattern.text()))
            }
            Excluded::Pattern(_) => Ok(()),
            Excluded::Names(names) => {
                let fits = |name: &&String| !layers.iter().any(|layer| is_named(&layer.module, name));
                names.iter().find(fits).map_or(Ok(()), |name| Err(unused(name)))
            }
        }
    }

    fn check_layers(&self, layers: &[Adapter]) -> Result<(), GraphError> {
        let Some(choice) = &self.layers else { return Ok(()) };
        for &number in &choice.numbers {
            let one = LayerChoice { numbers: vec![number], ..choice.clone() };
            if !any(modules(layers), |module| one.holds(module))? {
                return Err(refuse("lora", format!("the model has no layer {number}; they count from 0")));
            }
        }
        Ok(())
    }

    /// The same adapters without names that the model lacks: PEFT ignores targets and modules to save that match nothing, and
    /// saves the head of a classifier under each name that any family has for it.
    #[must_use]
    pub fn without_absent(mut self, forward: &Graph) -> Lora {
        let has = |module: &str| forward.states().iter().any(|state| saves(module, &state.name));
        self.modules_to_save.retain(|name| has(name));
        let layers = layers(forward);
        if let Targets::Names(names) = &mut self.targets {
            let fits = |name: &String| layers.iter().any(|layer| is_named(&layer.module, name));
            if names.iter().any(fits) {
                names.retain(fits);
            }
        }
        self.retain_parameters(forward);
        self
    }

    /// The same adapters with targets that PEFT resolves to the same modules. PEFT refuses patterns that also match
    /// modules without weights, which are unknown here, and choices of layers beside a pattern.
    ///
    /// # Errors
    ///
    /// As [`Lora::adapt`].
    pub fn with_plain_targets(self, forward: &Graph) -> Result<Lora, GraphError> {
        let targets = match &self.targets {
            Targets::Pattern(_) => {
                let adapters = self.adapters(forward)?.into_iter();
                let adapters = adapters.filter(|adapter| !self.is_targeted_by_parameter(adapter));
                Targets::Names(adapters.map(|adapter| adapter.module).collect())
            }
            Targets::AllLinear if self.layers.is_some() => {
                let heads = heads(forward);
                let linear = layers(forward).into_iter().filter(|layer| layer.form != Form::Table);
                let linear = linear.filter(|layer| !heads.contains(&layer.weight()));
                let names: BTreeSet<String> = linear.map(|layer| short_name(&layer).to_owned()).collect();
                Targets::Names(names.into_iter().collect())
            }
            other => other.clone(),
        };
        Ok(Lora { targets, ..self })
    }
}

/// The value of the first pattern that fits, which is the one PEFT takes.
fn first_that_fits<T: Copy>(values: &[(Pattern, T)], module: &str) -> Result<Option<T>, GraphError> {
    for (pattern, value) in values {
        if pattern.fits(module)? {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}

fn keys<T>(values: &[(Pattern, T)]) -> Vec<&Pattern> {
    values.iter().map(|(pattern, _)| pattern).collect()
}

fn modules(layers: &[Adapter]) -> impl Iterator<Item = &str> {
    layers.iter().map(|layer| layer.module.as_str())
}

fn any<'a>(
    names: impl Iterator<Item = &'a str>,
    holds: impl Fn(&str) -> Result<bool, GraphError>,
) -> Result<bool, GraphError> {
    for name in names {
        if holds(name)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn short_name(layer: &Adapter) -> &str {
    layer.module.rsplit('.').next().unwrap_or_default()
}

/// The last words of the modules' names, each once.
pub(super) fn short_names(layers: &[Adapter]) -> String {
    let known: BTreeSet<&str> = layers.iter().map(short_name).collect();
    known.into_iter().collect::<Vec<&str>>().join(", ")
}

fn check_targets(names: &[String], layers: &[Adapter], heads: &BTreeSet<String>) -> Result<(), GraphError> {
    let fits = |name: &String| layers.iter().any(|layer| is_named(&layer.module, name));
    let Some(name) = names.iter().find(|name| !fits(name)) else { return Ok(()) };
    if is_head_name(name, heads) {
        return Err(refuse("lora", no_adapter_for_head(name, heads)));
    }
    let known = short_names(layers);
    Err(refuse("lora", format!("no layer is called `{name}`; the model has {known}")))
}
