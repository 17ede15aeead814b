//! Llama: pre-norm blocks with rotary positions, grouped queries and a gated feed-forward network
//! (Touvron et al. 2023; grouped queries from Ainslie et al. 2023).
//!
//! ```text
//! x = x + attention(rms_norm(x))       x = x + down(silu(gate·x̂) · up·x̂),  x̂ = rms_norm(x)
//! ```
//!
//! Legend: `B` sequences, `T` positions, `C` width, `H` query heads and `K` key heads of width `D`,
//! `F` hidden width of the feed-forward network, `V` words. Parameters have the names and shapes of
//! Hugging Face's `LlamaForCausalLM`; with `window` it is a `MistralForCausalLM`, with `qkv_bias` a
//! `Qwen2ForCausalLM`, with `qk_norm` a `Qwen3ForCausalLM`. With a `mixture` the feed-forward networks are experts, as in
//! Mixtral, Qwen2-MoE, Qwen3-MoE and `OLMoE`: see [`Mixture`].
//!
//! Deliberately absent: dropout (the family trains without), windows in some layers only, and a cache of
//! keys for generation, which reads the whole text again for every word.

use plimsoll_graph::{Graph, GraphError, Init, Value, Visible};

use crate::language;
use crate::mixture::{Mixture, Routers, Tokens};
use crate::rope::{Rope, frequencies};

/// Standard deviation of a weight before the first step.
const SPREAD: f32 = 0.02;

/// Shape of a Llama.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent choice of a published model")]
pub struct Llama {
    /// Words.
    pub vocab: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, each shared by `heads / key_heads` query heads.
    pub key_heads: usize,
    /// Width of one head, where it is not `width / heads`.
    pub head_width: Option<usize>,
    /// Hidden width of the feed-forward network.
    pub ffn: usize,
    /// Added to the mean square in every norm.
    pub norm_epsilon: f32,
    /// How fast queries and keys turn with their position.
    pub rope: Rope,
    /// How many positions back a query sees, its own included, as in Mistral; all when not stated.
    pub window: Option<usize>,
    /// The longest sequence the model is meant for; any length when not stated.
    pub positions: Option<usize>,
    /// Whether the head is the embedding table.
    pub tie_embeddings: bool,
    /// Whether queries, keys and values have a bias, as in Qwen2.
    pub qkv_bias: bool,
    /// Whether each head of queries and keys is normed before it is turned, as in Qwen3.
    pub qk_norm: bool,
    /// Whether queries and keys are normed over all heads at once, as in `OLMoE`.
    pub whole_qk_norm: bool,
    /// Experts instead of one feed-forward network a layer, or in some layers.
    pub mixture: Option<Mixture>,
    /// Whether a row may hold several documents, kept apart by the input `doc_start`. Rotary positions
    /// are relative, so they need not begin again.
    pub documents: bool,
}

