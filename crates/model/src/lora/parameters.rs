//! Targets by the names of parameters, PEFT's `target_parameters`: experts, which are no modules of their own, routers,
//! and weights of linear layers.
//!
//! A target means every parameter that has its name, or ends in it after a dot. Choices of layers and excluded modules do
//! not concern parameters, and dropout is refused, both as in PEFT.
//!
//! Some names of modules mean parameters. Mixtures had one linear layer per expert in earlier versions of transformers;
//! PEFT translates the names of those layers for every family whose tensors transformers stacks on loading, and
//! `all-linear` includes them ([`Lora::with_stacked_targets`]). Gate and up become one parameter, with twice the rank and
//! twice the alpha.

use std::collections::BTreeSet;

use plimsoll_graph::{Graph, GraphError};

use super::experts::stacks;
use super::layers::{Adapter, Form, any_layer, heads, is_named, layers, peft_name};
use super::{AdapterKind, Lora, Pattern, Targets};
use crate::language::refuse;

/// Stacked gate and up.
const GATE_UP: &str = "gate_up_proj";
/// Names of an expert's layers in earlier versions, with the parameter that each means now.
const MIXTRAL: [(&str, &str); 4] =
    [("gate", "gate.weight"), ("w1", GATE_UP), ("w3", GATE_UP), ("w2", "down_proj")];
/// The same for the families that follow Qwen.
const QWEN: [(&str, &str); 4] =
    [("gate", "gate.weight"), ("gate_proj", GATE_UP), ("up_proj", GATE_UP), ("down_proj", "down_proj")];

impl Lora {
    /// Whether a parameter, by PEFT's name, is a target.
    pub(super) fn targets_parameter(&self, key: &str) -> bool {
        self.target_parameters.iter().any(|name| is_named(key, name))
    }

    /// Rank and scale of the adapter of a parameter or module, by the name that patterns are compared with.
    pub(super) fn size_of(&self, key: &str) -> Result<(usize, f32), GraphError> {
        let rank = self.rank_of(key)?;
        Ok((rank, self.scale_of(key, rank)?))
    }

    /// The linear layers whose weight is a target parameter, in the order they run.
    pub(super) fn targeted_layers(&self, forward: &Graph) -> Result<Vec<Adapter>, GraphError> {
        let mut found: Vec<Adapter> = Vec::new();
        if self.target_parameters.is_empty() {
            return Ok(found);
        }
        let heads = heads(forward);
        for layer in matrices(forward).into_iter().filter(|layer| self.targets_parameter(&key(layer))) {
            if heads.contains(&layer.weight()) || layer.form != Form::Linear {
                return Err(refuse("lora", format!("`{}` cannot be a target parameter", key(&layer))));
            }
            if self.means(&layer)? {
                let module = &layer.module;
                let why =
                    format!("`{module}` is a target module and its weight a target parameter; name it once");
                return Err(refuse("lora", why));
            }
            self.refuse_of_parameters()?;
            let (rank, scale) = self.size_of(&key(&layer))?;
            found.push(Adapter { rank, scale, ..layer });
        }
        Ok(found)
    }

    /// Refuses settings that adapters of parameters lack. PEFT adds to the parameter itself, so there is no input for
    /// dropout.
    pub(super) fn refuse_of_parameters(&self) -> Result<(), GraphError> {
        if self.kind != AdapterKind::LowRank {
            let kind = self.kind.name();
            let why = format!(
                "experts and other target parameters have no {kind}, in PEFT neither; name other modules in \
                 lora_target_modules, such as q_proj,v_proj"
            );
            return Err(refuse("lora", why));
        }
        if self.dropout > 0.0 {
            let why = "target parameters have no dropout, in PEFT neither; set it to 0, or name target modules only";
            return Err(refuse("lora", why.to_owned()));
        }
        Ok(())
    }

    /// A target parameter that is the weight of a head, of a table or of a layer stored as (in, out), which have no adapter here.
    pub(super) fn other_targeted_parameter(&self, forward: &Graph) -> Option<(String, Form)> {
        let heads = heads(forward);
        let mut layers = matrices(forward).into_iter().filter(|layer| self.targets_parameter(&key(layer)));
        let other = layers.find(|layer| heads.contains(&layer.weight()) || layer.form != Form::Linear)?;
        Some((key(&other), other.form))
    }

