//! Low-rank adapters (Hu et al. 2021): a pass that freezes a model and gives its modules small ones.
//!
//! ```text
//! y = x·Wᵀ + b      becomes      y = x·Wᵀ + b + (s · dropout(x)·Aᵀ)·Bᵀ        W, b frozen; A (r, in), B (out, r)
//! y = W[ids]        becomes      y = W[ids] + (s · Aᵀ[ids])·Bᵀ               a table of words; A (r, words)
//! ```
//!
//! `s` is `alpha / r`, or `alpha / √r` with `rslora`; rank and alpha can differ from module to module. The scale is
//! applied to rows of `r` numbers, and the second product is added onto the first result, so that an adapter needs no
//! second buffer of that size.
//!
//! Other kinds of adapters (`DoRA`, IA³, bottlenecks) make another result of the same modules: see [`AdapterKind`].
//!
//! The choice of modules, the names of new parameters and their initial values are as in the library PEFT:
//! `<module>.lora_A.weight` and `<module>.lora_B.weight` beside `<module>.weight`, `<module>.lora_embedding_A` and
//! `…_B` for tables. Stacked experts have adapters of their own form, see `experts.rs`. The pass serves training, evaluation and generation graphs of any model alike; the fused head is
//! never adapted.

mod bottleneck;
mod dora;
mod experts;
mod frozen;
mod ia3;
mod intrinsic;
mod kind;
mod layers;
mod low_rank;
mod merge;
mod module;
mod parameters;
mod pattern;
mod peft;
mod prefix;
mod prompt;
mod refused;
mod selection;
mod tokens;
mod unsupported;

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_graph::{Graph, GraphError, Node, NodeId, Op, State, StateKind, Value};

use crate::language::refuse;

pub use bottleneck::NonLinearity;
pub use experts::ExpertAdapter;
use experts::group_of;
pub use frozen::{LinearLayer, linear_layers};
pub use ia3::FeedForward;
pub use intrinsic::{Coordinates, Intrinsic};
pub use kind::{AdapterKind, Merging};
pub use layers::{Adapter, Form, is_adapter, module_of};
use layers::{any_layer, head_modules, heads, is_named, is_table, layers, no_adapter_for_head, parameter};
pub use merge::{Delta, RowLengths, scale_rows};
use module::Module;
pub use pattern::{Pattern, is_expression};
pub use peft::{AdapterConfig, AdapterConfigError, BaseClass, file_name, parameter_name};
pub use prompt::VirtualTokens;
pub use refused::unusable;
pub use selection::{Excluded, LayerChoice, Targets};
pub use tokens::{TokenAdapter, TrainedTokens};
pub use unsupported::{Unsupported, WayOut};

/// Adapters that are trained instead of the model's own weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// How the adapters change their modules.
    pub kind: AdapterKind,
    /// Rows of `A` and columns of `B`, unless a pattern gives another number.
    pub rank: usize,
    /// Scale of an adapter, before division by the rank or its root; patterns may override it.
    pub alpha: f32,
    /// Dropout probability of an adapter's input, in training only. Tables of words have none.
    pub dropout: f32,
    /// Whether `alpha` is divided by the root of the rank, so that the effect of high ranks does not fade.
    pub rslora: bool,
    /// Which modules are adapted.
    pub targets: Targets,
    /// Which parameters are adapted beside them, by their names or the ends of those: experts, which are no modules.
    pub target_parameters: Vec<String>,
    /// Which target modules are left out.
    pub excluded: Excluded,
    /// The layers whose modules are adapted, if not all are. Modules whose whole name is a target count in any layer.
    pub layers: Option<LayerChoice>,
    /// Ranks of modules by a pattern for the end of their names; the first that fits counts.
    pub rank_pattern: Vec<(Pattern, usize)>,
    /// Alphas, likewise.
    pub alpha_pattern: Vec<(Pattern, f32)>,
    /// Modules that are trained as a whole: those whose name ends in one of these.
    pub modules_to_save: Vec<String>,
    /// Tokens whose vectors are trained.
    pub tokens: TrainedTokens,
}

impl Default for Lora {
    fn default() -> Lora {
        Lora {
            kind: AdapterKind::default(),
            rank: 8,
            alpha: 8.0,
            dropout: 0.0,
            rslora: false,
            targets: Targets::AllLinear,
            target_parameters: Vec::new(),
            excluded: Excluded::default(),
            layers: None,
            rank_pattern: Vec::new(),
            alpha_pattern: Vec::new(),
            modules_to_save: Vec::new(),
            tokens: TrainedTokens::None,
        }
    }
}

impl Lora {
    /// The same adapters for graphs that do not train.
    #[must_use]
    pub fn without_dropout(&self) -> Lora {
        Lora { dropout: 0.0, ..self.clone() }
    }

