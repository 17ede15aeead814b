//! `LoRA` whose rows have a trained length (Liu et al. 2024).
//!
//! ```text
//! y = f·(x·Wᵀ + s·x·Aᵀ·Bᵀ) + b          f = m / ‖W + s·B·A‖ of each row; m (out) is trained
//! ```
//!
//! The derivative reads the norm as a constant, as PEFT does. The sum `W + s·B·A`, as large as the weight, never exists:
//! the norm follows from the squares of the weight's rows, which never change and are computed once, and from products
//! of `r` rows; see [`Op::InverseNorm`](plimsoll_graph::Op::InverseNorm) and docs/decisions/0070.
//!
//! With dropout the layer's own product of what is dropped has a share too, and is computed a second time:
//!
//! ```text
//! y = x·Wᵀ + b + f·(d·Wᵀ + s·d·Aᵀ·Bᵀ) − d·Wᵀ          d = dropout(x)
//! ```

use plimsoll_graph::{Graph, Init, Value};

use super::low_rank::Pair;
use super::module::Module;
use super::{Adapter, Lora};

/// The result of a linear layer whose rows have a length of their own.
pub(super) fn wrap(lora: &Lora, g: &mut Graph, module: &Module, adapter: &Adapter) -> Value {
    let pair = Pair::new(g, adapter);
    let factor = factor(g, module, &pair, adapter); // (out)
    if lora.dropout > 0.0 {
        return with_dropout(lora, g, module, &pair, factor, &adapter.module);
    }
    let y = module.product(g, module.x); // (…, out)
    let y = pair.add(g, module.x, y); // (…, out)
    let y = g.mul(y, factor); // (…, out)
    match module.bias {
        Some(bias) => g.add(y, bias),
        None => y,
    }
}

fn with_dropout(
    lora: &Lora,
    g: &mut Graph,
    module: &Module,
    pair: &Pair,
    factor: Value,
    name: &str,
) -> Value {
    let whole = module.result(g, module.x); // (…, out)
    let dropped = lora.drop(g, module.x, name); // (…, in)
    let plain = module.product(g, dropped); // (…, out)
    let moved = pair.add(g, dropped, plain); // (…, out)
    let moved = g.mul(moved, factor); // (…, out)
    let without = g.scale(plain, -1.0); // (…, out)
    let change = g.add(moved, without); // (…, out)
    g.add(whole, change)
}

/// `m / ‖W + s·B·A‖` of each row.
fn factor(g: &mut Graph, module: &Module, pair: &Pair, adapter: &Adapter) -> Value {
    let magnitude = g.param_named(&adapter.magnitude(), [adapter.output], Init::Fill(1.0)); // (out)
    let squares = g.constant_filled(&adapter.squares(), [adapter.output], 1.0); // (out)
    let products = module.product(g, pair.a); // (r, out)
    let gram = g.linear(pair.a, pair.a, None); // (r, r)
    let inverse = g.inverse_norm([squares, products, pair.b, gram], pair.scale); // (out)
    g.mul(magnitude, inverse)
}
