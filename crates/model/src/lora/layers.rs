//! The modules of a forward graph that can have an adapter, and those that cannot.

use std::collections::BTreeSet;

use plimsoll_graph::{Graph, NodeId, Op, Value};

use super::{intrinsic, prompt};

/// How a module uses its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A linear layer whose weight is stored `(out, in)`.
    Linear,
    /// A linear layer whose weight is stored `(in, out)`, as in GPT-2.
    Transposed,
    /// A table of word vectors `(words, width)`, from which a row is taken for each token.
    Table,
}

/// A module and the adapter it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// The module's name; `<module>.weight` is the frozen weight.
    pub module: String,
    /// How the module uses its weight.
    pub form: Form,
    /// Columns of the module's input, or words of a table.
    pub input: usize,
    /// Columns of the module's result.
    pub output: usize,
    /// Rows of `A` and columns of `B`.
    pub rank: usize,
    /// The factor of `B·A`.
    pub scale: f32,
    /// Whether factors of IA³ are those of its input, not of its result.
    pub feedforward: bool,
}

impl Adapter {
    /// Name of the parameter `A (r, in)`.
    pub fn a(&self) -> String {
        match self.form {
            Form::Table => format!("{}.lora_embedding_A", self.module),
            Form::Linear | Form::Transposed => format!("{}.lora_A.weight", self.module),
        }
    }

    /// Name of the parameter `B (out, r)`.
    pub fn b(&self) -> String {
        match self.form {
            Form::Table => format!("{}.lora_embedding_B", self.module),
            Form::Linear | Form::Transposed => format!("{}.lora_B.weight", self.module),
        }
    }

    /// Name of the trained lengths of the rows `W + s·B·A`, `(out)`.
    pub fn magnitude(&self) -> String {
        format!("{}.lora_magnitude_vector", self.module)
    }

    /// Name of the squares of the rows of the frozen weight, `(out)`, a constant beside the lengths.
    pub fn squares(&self) -> String {
        format!("{}.lora_magnitude_vector.squares", self.module)
    }

    /// Name of the factors of IA³.
    pub fn factors(&self) -> String {
        format!("{}.ia3_l", self.module)
    }

    /// Name of the first matrix of a bottleneck, `(n, out)`.
    pub fn down(&self) -> String {
        format!("{}.adapter_down.weight", self.module)
    }

    /// Name of the second, `(out, n)`.
    pub fn up(&self) -> String {
        format!("{}.adapter_up.weight", self.module)
    }

    /// Name of the frozen weight.
    pub fn weight(&self) -> String {
        format!("{}.weight", self.module)
    }

    /// Rows and columns of the weight as its model stores it.
    pub fn stored_shape(&self) -> [usize; 2] {
        if self.rows_are_inputs() { [self.input, self.output] } else { [self.output, self.input] }
    }

    /// Whether rows of the stored weight belong to the module's input, not to its result.
    pub(super) fn rows_are_inputs(&self) -> bool {
        self.form != Form::Linear
    }
}

/// Ends of the names of adapters' parameters.
const ENDS: [&str; 8] = [
    ".lora_A.weight",
    ".lora_B.weight",
    ".lora_embedding_A",
    ".lora_embedding_B",
    ".lora_magnitude_vector",
    ".ia3_l",
    ".adapter_down.weight",
    ".adapter_up.weight",
];
/// The ending of trained tokens, which belong to a table and not to a module.
const TOKENS_END: &str = ".token_adapter.trainable_tokens_delta";

/// Whether a parameter is one of an adapter.
pub fn is_adapter(parameter: &str) -> bool {
    module_of(parameter).is_some()
        || parameter.ends_with(TOKENS_END)
        || parameter == prompt::PARAMETER
        || intrinsic::is_coordinates(parameter)
}

/// The module that a parameter of an adapter belongs to.
pub fn module_of(parameter: &str) -> Option<&str> {
    ENDS.iter().find_map(|end| parameter.strip_suffix(end))
}

/// Every linear layer and table of words, once, in the order they run; ranks are not known yet. An adapter can be added to the
/// result of each. PEFT knows routers as parameters and not as layers.
pub(super) fn layers(g: &Graph) -> Vec<Adapter> {
    let (mut seen, routers) = (BTreeSet::new(), routers(g));
    let is_router = |node: NodeId| routers.contains(&g.node(node).outputs[0]);
    let layers = g
        .node_ids()
        .filter_map(|node| any_layer(g, node).filter(|layer| layer.form == Form::Table || !is_router(node)));
    layers.filter(|layer| seen.insert((layer.module.clone(), layer.form == Form::Table))).collect()
}