    /// The reason, in words, why whole weights of the model are read before the first step; none if they are not.
    pub fn needs_whole_weights(&self) -> Option<&'static str> {
        match (&self.kind, &self.tokens) {
            (AdapterKind::Dora, _) => Some("DoRA begins with the lengths of all rows of its weights"),
            (_, TrainedTokens::None) => None,
            _ => Some("trained tokens begin with rows of whole tables"),
        }
    }

    /// The forward graph with adapters, and everything else frozen but the modules to save.
    ///
    /// # Errors
    ///
    /// When a number is out of range, no module matches, or the head is a target.
    pub fn adapt(&self, forward: &Graph) -> Result<Graph, GraphError> {
        match self.kind {
            AdapterKind::Prompt(vectors) => return prompt::adapt(forward, vectors),
            AdapterKind::Prefix(vectors) => return prefix::adapt(forward, vectors),
            AdapterKind::Intrinsic(form) => return intrinsic::adapt(forward, self, form),
            _ => {}
        }
        let (adapters, tokens) = (self.adapters(forward)?, self.token_adapters(forward)?);
        let kind = |state: &State| match state.kind {
            StateKind::Parameter { .. } => StateKind::Parameter { trainable: self.saves(&state.name) },
            other => other,
        };
        let experts = self.expert_adapters(forward)?;
        let mut pass = Pass { lora: self, forward, adapters, tokens, experts, made: BTreeMap::new() };
        forward.rewrite_nodes(kind, |g, node, moved| pass.make(g, node, moved))
    }

    /// The modules of a forward graph that this adapts, in the order they run, then those whose weight is a target
    /// parameter; experts are not among them.
    ///
    /// # Errors
    ///
    /// As [`Lora::adapt`].
    pub fn adapters(&self, forward: &Graph) -> Result<Vec<Adapter>, GraphError> {
        if !self.kind.has_modules() {
            return Ok(Vec::new());
        }
        self.check_numbers()?;
        let heads = heads(forward);
        self.check_saved(forward, &heads)?;
        self.check_heads(forward, &heads)?;
        let mut adapters = Vec::new();
        for layer in layers(forward) {
            let is_head = layer.form != Form::Table && heads.contains(&layer.weight());
            if !is_head && self.means(&layer)? {
                self.check_form(&layer)?;
                adapters.push(self.sized(layer)?);
            }
        }
        adapters.extend(self.targeted_layers(forward)?);
        if adapters.is_empty() && self.expert_adapters(forward)?.is_empty() {
            let known = selection::short_names(&layers(forward));
            return Err(refuse("lora", format!("no module of the model is a target; it has {known}")));
        }
        Ok(adapters)
    }

    /// Refuses a table of words for kinds that only linear layers have.
    fn check_form(&self, layer: &Adapter) -> Result<(), GraphError> {
        if layer.form != Form::Table || self.kind == AdapterKind::LowRank {
            return Ok(());
        }
        let (module, kind) = (&layer.module, self.kind.name());
        let why =
            format!("`{module}` is a table of words, which has no {kind} here; leave it out of the targets");
        Err(refuse("lora", why))
    }

    /// A module's adapter with its rank and scale.
    fn sized(&self, layer: Adapter) -> Result<Adapter, GraphError> {
        let (rank, scale) = self.size_of(&layer.module)?;
        let feedforward = self.scales_input(&layer.module)?;
        Ok(Adapter { rank, scale, feedforward, ..layer })
    }

    /// Whether the parameter belongs to a module that is trained as a whole.
    pub fn saves(&self, parameter: &str) -> bool {
        self.modules_to_save.iter().any(|name| saves(name, parameter))
    }

    fn check_numbers(&self) -> Result<(), GraphError> {
        let ranks = || self.rank_pattern.iter().map(|(_, rank)| rank).chain([&self.rank]);
        let mut alphas = self.alpha_pattern.iter().map(|(_, alpha)| alpha).chain([&self.alpha]);
        let why = if ranks().any(|&rank| rank == 0) {
            "the rank is 0; it must be at least 1".to_owned()
        } else if let Some(alpha) = alphas.find(|alpha| !alpha.is_finite()) {
            format!("alpha must be a number, got {alpha}")
        } else if !(0.0..1.0).contains(&self.dropout) {
            format!("the dropout must be at least 0 and less than 1, got {}", self.dropout)
        } else if self.targets == Targets::Names(Vec::new()) && self.target_parameters.is_empty() {
            "no target modules are named; name some, or write `all-linear`".to_owned()
        } else {
            return Ok(());
        };
        Err(refuse("lora", why))
    }

    /// Refuses a target that is the output head.
    fn check_heads(&self, forward: &Graph, heads: &BTreeSet<String>) -> Result<(), GraphError> {
        for head in head_modules(heads).filter(|head| !is_table(forward, &format!("{head}.weight"))) {
            let targeted = match &self.targets {
                Targets::AllLinear => false,
                Targets::Names(names) => names.iter().any(|name| is_named(head, name)),
                Targets::Pattern(pattern) => pattern.fits(head)?,
            };
            if targeted && !self.excludes(head)? {
                return Err(refuse("lora", no_adapter_for_head(head, heads)));
            }
        }
        Ok(())
    }

    fn check_saved(&self, forward: &Graph, heads: &BTreeSet<String>) -> Result<(), GraphError> {
        let parameters = || forward.states().iter().filter(|s| matches!(s.kind, StateKind::Parameter { .. }));
        for name in &self.modules_to_save {
            if name.is_empty() || !parameters().any(|state| saves(name, &state.name)) {
                let hint = if name == "lm_head" { "; its head is the embedding table" } else { "" };
                return Err(refuse("lora", format!("the model has no module `{name}` to save{hint}")));
            }
        }
        if let Some(group) = parameters().find(|state| !state.parts.is_empty() && self.saves(&state.name)) {
            let why = format!(
                "`{}` is a weight of experts, which cannot be saved as a whole; give them adapters as target parameters",
                group.name
            );
            return Err(refuse("lora", why));
        }
        let tied = |name: &String| self.saves(name) && is_table(forward, name);
        match heads.iter().find(|name| tied(name)) {
            Some(name) => Err(refuse(
                "lora",
                format!(
                    "`{name}` is embedding and output head at once, and an adapter file would make them two; \
                     leave it out of the modules to save"
                ),
            )),
            None => Ok(()),
        }
    }
}

