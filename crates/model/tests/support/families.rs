//! Small models of the three families, for the tests of `model`, `plan` and `train`. At [`Size::GOLDEN`] they are the models
//! of `reference/models.py`.

#![allow(dead_code, reason = "each test file uses its own part")]

use plimsoll_model::{Architecture, Bert, Gpt2, Llama, Rope};

/// Numbers that a family of small models is made of.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub vocab: usize,
    pub seq: usize,
    pub width: usize,
    pub layers: usize,
    pub ffn: usize,
    pub dropout: f32,
}

impl Size {
    /// The size of the golden files.
    pub(crate) const GOLDEN: Size = Size { vocab: 64, seq: 16, width: 32, layers: 2, ffn: 48, dropout: 0.0 };
}

pub(crate) fn llama(size: Size) -> Llama {
    Llama {
        vocab: size.vocab,
        width: size.width,
        layers: size.layers,
        heads: 4,
        key_heads: 2,
        head_width: None,
        ffn: size.ffn,
        norm_epsilon: 1e-6,
        rope: Rope::plain(10_000.0),
        window: None,
        positions: None,
        tie_embeddings: false,
        qkv_bias: false,
        qk_norm: false,
        whole_qk_norm: false,
        mixture: None,
        documents: false,
    }
}

pub(crate) fn gpt2(size: Size) -> Gpt2 {
    Gpt2 {
        vocab: size.vocab,
        positions: size.seq,
        width: size.width,
        layers: size.layers,
        heads: 4,
        norm_epsilon: 1e-5,
        dropout: size.dropout,
        documents: false,
    }
}

pub(crate) fn bert(size: Size) -> Bert {
    Bert {
        vocab: size.vocab,
        positions: size.seq,
        token_types: 2,
        width: size.width,
        layers: size.layers,
        heads: 4,
        ffn: 2 * size.width,
        norm_epsilon: 1e-12,
        dropout: size.dropout,
        labels: None,
    }
}

/// The three families at one size, each with the name of its golden file.
pub(crate) fn families(size: Size) -> [(&'static str, Architecture); 3] {
    [("llama", llama(size).into()), ("gpt2", gpt2(size).into()), ("bert", bert(size).into())]
}
