//! Low-rank adapters (Hu et al. 2021): a pass that freezes a model and gives its linear layers small ones.
//!
//! ```text
//! y = x·Wᵀ + b      becomes      y = x·Wᵀ + b + (s · dropout(x)·Aᵀ)·Bᵀ        W, b frozen; A (r, in), B (out, r)
//! ```
//!
//! `s` is `alpha / r`, or `alpha / √r` with `rslora`. The scale is applied where rows have `r` numbers, and the
//! second product is added onto the first result, so that an adapter needs no second buffer of that size.
//!
//! Which layers are meant, what the new parameters are called and how they begin is as in the library PEFT:
//! `<module>.lora_A.weight` and `<module>.lora_B.weight` beside `<module>.weight`. The pass serves training,
//! evaluation and generation graphs of any model alike; the fused head is never adapted.

mod merge;
mod peft;

use std::collections::BTreeSet;

use plimsoll_graph::{DType, Graph, GraphError, Init, NodeId, Op, State, StateKind, Value, name_hash};

use crate::language::refuse;

pub use merge::Delta;
pub use peft::{AdapterConfig, AdapterConfigError, BaseClass, file_name, parameter_name};

/// Which linear layers get an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Every one but the output head.
    AllLinear,
    /// Those whose module has one of these names, or ends in one after a dot.
    Names(Vec<String>),
}

/// What is trained instead of the model's own weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// Rows of `A` and columns of `B`.
    pub rank: usize,
    /// How strongly an adapter counts, before it is divided by the rank or its root.
    pub alpha: f32,
    /// Probability of a zero in what an adapter reads, in training only.
    pub dropout: f32,
    /// Whether `alpha` is divided by the root of the rank, so that high ranks do not fade.
    pub rslora: bool,
    /// Which layers are adapted.
    pub targets: Targets,
    /// Modules that are trained as a whole: those whose name ends in one of these.
    pub modules_to_save: Vec<String>,
}

impl Default for Lora {
    fn default() -> Lora {
        Lora {
            rank: 8,
            alpha: 8.0,
            dropout: 0.0,
            rslora: false,
            targets: Targets::AllLinear,
            modules_to_save: Vec::new(),
        }
    }
}

/// A linear layer and the adapter it has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Adapter {
    /// Its name; `<module>.weight` is the frozen weight.
    pub module: String,
    /// Columns of what it reads.
    pub input: usize,
    /// Columns of its result.
    pub output: usize,
    /// Whether the weight is stored `(in, out)`.
    pub transposed: bool,
}

impl Adapter {
    /// Name of the parameter `A (r, in)`.
    pub fn a(&self) -> String {
        format!("{}.lora_A.weight", self.module)
    }

    /// Name of the parameter `B (out, r)`.
    pub fn b(&self) -> String {
        format!("{}.lora_B.weight", self.module)
    }
}

