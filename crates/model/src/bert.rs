//! BERT for masked words, or for labels of whole texts: post-norm blocks that see both directions
//! (Devlin et al. 2019).
//!
//! ```text
//! x = layer_norm(x + attention(x))     x = layer_norm(x + output(gelu(intermediate(x))))
//! ```
//!
//! Legend: `B` sequences, `T` positions, `C` width, `H` heads of width `D`, `F` hidden width of the
//! feed-forward network, `P` learned positions, `V` words, `L` labels. Parameters have the names and shapes
//! of Hugging Face's `BertForMaskedLM`, or with `labels` those of `BertForSequenceClassification`.
//!
//! The input `doc_start` does the work of an attention mask: padding is a document of its own, so words
//! do not see it. Results at padding differ from the original, and reach no loss in either.
//!
//! Deliberately absent: next-sentence prediction, and with it the second segment, so every token is of
//! type 0; dropout of attention weights, because the `T×T` matrix never exists; generation, which needs
//! a model that reads in one direction.

use plimsoll_graph::op::Gelu;
use plimsoll_graph::{Graph, GraphError, Init, Value, Visible};

use crate::language;

/// Standard deviation of a weight before the first step.
const SPREAD: f32 = 0.02;

/// Shape of a BERT.
#[derive(Clone, Debug, PartialEq)]
pub struct Bert {
    /// Words.
    pub vocab: usize,
    /// Learned positions: the longest sequence.
    pub positions: usize,
    /// Rows of the token-type table, of which the first is used.
    pub token_types: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Heads.
    pub heads: usize,
    /// Hidden width of the feed-forward network.
    pub ffn: usize,
    /// Added to the variance in every norm.
    pub norm_epsilon: f32,
    /// Probability of a zero in embeddings and in the updates of a block.
    pub dropout: f32,
    /// The classes of a whole text; without them, masked words are guessed.
    pub labels: Option<Labels>,
}

/// The labels of a classifier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Labels {
    /// The number of labels.
    pub count: usize,
    /// Dropout probability of the classifier's input.
    pub dropout: f32,
}