/// A forward graph while adapters are added to it.
struct Pass<'a> {
    lora: &'a Lora,
    forward: &'a Graph,
    adapters: Vec<Adapter>,
    tokens: Vec<TokenAdapter>,
    experts: Vec<ExpertAdapter>,
    /// Small products that adapters of experts share.
    made: BTreeMap<String, Value>,
}

impl Pass<'_> {
    /// A node with its adapter, or a copy of it. Returns the values to read in place of its outputs.
    fn make(&mut self, g: &mut Graph, id: NodeId, moved: &[Value]) -> Vec<Value> {
        let (node, found) = (self.forward.node(id), any_layer(self.forward, id));
        let head = self.tokens_of_head(node);
        if let (Op::HeadLoss(form), Some(tokens)) = (&node.op, head) {
            let inputs: Vec<Value> = node.inputs.iter().map(|input| moved[input.index()]).collect();
            return vec![tokens.head_loss(g, *form, &inputs)];
        }
        let adapter = found.as_ref().and_then(|found| self.adapter_of(found));
        if let (Some(adapter), Some(module)) = (adapter, Module::of(node, moved)) {
            return vec![self.lora.wrap(g, &module, adapter)];
        }
        let copy = g.copy(node, moved);
        let (inputs, mut outputs) = (g.node(copy).inputs.clone(), g.node(copy).outputs.clone());
        let group = group_of(g, copy)
            .and_then(|state| self.experts.iter().find_map(|adapter| Some((adapter, adapter.group(state)?))));
        if let Some((adapter, group)) = group {
            outputs[0] = adapter.add(g, [inputs[0], inputs[2], outputs[0]], group, &mut self.made);
            return outputs;
        }
        let Some(found) = found else { return outputs };
        if let Some(adapter) = adapter {
            outputs[0] = low_rank::add_rows(g, inputs[1], outputs[0], adapter);
        } else if let Some(tokens) = self.tokens.iter().find(|tokens| tokens.reads(&found)) {
            outputs[0] = tokens.add_rows(g, inputs[1], outputs[0], found.input);
        } else if let (Form::Linear, Some(tokens)) = (found.form, head) {
            outputs[0] = tokens.add_logits(g, inputs[0], outputs[0]);
        }
        outputs
    }

    fn adapter_of(&self, layer: &Adapter) -> Option<&Adapter> {
        self.adapters.iter().find(|adapter| adapter.module == layer.module && adapter.form == layer.form)
    }

    /// The trained tokens of the weight that a node reads, if it is the output head.
    fn tokens_of_head(&self, node: &Node) -> Option<&TokenAdapter> {
        let weight = parameter(self.forward, *node.inputs.get(1)?)?;
        self.tokens.iter().find(|tokens| tokens.writes(weight))
    }
}

/// Whether the parameter is of a module whose name ends in `name`, which is PEFT's rule for modules to save.
fn saves(name: &str, parameter: &str) -> bool {
    parameter.match_indices('.').any(|(dot, _)| parameter[..dot].ends_with(name))
}
