//! Single tokens whose embedding vectors are trained, like PEFT's `trainable_token_indices`.
//!
//! ```text
//! y = W[ids]       becomes      y = W₀[ids] + E[ids]·D        D (n, C) trained; E (V, n) picks the tokens, one a column
//! z = x·Wᵀ         becomes      z = x·W₀ᵀ + (x·Dᵀ)·Eᵀ         where the tokens of the output head are trained
//! ```
//!
//! `W₀` is the table with the rows of those tokens set to zero, and `D` holds the trained rows. So no copy of the table
//! is made, in the forward pass or as a gradient: the price is `E`, of `n` numbers a word. The code that loads weights
//! moves the rows over, see [`TokenAdapter`]. A table that is also the output head has one `D` for both.

use std::collections::BTreeSet;

use plimsoll_graph::op::Head;
use plimsoll_graph::{Graph, GraphError, Init, Op, Value};

use super::Lora;
use super::layers::{Adapter, Form, heads, layers};
use crate::language::refuse;

/// Tokens that are trained.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum TrainedTokens {
    /// No tokens.
    #[default]
    None,
    /// These tokens, in the table that the model looks words up in.
    Input(Vec<usize>),
    /// These tokens, by the ends of the modules' names.
    Modules(Vec<(String, Vec<usize>)>),
}

impl TrainedTokens {
    /// The tokens by the ends of the modules' names; the table that words are looked up in may have the empty one.
    pub(super) fn named(&self) -> Vec<(&str, &[usize])> {
        match self {
            TrainedTokens::None => Vec::new(),
            TrainedTokens::Input(rows) => vec![("", rows)],
            TrainedTokens::Modules(modules) => {
                modules.iter().map(|(name, rows)| (name.as_str(), rows.as_slice())).collect()
            }
        }
    }
}

/// An embedding table of which some rows are trained. In the arena those rows are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAdapter {
    /// The module; `<module>.weight` is the frozen table `(V, C)`.
    pub module: String,
    /// The rows that are trained, in the order of the parameter.
    pub rows: Vec<usize>,
    /// Columns of the table.
    pub width: usize,
    /// Whether rows of the table are read as embeddings.
    reads: bool,
    /// Whether the table is the output head; it may be both.
    writes: bool,
}

impl TokenAdapter {
    /// Name of the trained rows `(n, C)`.
    pub fn parameter(&self) -> String {
        format!("{}.token_adapter.trainable_tokens_delta", self.module)
    }

    /// Name of the frozen table.
    pub fn weight(&self) -> String {
        format!("{}.weight", self.module)
    }

    fn rows_value(&self, g: &mut Graph) -> Value {
        g.param_named(&self.parameter(), [self.rows.len(), self.width], Init::Fill(0.0)) // (n, C)
    }

    fn picks(&self, g: &mut Graph, words: usize) -> Value {
        g.one_hot(&format!("{}.token_adapter.tokens", self.module), words, &self.rows) // (V, n)
    }

    /// `y + E[ids]·D`.
    pub(super) fn add_rows(&self, g: &mut Graph, ids: Value, y: Value, words: usize) -> Value {
        let (rows, picks) = (self.rows_value(g), self.picks(g, words)); // (n, C), (V, n)
        let chosen = g.embedding(picks, ids); // (…, n)
        g.linear_transposed(chosen, rows, Some(y)) // (…, C)
    }

    /// `z + (x·Dᵀ)·Eᵀ`, of logits that exist.
    pub(super) fn add_logits(&self, g: &mut Graph, x: Value, z: Value) -> Value {
        let words = g.shape(z).columns();
        let (rows, picks) = (self.rows_value(g), self.picks(g, words)); // (n, C), (V, n)
        let small = g.linear(x, rows, None); // (…, n)
        g.linear(small, picks, Some(z)) // (…, V)
    }