impl Bert {
    /// The graph from `tokens` and `targets` to `loss`, without its derivative. Some tokens are masked and the targets
    /// are the original ids; with labels there is one target per row, its label.
    ///
    /// # Errors
    ///
    /// When the numbers of the configuration do not go together.
    pub fn training(&self, batch: usize, seq: usize) -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        let (x, words) = self.read(&mut g, batch, seq)?; // (B, T, C), (V, C)
        if let Some(labels) = self.labels {
            let logits = self.classify(&mut g, x, labels); // (B, L)
            language::label_loss(&mut g, logits);
        } else {
            let (x, bias) = self.transform(&mut g, x); // (B, T, C), (V)
            language::loss(&mut g, x, words, Some(bias));
        }
        g.finish()
    }

    /// The same graph with nothing dropped; with labels, their `logits` `(B, L)` are an output beside `loss`.
    ///
    /// # Errors
    ///
    /// When the numbers of the configuration do not go together.
    pub fn evaluation(&self, batch: usize, seq: usize) -> Result<Graph, GraphError> {
        let certain = self.certain();
        let Some(labels) = certain.labels else { return certain.training(batch, seq) };
        let mut g = Graph::new();
        let (x, _) = certain.read(&mut g, batch, seq)?; // (B, T, C)
        let logits = certain.classify(&mut g, x, labels); // (B, L)
        language::label_loss(&mut g, logits);
        g.output("logits", logits);
        g.finish()
    }

    /// The graph from `tokens`, `doc_start` and `position` of one text to the `logits` of the word that is
    /// masked there. Nothing is dropped.
    ///
    /// # Errors
    ///
    /// When the numbers of the configuration do not go together.
    pub fn guess(&self, seq: usize) -> Result<Graph, GraphError> {
        let certain = self.certain();
        let mut g = Graph::new();
        let (x, words) = certain.read(&mut g, 1, seq)?; // (1, T, C), (V, C)
        let (x, bias) = certain.transform(&mut g, x); // (1, T, C), (V)
        language::logits(&mut g, x, words, Some(bias));
        g.finish()
    }

    fn certain(&self) -> Bert {
        let labels = self.labels.map(|labels| Labels { dropout: 0.0, ..labels });
        Bert { dropout: 0.0, labels, ..self.clone() }
    }

    /// The inputs and the encoder's output: `(B, T, C)`, and the embedding table `(V, C)`.
    fn read(&self, g: &mut Graph, batch: usize, seq: usize) -> Result<(Value, Value), GraphError> {
        let tokens = language::tokens(g, batch, seq); // (B, T)
        let doc_start = language::doc_start(g, batch, seq); // (B, T)
        self.encode(g, tokens, doc_start)
    }

    /// The final hidden state `(B, T, C)` and the embedding table `(V, C)`.
    fn encode(
        &self,
        g: &mut Graph,
        tokens: Value,    // (B, T)
        doc_start: Value, // (B, T)
    ) -> Result<(Value, Value), GraphError> {
        let seq = g.shape(tokens).columns();
        let extents = [
            ("vocab", self.vocab),
            ("width", self.width),
            ("ffn", self.ffn),
            ("token_types", self.token_types),
            ("number of labels", self.labels.map_or(1, |labels| labels.count)),
        ];
        language::no_zeros(g, "bert", tokens, &extents)?;
        language::head_width("bert", self.width, self.heads)?;
        language::enough_positions("bert", seq, self.positions)?;
        let visible = Visible { doc_start: Some(doc_start), ..Visible::ALL };
        let (mut x, words) = g.block("bert.embeddings", |g| self.embed(g, tokens)); // (B, T, C), (V, C)
        for layer in 0..self.layers {
            x = g.block(&format!("bert.encoder.layer.{layer}"), |g| {
                let x = self.attend(g, x, visible); // (B, T, C)
                self.feed_forward(g, x) // (B, T, C)
            });
        }
        Ok((x, words))
    }

    /// Words, positions and the one token type, added and normed.
    fn embed(&self, g: &mut Graph, tokens: Value) -> (Value, Value) {
        let (seq, width) = (g.shape(tokens).columns(), self.width);
        let words = g.param("word_embeddings.weight", [self.vocab, width], Init::Normal(SPREAD)); // (V, C)
        let places = g.param("position_embeddings.weight", [self.positions, width], Init::Normal(SPREAD)); // (P, C)
        let types = g.param("token_type_embeddings.weight", [self.token_types, width], Init::Normal(SPREAD)); // (2, C)

        let x = g.embedding(words, tokens); // (B, T, C)
        let kind = g.slice(types, 0, 0, 1); // (1, C)
        let kind = g.reshape(kind, [width]); // (C)
        let x = g.add(x, kind); // (B, T, C)
        let places = g.slice(places, 0, 0, seq); // (T, C)
        let x = g.add(x, places); // (B, T, C)
        let x = self.norm(g, x, "LayerNorm"); // (B, T, C)
        (g.dropout(x, self.dropout), words) // (B, T, C), (V, C)
    }

    /// `layer_norm(x + attention(x))`.
    fn attend(&self, g: &mut Graph, x: Value, visible: Visible) -> Value {
        let &[batch, seq, width] = &g.shape(x)[..] else {
            unreachable!("the residual stream is (B, T, C)");
        };
        let [q, k, v] = ["query", "key", "value"].map(|name| {
            let part = project(g, x, &format!("attention.self.{name}"), width); // (B, T, C)
            g.reshape(part, [batch, seq, self.heads, width / self.heads]) // (B, T, H, D)
        });
        let mixed = g.attention(q, k, v, visible); // (B, T, H, D)
        let mixed = g.reshape(mixed, [batch, seq, width]); // (B, T, C)
        let update = project(g, mixed, "attention.output.dense", width); // (B, T, C)
        let update = g.dropout(update, self.dropout); // (B, T, C)
        let x = g.add(x, update); // (B, T, C)
        self.norm(g, x, "attention.output.LayerNorm") // (B, T, C)
    }

    /// `layer_norm(x + output(gelu(intermediate(x))))`.
    fn feed_forward(&self, g: &mut Graph, x: Value) -> Value {
        let hidden = project(g, x, "intermediate.dense", self.ffn); // (B, T, F)
        let hidden = g.gelu(hidden, Gelu::Erf); // (B, T, F)
        let update = project(g, hidden, "output.dense", self.width); // (B, T, C)
        let update = g.dropout(update, self.dropout); // (B, T, C)
        let x = g.add(x, update); // (B, T, C)
        self.norm(g, x, "output.LayerNorm") // (B, T, C)
    }

    /// The layer between the encoder and the tied head, and the head's bias `(V)`.
    fn transform(&self, g: &mut Graph, x: Value) -> (Value, Value) {
        let x = project(g, x, "cls.predictions.transform.dense", self.width); // (B, T, C)
        let x = g.gelu(x, Gelu::Erf); // (B, T, C)
        let x = self.norm(g, x, "cls.predictions.transform.LayerNorm"); // (B, T, C)
        (x, g.param("cls.predictions.bias", [self.vocab], Init::Fill(0.0))) // (B, T, C), (V)
    }

    /// The logits `(B, L)` of the labels, read off the first word of each text.
    fn classify(&self, g: &mut Graph, x: Value, labels: Labels) -> Value {
        let (batch, width) = (g.shape(x)[0], self.width);
        let first = g.slice(x, 1, 0, 1); // (B, 1, C)
        let first = g.reshape(first, [batch, width]); // (B, C)
        let pooled = project(g, first, "bert.pooler.dense", width); // (B, C)
        let pooled = g.tanh(pooled); // (B, C)
        let pooled = g.dropout(pooled, labels.dropout); // (B, C)
        project(g, pooled, "classifier", labels.count) // (B, L)
    }

    fn norm(&self, g: &mut Graph, x: Value, name: &str) -> Value {
        let weight = g.param(&format!("{name}.weight"), [self.width], Init::Fill(1.0)); // (C)
        let bias = g.param(&format!("{name}.bias"), [self.width], Init::Fill(0.0)); // (C)
        g.layer_norm(x, weight, bias, self.norm_epsilon) // (B, T, C)
    }
}

/// `x·wᵀ + b` with `w (out, in)`.
fn project(g: &mut Graph, x: Value, name: &str, out: usize) -> Value {
    let input = g.shape(x).columns();
    let weight = g.param(&format!("{name}.weight"), [out, input], Init::Normal(SPREAD)); // (out, in)
    let bias = g.param(&format!("{name}.bias"), [out], Init::Fill(0.0)); // (out)
    g.linear(x, weight, Some(bias)) // (B, T, out)
}