    /// Whether the targets of a trained adapter are among those that [`Lora::with_stacked_targets`] refuses.
    ///
    /// # Errors
    ///
    /// When an expression takes too long.
    pub(super) fn mistakes_experts(&self, forward: &Graph) -> Result<bool, GraphError> {
        let Some(names) = layer_names(forward).filter(|_| self.kind.names_experts()) else {
            return Ok(false);
        };
        match &self.targets {
            Targets::AllLinear => Ok(false),
            Targets::Names(targets) => {
                let has = |old: &str| targets.iter().any(|target| is_named(target, old));
                let parts = || names.iter().filter(|(_, new)| *new == GATE_UP).map(|(old, _)| *old);
                Ok(parts().any(has) && !parts().all(has))
            }
            Targets::Pattern(_) => Ok(self.mistaken_layer(forward, &names)?.is_some()),
        }
    }

    /// A layer that a pattern means and whose name PEFT takes for an expert's.
    fn mistaken_layer(&self, forward: &Graph, names: &[(&str, &str)]) -> Result<Option<Adapter>, GraphError> {
        for layer in layers(forward).into_iter().filter(|layer| layer.form == Form::Linear) {
            if names.iter().any(|(old, _)| is_named(&layer.module, old)) && self.means(&layer)? {
                return Ok(Some(layer));
            }
        }
        Ok(None)
    }

    /// The names that patterns of ranks and alphas are compared with, one for each adapter.
    pub(super) fn pattern_keys(
        &self,
        forward: &Graph,
        adapters: &[Adapter],
    ) -> Result<Vec<String>, GraphError> {
        let of_layer = |layer: &Adapter| {
            if self.targets_parameter(&key(layer)) { key(layer) } else { layer.module.clone() }
        };
        let experts = self.expert_adapters(forward)?;
        Ok(adapters.iter().map(of_layer).chain(experts.iter().map(|e| e.key().to_owned())).collect())
    }

    /// Whether the weight of an adapted layer is a target parameter, and the layer no target module.
    pub(super) fn is_targeted_by_parameter(&self, layer: &Adapter) -> bool {
        self.targets_parameter(&key(layer))
    }

    /// Refuses target parameters that the model has not, in a new adapter.
    pub(super) fn check_parameters(&self, forward: &Graph) -> Result<(), GraphError> {
        let known: Vec<String> = parameters(forward);
        let fits = |name: &&String| !known.iter().any(|key| is_named(key, name));
        if let Some(name) = self.target_parameters.iter().find(fits) {
            let known = short(&known).join(", ");
            return Err(refuse("lora", format!("no parameter is called `{name}`; the model has {known}")));
        }
        if !self.target_parameters.is_empty() && self.layers.is_some() {
            let why = "a choice of layers does not concern target parameters, in PEFT neither; name the parameters of \
                       those layers, such as `layers.1.mlp.experts.down_proj`";
            return Err(refuse("lora", why.to_owned()));
        }
        Ok(())
    }

    /// The same adapters without target parameters that the model lacks, which PEFT ignores.
    pub(super) fn retain_parameters(&mut self, forward: &Graph) {
        let known = parameters(forward);
        self.target_parameters.retain(|name| known.iter().any(|key| is_named(key, name)));
    }

    /// The same adapters with the targets that PEFT makes of names of single experts' layers, see the module's
    /// documentation. Models whose experts are read under the names they have in memory keep their targets, and so do
    /// adapters of other kinds than `LoRA` and `DoRA`.
    ///
    /// # Errors
    ///
    /// When only one of gate and up is named, or a pattern means a layer whose name PEFT would take for an expert's.
    pub fn with_stacked_targets(mut self, forward: &Graph) -> Result<Lora, GraphError> {
        let Some(names) = layer_names(forward).filter(|_| self.kind.names_experts()) else { return Ok(self) };
        let given = match &self.targets {
            Targets::AllLinear => linear_names(forward).chain(names.map(|(old, _)| old.to_owned())).collect(),
            Targets::Names(names) => names.clone(),
            Targets::Pattern(_) => return self.with_unmistakable_targets(forward, &names),
        };
        let mut missed: BTreeSet<&str> =
            names.iter().filter(|(_, new)| *new == GATE_UP).map(|(old, _)| *old).collect();
        let (wanted, mut kept) = (missed.len(), BTreeSet::new());
        for name in given {
            match names.iter().find(|(old, _)| is_named(&name, old)) {
                Some((old, new)) => {
                    missed.remove(old);
                    self.target_parameters.push((*new).to_owned());
                }
                None => drop(kept.insert(name)),
            }
        }
        match missed.first() {
            Some(missing) if missed.len() < wanted => {
                let why = format!(
                    "gate and up of experts are one parameter, and have one adapter; name `{missing}` too, or neither"
                );
                return Err(refuse("lora", why));
            }
            Some(_) => {}
            None => self.double(GATE_UP)?,
        }
        self.target_parameters.sort();
        self.target_parameters.dedup();
        self.targets = Targets::Names(kept.into_iter().collect());
        Ok(self)
    }