impl Lora {
    /// What `B·A` is multiplied by.
    pub fn scale(&self) -> f32 {
        let rank = self.rank as f32;
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// The same adapters for graphs that do not train.
    #[must_use]
    pub fn without_dropout(&self) -> Lora {
        Lora { dropout: 0.0, ..self.clone() }
    }

    /// Without the names of heads that the model has not: PEFT saves the head of a classifier under each name that any
    /// family has for it.
    #[must_use]
    pub fn without_absent_heads(mut self, forward: &Graph) -> Lora {
        let has = |head: &str| forward.states().iter().any(|state| saves(head, &state.name));
        self.modules_to_save.retain(|name| !CLASSIFIERS.contains(&name.as_str()) || has(name));
        self
    }

    /// The forward graph with adapters, and everything else frozen but the modules to save.
    ///
    /// # Errors
    ///
    /// When a number is out of range, a name fits no layer of the model, or the head is asked for.
    pub fn adapt(&self, forward: &Graph) -> Result<Graph, GraphError> {
        let layers: BTreeSet<Adapter> = self.adapters(forward)?.into_iter().collect();
        let kind = |state: &State| match state.kind {
            StateKind::Parameter { .. } => StateKind::Parameter { trainable: self.saves(&state.name) },
            other => other,
        };
        forward.rewrite(kind, |g, node| {
            let y = g.node(node).outputs[0];
            match linear(g, node).filter(|layer| layers.contains(layer)) {
                Some(layer) => self.add(g, g.node(node).inputs[0], y, &layer),
                None => y,
            }
        })
    }

    /// The layers of a forward graph that this adapts, in the order they run.
    ///
    /// # Errors
    ///
    /// As [`Lora::adapt`].
    pub fn adapters(&self, forward: &Graph) -> Result<Vec<Adapter>, GraphError> {
        self.check_numbers()?;
        let heads = heads(forward);
        self.check_saved(forward, &heads)?;
        let mut layers: Vec<Adapter> = Vec::new();
        for layer in forward.node_ids().filter_map(|node| linear(forward, node)) {
            let weight = format!("{}.weight", layer.module);
            if !layers.contains(&layer) && !self.saves(&weight) && !heads.contains(&weight) {
                layers.push(layer);
            }
        }
        if let Targets::Names(names) = &self.targets {
            check_names(names, &layers, &heads)?;
            layers.retain(|layer| names.iter().any(|name| is_named(&layer.module, name)));
        }
        Ok(layers)
    }

    /// `y + (s · dropout(x)·Aᵀ)·Bᵀ`.
    fn add(&self, g: &mut Graph, x: Value, y: Value, layer: &Adapter) -> Value {
        // Kaiming's uniform numbers with a = √5, PEFT's choice, reach up to 1/√in.
        let bound = 1.0 / (layer.input as f32).sqrt();
        let a = g.param_named(&layer.a(), [self.rank, layer.input], Init::Uniform(bound)); // (r, in)
        let b = g.param_named(&layer.b(), [layer.output, self.rank], Init::Fill(0.0)); // (out, r)
        let x = self.drop(g, x, &layer.module); // (…, in)
        let small = g.linear(x, a, None); // (…, r)
        let small = g.scale(small, self.scale()); // (…, r)
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
        let why = if self.rank == 0 {
            "the rank is 0; it must be at least 1".to_owned()
        } else if !self.alpha.is_finite() {
            format!("alpha must be a number, got {}", self.alpha)
        } else if !(0.0..1.0).contains(&self.dropout) {
            format!("the dropout must be at least 0 and less than 1, got {}", self.dropout)
        } else if self.targets == Targets::Names(Vec::new()) {
            "no target modules are named; name some, or write `all-linear`".to_owned()
        } else {
            return Ok(());
        };
        Err(refuse("lora", why))
    }

    fn check_saved(&self, forward: &Graph, heads: &BTreeSet<String>) -> Result<(), GraphError> {
        let parameters = || forward.states().iter().filter(|s| matches!(s.kind, StateKind::Parameter { .. }));
        for name in &self.modules_to_save {
            if name.is_empty() || !parameters().any(|state| saves(name, &state.name)) {
                let hint = if name == "lm_head" { "; its head is the embedding table" } else { "" };
                return Err(refuse("lora", format!("the model has no module `{name}` to save{hint}")));
            }
        }
        let tied = |name: &String| self.saves(name) && is_embedding(forward, name);
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

/// The linear layer of a node, if its weight is a parameter of a module.
fn linear(g: &Graph, node: NodeId) -> Option<Adapter> {
    let Op::Linear { transposed, .. } = g.node(node).op else { return None };
    let node = g.node(node);
    let (state, _) = g.value(node.inputs[1]).state?;
    Some(Adapter {
        module: g.state(state).name.strip_suffix(".weight")?.to_owned(),
        input: g.shape(node.inputs[0]).columns(),
        output: g.shape(node.outputs[0]).columns(),
        transposed,
    })
}

/// Modules of classification heads, which PEFT trains as a whole and never adapts.
const CLASSIFIERS: [&str; 2] = ["classifier", "score"];

/// Names of the weights that turn hidden states into logits.
fn heads(g: &Graph) -> BTreeSet<String> {
    let logits = g.output_named("logits").and_then(|logits| g.producer(g.storage(logits)));
    let is_head = |id: NodeId| match g.node(id).op {
        Op::HeadLoss(_) => true,
        Op::Linear { .. } => {
            logits == Some(id)
                || linear(g, id).is_some_and(|layer| CLASSIFIERS.contains(&layer.module.as_str()))
        }
        _ => false,
    };
    let weight_of = |id: NodeId| Some(g.state(g.value(g.node(id).inputs[1]).state?.0).name.clone());
    g.node_ids().filter(|&id| is_head(id)).filter_map(weight_of).collect()
}

fn is_embedding(g: &Graph, parameter: &str) -> bool {
    let reads =
        |value: Value| g.value(value).state.is_some_and(|(state, _)| g.state(state).name == parameter);
    g.nodes().iter().any(|node| node.op == Op::Embedding && reads(node.inputs[0]))
}

/// Whether the parameter is of a module whose name ends in `name`, which is PEFT's rule for modules to save.
fn saves(name: &str, parameter: &str) -> bool {
    parameter.match_indices('.').any(|(dot, _)| parameter[..dot].ends_with(name))
}

/// PEFT's rule.
fn is_named(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Refuses names that fit no layer; a typing error would otherwise train less than was asked for.
fn check_names(names: &[String], layers: &[Adapter], heads: &BTreeSet<String>) -> Result<(), GraphError> {
    let fits = |name: &String| layers.iter().any(|layer| is_named(&layer.module, name));
    let Some(name) = names.iter().find(|name| !fits(name)) else { return Ok(()) };
    if name == "lm_head"
        || heads.iter().any(|head| head.strip_suffix(".weight").is_some_and(|m| is_named(m, name)))
    {
        let why = format!("`{name}` is the output head, which has no adapter; name it as a module to save");
        return Err(refuse("lora", why));
    }
    let known: BTreeSet<&str> =
        layers.iter().map(|layer| layer.module.rsplit('.').next().unwrap_or_default()).collect();
    let known: Vec<&str> = known.into_iter().collect();
    Err(refuse("lora", format!("no linear layer is called `{name}`; the model has {}", known.join(", "))))
}
