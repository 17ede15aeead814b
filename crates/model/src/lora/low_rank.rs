//! The product of two thin matrices beside a weight (Hu et al. 2021).

use plimsoll_graph::{DType, Graph, Init, Op, Value, name_hash};

use super::module::Module;
use super::{Adapter, Lora};

/// `x·Wᵀ + b + (s · dropout(x)·Aᵀ)·Bᵀ`.
pub(super) fn wrap(lora: &Lora, g: &mut Graph, module: &Module, adapter: &Adapter) -> Value {
    let y = module.result(g, module.x); // (…, out)
    let pair = Pair::new(g, adapter);
    let x = lora.drop(g, module.x, &adapter.module); // (…, in)
    pair.add(g, x, y)
}

/// The two matrices of an adapter.
pub(super) struct Pair {
    pub(super) a: Value,
    pub(super) b: Value,
    pub(super) scale: f32,
}

impl Pair {
    pub(super) fn new(g: &mut Graph, adapter: &Adapter) -> Pair {
        let Adapter { rank, input, output, scale, .. } = *adapter;
        // Kaiming's uniform numbers with a = √5, PEFT's choice, reach up to 1/√in.
        let bound = 1.0 / (input as f32).sqrt();
        let a = g.param_named(&adapter.a(), [rank, input], Init::Uniform(bound)); // (r, in)
        let b = g.param_named(&adapter.b(), [output, rank], Init::Fill(0.0)); // (out, r)
        Pair { a, b, scale }
    }

    /// `y + (s · x·Aᵀ)·Bᵀ`.
    pub(super) fn add(&self, g: &mut Graph, x: Value, y: Value) -> Value {
        let small = g.linear(x, self.a, None); // (…, r)
        let small = g.scale(small, self.scale); // (…, r)
        g.linear(small, self.b, Some(y)) // (…, out)
    }
}

impl Lora {
    /// The mask has the adapter's name, so that it and the model's own masks do not depend on each other.
    pub(super) fn drop(&self, g: &mut Graph, x: Value, module: &str) -> Value {
        if self.dropout == 0.0 {
            return x;
        }
        let rng = g.input("rng", [4], DType::I32);
        let stream = name_hash(&format!("{module}.lora_dropout"));
        g.apply(Op::Dropout { p: self.dropout, stream }, &[x, rng])
    }
}

/// `y + (s · Aᵀ[ids])·Bᵀ`. `A` is stored as in PEFT's files, a column for each word, and is transposed for the lookup:
/// it has only `r` numbers per word.
pub(super) fn add_rows(g: &mut Graph, ids: Value, y: Value, adapter: &Adapter) -> Value {
    let Adapter { rank, input, output, .. } = *adapter;
    // PEFT begins tables the other way round: A is zero and B is drawn.
    let a = g.param_named(&adapter.a(), [rank, input], Init::Fill(0.0)); // (r, V)
    let b = g.param_named(&adapter.b(), [output, rank], Init::Normal(1.0)); // (C, r)
    let rows = g.transpose(a, &[1, 0]); // (V, r)
    let small = g.embedding(rows, ids); // (…, r)
    let small = g.scale(small, adapter.scale); // (…, r)
    g.linear(small, b, Some(y)) // (…, C)
}