/// The module of a node, if its weight is a parameter; a router may be one.
pub(super) fn any_layer(g: &Graph, node: NodeId) -> Option<Adapter> {
    let node = g.node(node);
    let (weight, form) = match node.op {
        Op::Linear { transposed: true, .. } => (node.inputs[1], Form::Transposed),
        Op::Linear { .. } => (node.inputs[1], Form::Linear),
        Op::Embedding if g.value(node.inputs[1]).name == "tokens" => (node.inputs[0], Form::Table),
        _ => return None,
    };
    let input = if form == Form::Table { g.shape(weight)[0] } else { g.shape(node.inputs[0]).columns() };
    Some(Adapter {
        module: parameter(g, weight)?.strip_suffix(".weight")?.to_owned(),
        form,
        input,
        output: g.shape(node.outputs[0]).columns(),
        rank: 0,
        scale: 0.0,
        feedforward: false,
    })
}

/// The scores of all routers, found in one walk.
fn routers(g: &Graph) -> BTreeSet<Value> {
    let softmaxes = g.nodes().iter().filter(|node| node.op == Op::SoftmaxLse);
    softmaxes.flat_map(|node| node.inputs.iter().copied()).collect()
}

/// The name of the parameter that a value is.
pub(super) fn parameter(g: &Graph, value: Value) -> Option<&str> {
    Some(&g.state(g.value(value).state?.0).name)
}

/// The name that transformers has for a module or parameter in memory, where its files have another.
pub(super) fn peft_name(name: &str) -> String {
    name.replace(".block_sparse_moe.", ".mlp.")
}

/// Modules of classification heads, which PEFT trains as a whole and never adapts.
pub(super) const CLASSIFIERS: [&str; 2] = ["classifier", "score"];
/// Name of an output head without a weight of its own.
const HEADS: [&str; 2] = ["lm_head", "cls.predictions.decoder"];

/// Names of the weights that turn hidden states into logits.
pub(super) fn heads(g: &Graph) -> BTreeSet<String> {
    let logits = g.output_named("logits").and_then(|logits| g.producer(g.storage(logits)));
    let is_head = |id: NodeId| match g.node(id).op {
        Op::HeadLoss(_) => true,
        Op::Linear { .. } => {
            let classifies = |layer: Adapter| CLASSIFIERS.contains(&layer.module.as_str());
            logits == Some(id) || any_layer(g, id).is_some_and(classifies)
        }
        _ => false,
    };
    let weight_of = |id: NodeId| parameter(g, g.node(id).inputs[1]).map(str::to_owned);
    g.node_ids().filter(|&id| is_head(id)).filter_map(weight_of).collect()
}

/// Modules that are the output head, under the names PEFT has for them.
pub(super) fn head_modules(heads: &BTreeSet<String>) -> impl Iterator<Item = &str> {
    HEADS.into_iter().chain(heads.iter().filter_map(|head| head.strip_suffix(".weight")))
}

/// Whether a module has a name, or ends in it after a dot.
pub(super) fn is_named(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Whether a name means the output head.
pub(super) fn is_head_name(name: &str, heads: &BTreeSet<String>) -> bool {
    head_modules(heads).any(|head| is_named(head, name))
}

/// Why the output head of that name is no target. A tied head is the embedding table, and has no weight to save either.
pub(super) fn no_adapter_for_head(name: &str, heads: &BTreeSet<String>) -> String {
    let mut own = heads.iter().filter_map(|head| head.strip_suffix(".weight"));
    if own.any(|head| is_named(head, name)) {
        format!("`{name}` is the output head, which has no adapter; name it as a module to save")
    } else {
        format!(
            "`{name}` is the output head, which is the embedding table here and has no adapter; leave it out"
        )
    }
}

/// Whether a parameter is a table that rows are taken from.
pub(super) fn is_table(g: &Graph, name: &str) -> bool {
    g.nodes().iter().any(|node| node.op == Op::Embedding && parameter(g, node.inputs[0]) == Some(name))
}