    /// Refuses patterns that PEFT would read otherwise: it takes the last word of each matching name, so a linear layer may
    /// pass for a layer of experts.
    fn with_unmistakable_targets(self, forward: &Graph, names: &[(&str, &str)]) -> Result<Lora, GraphError> {
        let Some(Adapter { module, .. }) = self.mistaken_layer(forward, names)? else { return Ok(self) };
        let why = format!(
            "the pattern means `{module}`, whose name PEFT takes for a layer of experts; \
             leave it out, and give `{module}.weight` as a target parameter"
        );
        Err(refuse("lora", why))
    }

    /// Doubles rank and alpha of a stacked parameter, as PEFT does when two layers become one.
    fn double(&mut self, parameter: &str) -> Result<(), GraphError> {
        let text = format!(r".*\.{parameter}");
        if self.rank_pattern.iter().all(|(known, _)| known.text() != text) {
            self.rank_pattern.push((Pattern::ending(&text)?, 2 * self.rank));
        }
        if self.alpha_pattern.iter().all(|(known, _)| known.text() != text) {
            self.alpha_pattern.push((Pattern::ending(&text)?, 2.0 * self.alpha));
        }
        Ok(())
    }
}

/// The layers of single experts that names may mean, if PEFT translates them for this model. It does not for models with
/// shared experts: their layers have the same names.
fn layer_names(forward: &Graph) -> Option<[(&'static str, &'static str); 4]> {
    let stacked = stacks(forward);
    let group = |name: &str| stacked.iter().any(|stack| stack.group(name).is_some());
    let states = || forward.states().iter().map(|state| state.name.as_str());
    if stacked.is_empty() || states().any(|name| name.contains(".shared_expert.")) {
        return None;
    }
    Some(if states().any(|name| is_named(name, "w1") && group(name)) { MIXTRAL } else { QWEN })
}

/// The last words of all linear layers' names but the head's.
fn linear_names(forward: &Graph) -> impl Iterator<Item = String> {
    let heads = heads(forward);
    let linear = layers(forward)
        .into_iter()
        .filter(move |layer| layer.form != Form::Table && !heads.contains(&layer.weight()));
    linear.map(|layer| layer.module.rsplit('.').next().unwrap_or_default().to_owned())
}

/// PEFT's name of a layer's weight.
fn key(layer: &Adapter) -> String {
    peft_name(&layer.weight())
}

/// Every layer with a weight of two axes, routers included, once.
fn matrices(g: &Graph) -> Vec<Adapter> {
    let mut seen = BTreeSet::new();
    let found = g.node_ids().filter_map(|node| any_layer(g, node));
    found.filter(|layer| seen.insert(layer.weight())).collect()
}

/// PEFT's names of all parameters that can be targets.
fn parameters(g: &Graph) -> Vec<String> {
    let heads = heads(g);
    let layers = matrices(g).into_iter();
    let layers = layers.filter(|layer| layer.form == Form::Linear && !heads.contains(&layer.weight()));
    layers.map(|layer| key(&layer)).chain(stacks(g).iter().map(|stack| stack.key().to_owned())).collect()
}

/// The names behind the number of a layer, each once.
fn short(keys: &[String]) -> Vec<&str> {
    let behind = |key: &str| {
        key.match_indices('.').find_map(|(dot, _)| {
            let before = key[..dot].rsplit('.').next()?;
            before.parse::<usize>().is_ok().then_some(dot + 1)
        })
    };
    let known: BTreeSet<&str> = keys.iter().map(|key| &key[behind(key).unwrap_or(0)..]).collect();
    known.into_iter().collect()
}
