//! GPT-2: pre-norm blocks with learned positions and a head tied to the embedding (Radford et al. 2019).
//!
//! ```text
//! x = x + attention(layer_norm(x))     x = x + proj(gelu(fc(layer_norm(x))))
//! ```
//!
//! Legend: `B` sequences, `T` positions, `C` width, `H` heads of width `D`, `P` learned positions,
//! `V` words. Parameters have the names and shapes of Hugging Face's `GPT2LMHeadModel`; matrices are
//! stored `(in, out)` there, the other way round from every other model, and so they are here.
//!
//! Deliberately absent: dropout of attention weights, because the `T×T` matrix never exists; embeddings
//! and the two updates of a block have theirs. A cache of keys, as in the Llama.

use plimsoll_graph::op::Gelu;
use plimsoll_graph::{Graph, GraphError, Init, Value, Visible};

use crate::language;

/// Standard deviation of a weight before the first step.
const SPREAD: f32 = 0.02;

/// Shape of a GPT-2.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt2 {
    /// Words.
    pub vocab: usize,
    /// Learned positions: the longest sequence.
    pub positions: usize,
    /// Width of the residual stream; the feed-forward network is four times as wide.
    pub width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Heads.
    pub heads: usize,
    /// Added to the variance in every norm.
    pub norm_epsilon: f32,
    /// Probability of a zero in embeddings and in the updates of a block.
    pub dropout: f32,
    /// Whether a row may hold several documents, kept apart by the input `doc_start` and each counted from
    /// its own start by the input `positions`.
    pub documents: bool,
}

impl Gpt2 {
    /// The graph from `tokens` and `targets` to `loss`, without its derivative.
    ///
    /// Evaluation wants it with `dropout` 0.
    ///
    /// # Errors
    ///
    /// When the numbers of the configuration do not go together.
    pub fn training(&self, batch: usize, seq: usize) -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        let tokens = language::tokens(&mut g, batch, seq); // (B, T)
        let doc_start = self.documents.then(|| language::doc_start(&mut g, batch, seq)); // (B, T)
        let (x, head) = self.decode(&mut g, tokens, doc_start)?; // (B, T, C), (V, C)
        language::loss(&mut g, x, head, None);
        g.finish()
    }

    /// The graph from `tokens` and `position` to the `logits` of the word after that position. Nothing
    /// is dropped.
    ///
    /// # Errors
    ///
    /// When the numbers of the configuration do not go together.
    pub fn generation(&self, seq: usize) -> Result<Graph, GraphError> {
        let certain = Gpt2 { dropout: 0.0, ..self.clone() };
        let mut g = Graph::new();
        let tokens = language::tokens(&mut g, 1, seq); // (1, T)
        let (x, head) = certain.decode(&mut g, tokens, None)?; // (1, T, C), (V, C)
        language::logits(&mut g, x, head, None);
        g.finish()
    }

    /// The final hidden state `(B, T, C)` and the head's weight `(V, C)`.
    fn decode(
        &self,
        g: &mut Graph,
        tokens: Value,            // (B, T)
        doc_start: Option<Value>, // (B, T)
    ) -> Result<(Value, Value), GraphError> {
        let seq = g.shape(tokens).columns();
        let extents = [("vocab", self.vocab), ("width", self.width)];
        language::no_zeros(g, "gpt2", tokens, &extents)?;
        language::head_width("gpt2", self.width, self.heads)?;
        language::enough_positions("gpt2", seq, self.positions)?;
        let words = g.param("transformer.wte.weight", [self.vocab, self.width], Init::Normal(SPREAD)); // (V, C)
        let places = g.param("transformer.wpe.weight", [self.positions, self.width], Init::Normal(SPREAD)); // (P, C)
        let visible = Visible { doc_start, ..Visible::CAUSAL };

        let x = g.embedding(words, tokens); // (B, T, C)
        let places = match doc_start {
            Some(_) => {
                let positions = language::positions(g, tokens); // (B, T)
                g.embedding(places, positions) // (B, T, C)
            }
            None => g.slice(places, 0, 0, seq), // (T, C)
        };
        let x = g.add(x, places); // (B, T, C)
        let mut x = g.dropout(x, self.dropout); // (B, T, C)
        for layer in 0..self.layers {
            x = g.block(&format!("transformer.h.{layer}"), |g| {
                let x = self.attend(g, x, visible); // (B, T, C)
                self.feed_forward(g, x) // (B, T, C)
            });
        }
        let x = self.norm(g, x, "transformer.ln_f"); // (B, T, C)
        Ok((x, words))
    }

    /// `x + attention(layer_norm(x))`.
    fn attend(&self, g: &mut Graph, x: Value, visible: Visible) -> Value {
        let &[batch, seq, width] = &g.shape(x)[..] else {
            unreachable!("the residual stream is (B, T, C)");
        };
        let normed = self.norm(g, x, "ln_1"); // (B, T, C)
        let joint = project(g, normed, "attn.c_attn", 3 * width, SPREAD); // (B, T, 3·C)
        let [q, k, v] = [0, 1, 2].map(|part| {
            let part = g.slice(joint, 2, part * width, width); // (B, T, C)
            g.reshape(part, [batch, seq, self.heads, width / self.heads]) // (B, T, H, D)
        });
        let mixed = g.attention(q, k, v, visible); // (B, T, H, D)
        let mixed = g.reshape(mixed, [batch, seq, width]); // (B, T, C)
        let update = project(g, mixed, "attn.c_proj", width, self.residual_spread()); // (B, T, C)
        let update = g.dropout(update, self.dropout); // (B, T, C)
        g.add(x, update) // (B, T, C)
    }

    /// `x + proj(gelu(fc(layer_norm(x))))`.
    fn feed_forward(&self, g: &mut Graph, x: Value) -> Value {
        let normed = self.norm(g, x, "ln_2"); // (B, T, C)
        let hidden = project(g, normed, "mlp.c_fc", 4 * self.width, SPREAD); // (B, T, 4·C)
        let hidden = g.gelu(hidden, Gelu::Tanh); // (B, T, 4·C)
        let update = project(g, hidden, "mlp.c_proj", self.width, self.residual_spread()); // (B, T, C)
        let update = g.dropout(update, self.dropout); // (B, T, C)
        g.add(x, update) // (B, T, C)
    }

    fn norm(&self, g: &mut Graph, x: Value, name: &str) -> Value {
        let weight = g.param(&format!("{name}.weight"), [self.width], Init::Fill(1.0)); // (C)
        let bias = g.param(&format!("{name}.bias"), [self.width], Init::Fill(0.0)); // (C)
        g.layer_norm(x, weight, bias, self.norm_epsilon) // (B, T, C)
    }

    /// Every block adds two updates to the residual stream; with this small deviation the variance of their sum does
    /// not depend on the depth.
    fn residual_spread(&self) -> f32 {
        SPREAD / (2.0 * self.layers as f32).sqrt()
    }
}

/// `x·w + b` with `w (in, out)`.
fn project(g: &mut Graph, x: Value, name: &str, out: usize, spread: f32) -> Value {
    let input = g.shape(x).columns();
    let weight = g.param(&format!("{name}.weight"), [input, out], Init::Normal(spread)); // (in, out)
    let bias = g.param(&format!("{name}.bias"), [out], Init::Fill(0.0)); // (out)
    g.linear_transposed(x, weight, Some(bias)) // (B, T, out)
}
