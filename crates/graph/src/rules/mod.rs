//! The rules of ops, one file per family: how a model calls an op, the types it yields, its derivative, and the
//! arithmetic it costs.
//!
//! [`infer`] serves the builder, which reports a mistake where the user made it, and the verifier, which repeats the
//! check on every graph that a pass has produced. `derivative` serves [`differentiate`](crate::differentiate).

mod balance;
mod elementwise;
mod experts;
mod losses;
mod movement;
mod network;
mod norms;
mod products;
mod quantised;
mod ranks;
mod routing;
mod state;
mod subspace;
mod transformer;

use crate::graph::Node;
use crate::op::Family;
use crate::tape::Tape;
use crate::{DType, GraphError, Op, Shape, Type, Value};

pub use experts::SortedCopies;
pub(crate) use losses::turn_head;
pub(crate) use network::tile_bytes;
pub use transformer::Visible;

/// Types of the outputs of `op` on inputs of these types. State updates (`accumulate`, `adamw`) yield
/// the types of the ranges they write, which the caller checks against the state.
///
/// # Errors
///
/// A sentence that names both sides of the disagreement.
pub fn infer(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    match op.family() {
        Family::Movement => movement::types(op, inputs),
        Family::Elementwise => elementwise::types(op, inputs),
        Family::Products => products::types(op, inputs),
        Family::Norms => norms::types(op, inputs),
        Family::Transformer => transformer::types(op, inputs),
        Family::Network => network::types(op, inputs),
        Family::Routing => routing::types(op, inputs),
        Family::Experts => experts::types(op, inputs),
        Family::Balance => balance::types(op, inputs),
        Family::Quantised => quantised::types(op, inputs),
        Family::Subspace => subspace::types(op, inputs),
        Family::Losses => losses::types(op, inputs),
        Family::State => state::types(op, inputs),
        Family::Ranks => ranks::types(op, inputs),
    }
}

/// Whether outputs may be declared with these types if `op` yields those: they must be equal, except for the element
/// types of outputs that it [stores as either](Op::stores_either).
pub fn agree(op: &Op, yielded: &[Type], declared: &[Type]) -> bool {
    let either = |dtype| matches!(dtype, DType::F32 | DType::Bf16);
    let one = |(output, (yielded, declared)): (usize, (&Type, &Type))| {
        let free = op.stores_either(output) && either(yielded.dtype) && either(declared.dtype);
        yielded == declared || free && yielded.shape == declared.shape
    };
    // The sum that a gradient is added to has a type of its own, which the op names.
    let named = matches!(op, Op::Accumulate { .. });
    yielded.len() == declared.len()
        && if named { yielded == declared } else { yielded.iter().zip(declared).enumerate().all(one) }
}

/// The cotangent of each output of a node; `None` if nothing depends on the output, or if it has no derivative. A
/// missing cotangent means zeros, but no rule creates zeros: an op with several outputs has a gradient op that takes
/// the existing cotangents.
pub(crate) type Cotangents<'a> = &'a [Option<Value>];

/// Adds the backward nodes of `node`, whose outputs have these cotangents.
///
/// # Errors
///
/// When the op has no derivative, or the loss depends on an output that has none.
pub(crate) fn derivative(tape: &mut Tape, node: &Node, dys: Cotangents) -> Result<(), GraphError> {
    if let Some(output) =
        (0..dys.len()).find(|&output| dys[output].is_some() && !node.op.is_differentiable(output))
    {
        return Err(refuse(&node.op, format!("its output {output} cannot be differentiated")));
    }
    match node.op.family() {
        Family::Movement => movement::derivative(tape, node, dys),
        Family::Elementwise => elementwise::derivative(tape, node, dys),
        Family::Products => products::derivative(tape, node, dys),
        Family::Norms => norms::derivative(tape, node, dys),
        Family::Transformer => transformer::derivative(tape, node, dys),
        Family::Network => network::derivative(tape, node, dys),
        Family::Routing => routing::derivative(tape, node, dys),
        Family::Experts => experts::derivative(tape, node, dys),
        Family::Balance => balance::derivative(tape, node, dys),
        Family::Losses => losses::derivative(tape, node, dys),
        Family::Subspace => subspace::derivative(tape, node, dys),
        Family::Quantised | Family::State | Family::Ranks => no_derivative(&node.op),
    }
}

/// Multiplications and additions inside the matrix products of an op.
pub(crate) fn matmul_flops(op: &Op, inputs: &[Type], outputs: &[Type]) -> f64 {
    match op.family() {
        Family::Products => products::flops(op, inputs, outputs),
        Family::Transformer => transformer::flops(op, inputs),
        Family::Network => network::flops(op, inputs),
        Family::Experts => experts::flops(op, inputs),
        Family::Losses => losses::flops(op, inputs),
        Family::Movement
        | Family::Elementwise
        | Family::Norms
        | Family::Routing
        | Family::Balance
        | Family::Quantised
        | Family::Subspace
        | Family::Ranks => 0.0,
        Family::State => state::flops(op, inputs),
    }
}

/// An op whose file lacks its types: a fault of plimsoll, which the tests of every op's cases find.
fn no_types(op: &Op) -> Result<Vec<Type>, String> {
    Err(format!("`{}` has no rule for its types", op.name()))
}

fn no_derivative(op: &Op) -> Result<(), GraphError> {
    Err(refuse(op, "has no derivative".to_owned()))
}

fn refuse(op: &Op, why: String) -> GraphError {
    GraphError { what: op.name().to_owned(), block: String::new(), why, at: None }
}

/// Exactly `N` operands.
fn operands<const N: usize>(inputs: &[Type]) -> Result<[Type; N], String> {
    inputs.try_into().map_err(|_| format!("takes {N} inputs, got {}", inputs.len()))
}

fn rank4(shape: Shape, what: &str) -> Result<[usize; 4], String> {
    <[usize; 4]>::try_from(&shape[..]).map_err(|_| format!("{what} must have four axes, got {shape}"))
}

fn columns(shape: Shape, wanted: usize, what: &str) -> Result<(), String> {
    if shape.is_empty() || shape.columns() != wanted {
        return Err(format!("{what} {shape} must have {wanted} columns"));
    }
    Ok(())
}

fn vector(ty: Type, length: usize, what: &str) -> Result<(), String> {
    if ty.shape != Shape::from([length]) || !ty.dtype.is_float() {
        return Err(format!("{what} must be a float vector of {length}, got {ty}"));
    }
    Ok(())
}

fn integers(ty: Type, what: &str) -> Result<(), String> {
    if ty.dtype == DType::I32 { Ok(()) } else { Err(format!("{what} must be i32, got {ty}")) }
}

fn float(ty: Type) -> Result<(), String> {
    if ty.dtype.is_float() { Ok(()) } else { Err(format!("wants floats, got {ty}")) }
}

fn equal(a: Type, b: Type, what: &str) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("{what}: {a} is not {b}")) }
}
