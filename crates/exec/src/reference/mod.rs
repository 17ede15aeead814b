//! The definition of every op: readable kernels that all others are judged against.
//!
//! Nothing here is fast, and nothing should be: loops follow the equations of `op.rs` and arithmetic is `f64`
//! throughout. Each result is rounded once, to the element type it is stored in, whatever the types of its operands;
//! this defines every mixture of f32 and bf16. Kernels see only shapes that [`infer`] has accepted. [`interpret`] runs
//! a whole graph that way, without a plan: the slow, obvious twin of the engine.
//!
//! Absent on purpose: threads, arenas, reuse of memory.

mod apollo;
mod array;
mod balance;
mod elementwise;
mod experts;
mod interpret;
mod losses;
mod movement;
mod network;
mod norms;
mod optimizers;
mod probes;
mod products;
mod quantised;
mod routing;
mod state;
mod stored;
mod subspace;
mod tensor;
mod transformer;

use plimsoll_graph::op::Family;
use plimsoll_graph::{Op, State, Type, agree, infer};

use crate::{ExecError, init as drawing};
use array::Array;
pub use interpret::interpret;
pub use tensor::{Tensor, TensorData};

/// Computes `op`. If `accumulate` is set the result is added to the contents of the output; an op that updates state in
/// place reads its outputs first.
///
/// # Errors
///
/// When types do not fit the op, or ids lie outside their table.
pub fn eval(
    op: &Op,
    inputs: &[&Tensor],
    outputs: &mut [Tensor],
    accumulate: &[bool],
) -> Result<(), ExecError> {
    check(op, inputs, outputs, accumulate)?;
    let results = compute(op, inputs, outputs)?;
    for ((output, result), &add) in outputs.iter_mut().zip(results).zip(accumulate) {
        let mut numbers = result.data;
        if add {
            array::add_scaled(&mut numbers, 1.0, &output.numbers());
        }
        *output = Tensor::from_numbers(output.ty, &numbers);
    }
    Ok(())
}

/// The results of `op` in tensors of their own; for ops that do not update state in place.
///
/// # Errors
///
/// As for [`eval`].
pub fn apply(op: &Op, inputs: &[&Tensor]) -> Result<Vec<Tensor>, ExecError> {
    let types: Vec<Type> = inputs.iter().map(|input| input.ty).collect();
    let types = infer(op, &types).map_err(|why| mismatch(op, &why))?;
    let mut outputs: Vec<Tensor> = types.into_iter().map(Tensor::zeros).collect();
    let accumulate = vec![false; outputs.len()];
    eval(op, inputs, &mut outputs, &accumulate)?;
    Ok(outputs)
}

/// Contents of a range of state before the first step of the run seeded with `seed`.
pub fn init(state: &State, seed: u64) -> Tensor {
    let mut elements = vec![0.0; state.ty.shape.elements()];
    for (first, name, shape) in state.pieces() {
        drawing::fill(&state.init, name, seed, 0, &mut elements[first..first + shape.elements()]);
    }
    Tensor::from_numbers(state.ty, &Array::of(&Tensor::f32(state.ty.shape, elements)).data)
}

fn check(op: &Op, inputs: &[&Tensor], outputs: &[Tensor], accumulate: &[bool]) -> Result<(), ExecError> {
    let types: Vec<Type> = inputs.iter().map(|input| input.ty).collect();
    let wanted = infer(op, &types).map_err(|why| mismatch(op, &why))?;
    let given: Vec<Type> = outputs.iter().map(|output| output.ty).collect();
    if !agree(op, &wanted, &given) || accumulate.len() != given.len() {
        return Err(mismatch(op, &format!("yields {wanted:?}, not {given:?}")));
    }
    match (0..given.len()).find(|&output| accumulate[output] && !op.can_accumulate(output)) {
        Some(output) => Err(mismatch(op, &format!("cannot add to its output {output}"))),
        None => Ok(()),
    }
}

fn mismatch(op: &Op, why: &str) -> ExecError {
    ExecError::Mismatch(format!("{}: {why}", op.name()))
}

fn compute(op: &Op, inputs: &[&Tensor], outputs: &[Tensor]) -> Result<Vec<Array>, ExecError> {
    let operands = Operands::new(inputs, outputs);
    match op.family() {
        Family::Movement => Ok(movement::eval(op, &operands)),
        Family::Elementwise => Ok(elementwise::eval(op, &operands)),
        Family::Products => Ok(products::eval(op, &operands)),
        Family::Norms => Ok(norms::eval(op, &operands)),
        Family::Transformer => transformer::eval(op, &operands),
        Family::Network => Ok(network::eval(op, &operands)),
        Family::Routing => routing::eval(op, &operands),
        Family::Experts => experts::eval(op, &operands),
        Family::Balance => balance::eval(op, &operands),
        Family::Quantised => Ok(quantised::eval(op, &operands)),
        Family::Subspace => Ok(subspace::eval(op, &operands)),
        Family::Losses => losses::eval(op, &operands),
        Family::State => Ok(state::eval(op, &operands)),
        Family::Ranks => {
            Err(ExecError::Unsupported(format!("`{}` is an exchange with other ranks", op.name())))
        }
    }
}

/// The operands of one op.
struct Operands<'a> {
    /// Every input as numbers.
    arrays: Vec<Array>,
    tensors: &'a [&'a Tensor],
    /// The outputs before the op runs.
    outputs: &'a [Tensor],
}

impl<'a> Operands<'a> {
    fn new(tensors: &'a [&'a Tensor], outputs: &'a [Tensor]) -> Operands<'a> {
        Operands { arrays: tensors.iter().map(|tensor| Array::of(tensor)).collect(), tensors, outputs }
    }

    /// Input `index`.
    fn x(&self, index: usize) -> &Array {
        &self.arrays[index]
    }

    /// Input `index`, where it is there.
    fn get(&self, index: usize) -> Option<&Array> {
        self.arrays.get(index)
    }

    /// The only element of input `index`.
    fn scalar(&self, index: usize) -> f64 {
        self.arrays[index].only()
    }

    /// Input `index` as integers; empty if it is absent.
    fn integers(&self, index: usize) -> &[i32] {
        self.tensors.get(index).and_then(|tensor| tensor.as_i32()).unwrap_or_default()
    }
}
