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
//! The choice of modules, the names of new parameters and their initial values are as in the library PEFT:
//! `<module>.lora_A.weight` and `<module>.lora_B.weight` beside `<module>.weight`, `<module>.lora_embedding_A` and
//! `…_B` for tables. Stacked experts have adapters of their own form, see `experts.rs`. The pass serves training, evaluation and generation graphs of any model alike; the fused head is
//! never adapted.

mod experts;
mod frozen;
mod layers;
mod merge;
mod parameters;
mod pattern;
mod peft;
mod refused;
mod selection;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_graph::{DType, Graph, GraphError, Init, Node, Op, State, StateKind, Value, name_hash};

use crate::language::refuse;

pub use experts::ExpertAdapter;
use experts::group_of;
pub use frozen::{LinearLayer, linear_layers};
pub use layers::{Adapter, Form, is_adapter};
use layers::{head_modules, heads, is_named, is_table, layer, layers, no_adapter_for_head, parameter};
pub use merge::Delta;
pub use pattern::{Pattern, is_expression};
pub use peft::{AdapterConfig, AdapterConfigError, BaseClass, file_name, parameter_name};
pub use refused::unusable;
pub use selection::{Excluded, LayerChoice, Targets};
pub use tokens::{TokenAdapter, TrainedTokens};

/// Adapters that are trained instead of the model's own weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
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

    /// The forward graph with adapters, and everything else frozen but the modules to save.
    ///
    /// # Errors
    ///
    /// When a number is out of range, no module matches, or the head is a target.
    pub fn adapt(&self, forward: &Graph) -> Result<Graph, GraphError> {
        let (adapters, tokens) = (self.adapters(forward)?, self.token_adapters(forward)?);
        let kind = |state: &State| match state.kind {
            StateKind::Parameter { .. } => StateKind::Parameter { trainable: self.saves(&state.name) },
            other => other,
        };
        let experts = self.expert_adapters(forward)?;
        let mut pass = Pass { lora: self, forward, adapters, tokens, experts, made: BTreeMap::new() };
        forward.rewrite_nodes(kind, |g, node, moved| pass.make(g, forward.node(node), moved))
    }

    /// The modules of a forward graph that this adapts, in the order they run, then those whose weight is a target
    /// parameter; experts are not among them.
    ///
    /// # Errors
    ///
    /// As [`Lora::adapt`].
    pub fn adapters(&self, forward: &Graph) -> Result<Vec<Adapter>, GraphError> {
        self.check_numbers()?;
        let heads = heads(forward);
        self.check_saved(forward, &heads)?;
        self.check_heads(forward, &heads)?;
        let mut adapters = Vec::new();
        for layer in layers(forward) {
            let is_head = layer.form != Form::Table && heads.contains(&layer.weight());
            if !is_head && self.means(&layer)? {
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

    /// A module's adapter with its rank and scale.
    fn sized(&self, layer: Adapter) -> Result<Adapter, GraphError> {
        let (rank, scale) = self.size_of(&layer.module)?;
        Ok(Adapter { rank, scale, ..layer })
    }

    /// `y + (s · dropout(x)·Aᵀ)·Bᵀ`.
    fn add(&self, g: &mut Graph, x: Value, y: Value, adapter: &Adapter) -> Value {
        let Adapter { rank, input, output, .. } = *adapter;
        // Kaiming's uniform numbers with a = √5, PEFT's choice, reach up to 1/√in.
        let bound = 1.0 / (input as f32).sqrt();
        let a = g.param_named(&adapter.a(), [rank, input], Init::Uniform(bound)); // (r, in)
        let b = g.param_named(&adapter.b(), [output, rank], Init::Fill(0.0)); // (out, r)
        let x = self.drop(g, x, &adapter.module); // (…, in)
        let small = g.linear(x, a, None); // (…, r)
        let small = g.scale(small, adapter.scale); // (…, r)
        g.linear(small, b, Some(y)) // (…, out)
    }

    /// The mask has the adapter's name, so that it and the model's own masks do not depend on each other.
    fn drop(&self, g: &mut Graph, x: Value, module: &str) -> Value {
        if self.dropout == 0.0 {
            return x;
        }
        let rng = g.input("rng", [4], DType::I32);
        let stream = name_hash(&format!("{module}.lora_dropout"));
        g.apply(Op::Dropout { p: self.dropout, stream }, &[x, rng])
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
    /// A copy of a node, with the adapter's sum added to its first output. Returns the values to read in place of its
    /// outputs.
    fn make(&mut self, g: &mut Graph, node: &Node, moved: &[Value]) -> Vec<Value> {
        let head = self.tokens_of_head(node);
        if let (Op::HeadLoss(form), Some(tokens)) = (&node.op, head) {
            let inputs: Vec<Value> = node.inputs.iter().map(|input| moved[input.index()]).collect();
            return vec![tokens.head_loss(g, *form, &inputs)];
        }
        let copy = g.copy(node, moved);
        let (inputs, mut outputs) = (g.node(copy).inputs.clone(), g.node(copy).outputs.clone());
        let group = group_of(g, copy)
            .and_then(|state| self.experts.iter().find_map(|adapter| Some((adapter, adapter.group(state)?))));
        if let Some((adapter, group)) = group {
            outputs[0] = adapter.add(g, [inputs[0], inputs[2], outputs[0]], group, &mut self.made);
            return outputs;
        }
        let Some(found) = layer(g, copy) else { return outputs };
        let same = |adapter: &&Adapter| adapter.module == found.module && adapter.form == found.form;
        if let Some(adapter) = self.adapters.iter().find(same) {
            outputs[0] = match adapter.form {
                Form::Table => add_rows(g, inputs[1], outputs[0], adapter),
                Form::Linear | Form::Transposed => self.lora.add(g, inputs[0], outputs[0], adapter),
            };
        } else if let Some(tokens) = self.tokens.iter().find(|tokens| tokens.reads(&found)) {
            outputs[0] = tokens.add_rows(g, inputs[1], outputs[0], found.input);
        } else if let (Form::Linear, Some(tokens)) = (found.form, head) {
            outputs[0] = tokens.add_logits(g, inputs[0], outputs[0]);
        }
        outputs
    }

    /// The trained tokens of the weight that a node reads, if it is the output head.
    fn tokens_of_head(&self, node: &Node) -> Option<&TokenAdapter> {
        let weight = parameter(self.forward, *node.inputs.get(1)?)?;
        self.tokens.iter().find(|tokens| tokens.writes(weight))
    }
}

/// `y + (s · Aᵀ[ids])·Bᵀ`. `A` is stored as in PEFT's files, a column for each word, and is transposed for the lookup:
/// it has only `r` numbers per word.
fn add_rows(g: &mut Graph, ids: Value, y: Value, adapter: &Adapter) -> Value {
    let Adapter { rank, input, output, .. } = *adapter;
    // PEFT begins tables the other way round: A is zero and B is drawn.
    let a = g.param_named(&adapter.a(), [rank, input], Init::Fill(0.0)); // (r, V)
    let b = g.param_named(&adapter.b(), [output, rank], Init::Normal(1.0)); // (C, r)
    let rows = g.transpose(a, &[1, 0]); // (V, r)
    let small = g.embedding(rows, ids); // (…, r)
    let small = g.scale(small, adapter.scale); // (…, r)
    g.linear(small, b, Some(y)) // (…, C)
}

/// Whether the parameter is of a module whose name ends in `name`, which is PEFT's rule for modules to save.
fn saves(name: &str, parameter: &str) -> bool {
    parameter.match_indices('.').any(|(dot, _)| parameter[..dot].ends_with(name))
}