    /// The fused head and loss on `inputs`, with the trained rows as its second product.
    pub(super) fn head_loss(&self, g: &mut Graph, head: Head, inputs: &[Value]) -> Value {
        let words = g.shape(inputs[1])[0];
        let (rows, picks) = (self.rows_value(g), self.picks(g, words)); // (n, C), (V, n)
        let small = g.linear(inputs[0], rows, None); // (N, n)
        let inputs: Vec<Value> = inputs.iter().copied().chain([small, picks]).collect();
        g.apply(Op::HeadLoss(Head { second: true, ..head }), &inputs)
    }

    pub(super) fn reads(&self, table: &Adapter) -> bool {
        self.reads && table.form == Form::Table && table.module == self.module
    }

    pub(super) fn writes(&self, weight: &str) -> bool {
        self.writes && self.weight() == weight
    }
}

impl Lora {
    /// The tables of a forward graph of which single rows are trained.
    ///
    /// # Errors
    ///
    /// When a token or a module is not the model's, or something else is trained there.
    pub fn token_adapters(&self, forward: &Graph) -> Result<Vec<TokenAdapter>, GraphError> {
        let mut named = self.tokens.named();
        if named.is_empty() {
            return Ok(Vec::new());
        }
        let heads = heads(forward);
        let table = layers(forward).into_iter().find(|layer| layer.form == Form::Table);
        let table = table.ok_or_else(|| wrong("the model has no table of words"))?;
        let tied = heads.contains(&table.weight());
        // PEFT writes names in the order of the alphabet, so a head may stand before the table that it is.
        named.sort_by_key(|(name, _)| !table.module.ends_with(name));
        let mut found: Vec<TokenAdapter> = Vec::new();
        for (name, rows) in named {
            let reads = table.module.ends_with(name);
            if !reads && tied {
                follows(&found, name, rows)?;
                continue;
            }
            let of_head = heads.iter().filter_map(|head| head.strip_suffix(".weight"));
            let mut of_head = of_head.filter(|head| head.ends_with(name) && *head == "lm_head");
            let unknown = || wrong(&format!("`{name}` is no table of words of the model"));
            let module =
                if reads { table.module.clone() } else { of_head.next().ok_or_else(unknown)?.to_owned() };
            let adapter = TokenAdapter {
                module,
                rows: rows.to_vec(),
                width: table.output,
                reads,
                writes: !reads || tied,
            };
            self.check_tokens(forward, &adapter, &table)?;
            found.push(adapter);
        }
        Ok(found)
    }

    fn check_tokens(&self, g: &Graph, adapter: &TokenAdapter, table: &Adapter) -> Result<(), GraphError> {
        let (module, rows) = (&adapter.module, &adapter.rows);
        let different: BTreeSet<usize> = rows.iter().copied().collect();
        let biased = |op: &Op| matches!(op, Op::HeadLoss(head) if head.bias);
        Err(wrong(&if rows.is_empty() {
            format!("no token of `{module}` is named")
        } else if let Some(row) = rows.iter().find(|&&row| row >= table.input) {
            format!("there is no token {row}; the model knows {} of them", table.input)
        } else if different.len() < rows.len() {
            format!("a token of `{module}` is named twice")
        } else if self.saves(&adapter.weight()) {
            format!("`{module}` is a module to save, which trains all of its tokens")
        } else if adapter.reads && self.means(table)? {
            format!("`{module}` has an adapter, beside which its tokens cannot be trained")
        } else if adapter.writes && g.nodes().iter().any(|node| biased(&node.op)) {
            // PEFT 0.21 drops the bias of a head that it wraps, and so computes something else than the model.
            format!("`{module}` is also an output head with a bias, which PEFT leaves out then")
        } else {
            return Ok(());
        }))
    }
}

/// Refuses tokens of a tied head that are not those of its table. PEFT lets them differ, and then head and table are two.
fn follows(found: &[TokenAdapter], name: &str, rows: &[usize]) -> Result<(), GraphError> {
    if !"lm_head".ends_with(name) {
        return Err(wrong(&format!("`{name}` is no table of words of the model")));
    }
    match found.first() {
        Some(table) if table.rows == rows => Ok(()),
        _ => Err(wrong("a head that is the table of words must have the tokens of the table")),
    }
}

fn wrong(why: &str) -> GraphError {
    refuse("lora", format!("trained tokens: {why}"))
}