impl Llama {
    /// The graph from `tokens` and `targets` to `loss`, without its derivative.
    ///
    /// # Errors
    ///
    /// When the numbers of the configuration do not go together.
    pub fn training(&self, batch: usize, seq: usize) -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        let tokens = language::tokens(&mut g, batch, seq); // (B, T)
        let doc_start = self.documents.then(|| language::doc_start(&mut g, batch, seq)); // (B, T)
        let routed = self.mixture.as_ref().map(|_| Tokens::read(&mut g, batch, seq));
        let (x, head) = self.decode(&mut g, tokens, doc_start, routed)?; // (B, T, C), (V, C)
        language::loss(&mut g, x, head, None);
        g.finish()
    }

    /// The same graph without noise.
    ///
    /// # Errors
    ///
    /// When the numbers of the configuration do not go together.
    pub fn evaluation(&self, batch: usize, seq: usize) -> Result<Graph, GraphError> {
        self.without_noise().training(batch, seq)
    }

    /// The graph from `tokens` and `position` to the `logits` of the word after that position.
    ///
    /// # Errors
    ///
    /// When the numbers of the configuration do not go together.
    pub fn generation(&self, seq: usize) -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        let tokens = language::tokens(&mut g, 1, seq); // (1, T)
        let (x, head) = self.without_noise().decode(&mut g, tokens, None, None)?; // (1, T, C), (V, C)
        language::logits(&mut g, x, head, None);
        g.finish()
    }

    fn without_noise(&self) -> Llama {
        Llama { mixture: self.mixture.as_ref().map(Mixture::without_noise), ..self.clone() }
    }

    /// The final hidden state `(B, T, C)` and the head's weight `(V, C)`.
    fn decode(
        &self,
        g: &mut Graph,
        tokens: Value,            // (B, T)
        doc_start: Option<Value>, // (B, T)
        routed: Option<Tokens>,   // of a mixture that is trained or evaluated
    ) -> Result<(Value, Value), GraphError> {
        let extents = [("vocab", self.vocab), ("width", self.width), ("ffn", self.ffn)];
        language::no_zeros(g, "llama", tokens, &extents)?;
        language::within_positions("llama", g.shape(tokens).columns(), self.positions)?;
        let head_width = self.checked_head_width()?;
        self.mixture.as_ref().map_or(Ok(()), |mixture| mixture.check(g.shape(tokens).columns()))?;
        let words = g.param("model.embed_tokens.weight", [self.vocab, self.width], Init::Normal(SPREAD)); // (V, C)
        let table = frequencies(&self.rope, head_width);
        let frequencies = g.constant("rope.frequencies", [head_width / 2], table); // (D/2)
        let visible = Visible { doc_start, window: self.window, ..Visible::CAUSAL };

        let mut routers = Routers::new(self.mixture.as_ref(), self.layers, routed);
        let mut x = g.embedding(words, tokens); // (B, T, C)
        for layer in 0..self.layers {
            x = g.block(&format!("model.layers.{layer}"), |g| {
                let x = self.attend(g, x, head_width, frequencies, visible); // (B, T, C)
                let normed = self.norm(g, x, "post_attention_layernorm.weight"); // (B, T, C)
                let update = match self.mixture.as_ref().filter(|mixture| mixture.is_sparse(layer)) {
                    Some(mixture) => mixture.feed_forward(g, normed, &mut routers), // (B, T, C)
                    None => self.feed_forward(g, normed),                           // (B, T, C)
                };
                g.add(x, update) // (B, T, C)
            });
        }
        if let Some(mixture) = &self.mixture {
            mixture.balance_all(g, &routers);
        }
        let x = self.norm(g, x, "model.norm.weight"); // (B, T, C)

        let head = if self.tie_embeddings {
            words // (V, C)
        } else {
            g.param("lm_head.weight", [self.vocab, self.width], Init::Normal(SPREAD)) // (V, C)
        };
        Ok((x, head))
    }

    /// `x + attention(rms_norm(x))`.
    fn attend(
        &self,
        g: &mut Graph,
        x: Value, // (B, T, C)
        head_width: usize,
        frequencies: Value, // (D/2)
        visible: Visible,
    ) -> Value {
        let &[batch, seq, width] = &g.shape(x)[..] else {
            unreachable!("the residual stream is (B, T, C)");
        };
        let (query_width, key_width) = (self.heads * head_width, self.key_heads * head_width);
        let normed = self.norm(g, x, "input_layernorm.weight"); // (B, T, C)

        // All weights before all biases: three adjacent matrices can be multiplied as one.
        let wq = g.param("self_attn.q_proj.weight", [query_width, width], Init::Normal(SPREAD)); // (H·D, C)
        let wk = g.param("self_attn.k_proj.weight", [key_width, width], Init::Normal(SPREAD)); // (K·D, C)
        let wv = g.param("self_attn.v_proj.weight", [key_width, width], Init::Normal(SPREAD)); // (K·D, C)
        let bq = self.bias(g, "self_attn.q_proj.bias", query_width); // (H·D)
        let bk = self.bias(g, "self_attn.k_proj.bias", key_width); // (K·D)
        let bv = self.bias(g, "self_attn.v_proj.bias", key_width); // (K·D)
        let wo = g.param("self_attn.o_proj.weight", [width, query_width], Init::Normal(SPREAD)); // (C, H·D)

        let q = g.linear(normed, wq, bq); // (B, T, H·D)
        let k = g.linear(normed, wk, bk); // (B, T, K·D)
        let v = g.linear(normed, wv, bv); // (B, T, K·D)
        let q = self.whole_norm(g, q, "self_attn.q_norm.weight"); // (B, T, H·D)
        let k = self.whole_norm(g, k, "self_attn.k_norm.weight"); // (B, T, K·D)
        let q = g.reshape(q, [batch, seq, self.heads, head_width]); // (B, T, H, D)
        let k = g.reshape(k, [batch, seq, self.key_heads, head_width]); // (B, T, K, D)
        let v = g.reshape(v, [batch, seq, self.key_heads, head_width]); // (B, T, K, D)
        let q = self.head_norm(g, q, "self_attn.q_norm.weight"); // (B, T, H, D)
        let k = self.head_norm(g, k, "self_attn.k_norm.weight"); // (B, T, K, D)
        let q = g.rope(q, frequencies, None); // (B, T, H, D)
        let k = g.rope(k, frequencies, None); // (B, T, K, D)
        let mixed = g.attention(q, k, v, visible); // (B, T, H, D)
        let mixed = g.reshape(mixed, [batch, seq, query_width]); // (B, T, H·D)
        let update = g.linear(mixed, wo, None); // (B, T, C)
        g.add(x, update) // (B, T, C)
    }

    /// `down(silu(gate·x̂) · up·x̂)` of `x̂ = rms_norm(x)`.
    fn feed_forward(&self, g: &mut Graph, normed: Value) -> Value {
        let (width, ffn) = (self.width, self.ffn);
        let gate = g.param("mlp.gate_proj.weight", [ffn, width], Init::Normal(SPREAD)); // (F, C)
        let up = g.param("mlp.up_proj.weight", [ffn, width], Init::Normal(SPREAD)); // (F, C)
        let down = g.param("mlp.down_proj.weight", [width, ffn], Init::Normal(SPREAD)); // (C, F)

        let gate = g.linear(normed, gate, None); // (B, T, F)
        let up = g.linear(normed, up, None); // (B, T, F)
        let hidden = g.swiglu(gate, up); // (B, T, F)
        g.linear(hidden, down, None) // (B, T, C)
    }

    fn norm(&self, g: &mut Graph, x: Value, name: &str) -> Value {
        let weight = g.param(name, [g.shape(x).columns()], Init::Fill(1.0)); // (C)
        g.rms_norm(x, weight, self.norm_epsilon) // (B, T, C)
    }

    /// Norms over the width of one head, with one weight for all heads.
    fn head_norm(&self, g: &mut Graph, x: Value, name: &str) -> Value {
        if self.qk_norm { self.norm(g, x, name) } else { x } // (B, T, H, D)
    }

    /// Norms over all heads at once.
    fn whole_norm(&self, g: &mut Graph, x: Value, name: &str) -> Value {
        if self.whole_qk_norm { self.norm(g, x, name) } else { x } // (B, T, H·D)
    }

    fn bias(&self, g: &mut Graph, name: &str, extent: usize) -> Option<Value> {
        self.qkv_bias.then(|| g.param(name, [extent], Init::Fill(0.0)))
    }

    fn checked_head_width(&self) -> Result<usize, GraphError> {
        match self.head_width {
            Some(width) if width == 0 || self.heads == 0 => {
                Err(language::refuse("llama", format!("{} heads of width {width}", self.heads)))
            }
            Some(width) => Ok(width),
            None => language::head_width("llama", self.width, self.heads),
        }
    }
}
