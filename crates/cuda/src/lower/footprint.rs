//! The memory that lowered steps touch, compared with the operands of their op.
//!
//! `replay` has proved that the actions of a schedule use no byte against the rules. That proof is about operands and
//! scratch; this module extends it to the steps an action became. On one stream steps run in order, and `replay` keeps the
//! operands of an exchange busy until it is awaited. So an action is right if every step stays inside the operands and the scratch, no step writes over a pure input, no step reads
//! scratch that no earlier step has touched, and every output is touched.

use std::ops::Range;

use super::PlacedOp;
use super::launch::{Arg, StreamStep};
use super::library::{Addend, Attention, AttentionTensor, Library, Product};
use super::lowering::Operand;
use super::place::Place;

/// One place that a step touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The first byte.
    pub place: Place,
    /// Bytes from there, where the step says how many.
    pub bytes: Option<u64>,
    /// The use that the step makes of the bytes.
    pub access: Access,
}

/// The use that a step makes of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The step reads them.
    Reads,
    /// The step writes them.
    Writes,
    /// A kernel's argument: the kernel knows.
    Either,
}

/// Refuses steps that touch memory other than the operands of `work` and the `scratch` bytes of its scratch.
///
/// # Errors
///
/// The error names the step and its fault.
pub fn check(
    work: &PlacedOp,
    scratch: u64,
    steps: &[StreamStep],
    library: &dyn Library,
) -> Result<(), String> {
    let regions = Regions::of(work, scratch);
    let mut touched: Vec<Range<u64>> = Vec::new();
    for step in steps {
        let touches = touches(step, library);
        for touch in &touches {
            regions.allow(touch, &touched).map_err(|why| format!("{step} {why}"))?;
        }
        touched.extend(touches.iter().map(Touch::range));
    }
    let missed = regions.outputs.iter().find(|output| {
        let reached = |range: &Range<u64>| range.start < output.end && output.start < range.end;
        !output.is_empty() && !touched.iter().any(reached)
    });
    missed.map_or(Ok(()), |output| Err(format!("no step touches the output at {}", output.start)))
}

impl Touch {
    fn range(&self) -> Range<u64> {
        self.place.0..self.place.0 + self.bytes.unwrap_or(1)
    }
}

/// Memory that an op may touch.
struct Regions {
    inputs: Vec<Range<u64>>,
    outputs: Vec<Range<u64>>,
    scratch: Range<u64>,
}

impl Regions {
    fn of(work: &PlacedOp, scratch: u64) -> Regions {
        let range = |operand: &Operand| operand.place.0..operand.place.0 + operand.ty.bytes() as u64;
        Regions {
            inputs: work.inputs.iter().map(range).collect(),
            outputs: work.outputs.iter().map(range).collect(),
            scratch: work.scratch.0..work.scratch.0 + scratch,
        }
    }

    fn allow(&self, touch: &Touch, before: &[Range<u64>]) -> Result<(), String> {
        let range = touch.range();
        let at = range.start;
        // Nothing of nothing is anywhere.
        let holds = |region: &Range<u64>| region.is_empty() && at == region.start || within(&range, region);
        if self.outputs.iter().any(holds) {
            return Ok(());
        }
        if self.inputs.iter().any(holds) {
            return match touch.access {
                Access::Writes => Err(format!("writes over the input at {at}")),
                Access::Reads | Access::Either => Ok(()),
            };
        }
        if !within(&range, &self.scratch) {
            return Err(format!("leaves its operands: {}..{}", range.start, range.end));
        }
        let known = before.iter().any(|earlier| earlier.contains(&at));
        match touch.access {
            Access::Reads if !known => {
                Err(format!("reads scratch at {at} that no step before it has touched"))
            }
            _ => Ok(()),
        }
    }
}

fn within(range: &Range<u64>, region: &Range<u64>) -> bool {
    range.start >= region.start && range.end <= region.end
}

/// Every place that a step touches; of a launch, one for each of its pointers, in their order.
pub fn touches(step: &StreamStep, library: &dyn Library) -> Vec<Touch> {
    let touch = |place: Place, bytes: u64, access| Touch { place, bytes: Some(bytes), access };
    match step {
        StreamStep::Launch(launch) => {
            let mut places = Vec::new();
            pointers(&launch.args, &mut places);
            places.into_iter().map(|place| Touch { place, bytes: None, access: Access::Either }).collect()
        }
        StreamStep::Product(product) => of_product(product, library),
        StreamStep::Attention(attention) => of_attention(attention, library),
        StreamStep::Exchange(exchange) => {
            let (read, written) = exchange.bytes();
            vec![
                touch(exchange.source, read, Access::Reads),
                touch(exchange.destination, written, Access::Writes),
            ]
        }
        StreamStep::Copy { from, to, bytes } => {
            vec![touch(*from, *bytes, Access::Reads), touch(*to, *bytes, Access::Writes)]
        }
        StreamStep::Zero { to, bytes } => vec![touch(*to, *bytes, Access::Writes)],
        StreamStep::Await { .. } => Vec::new(),
    }
}

fn pointers(args: &[Arg], places: &mut Vec<Place>) {
    for arg in args {
        match arg {
            Arg::Pointer(place) => places.push(*place),
            Arg::Struct(fields) => pointers(fields, places),
            _ => {}
        }
    }
}

fn of_product(product: &Product, library: &dyn Library) -> Vec<Touch> {
    let signature = &product.signature;
    let [m, n, k, batch] =
        [signature.m, signature.n, signature.k, signature.batch].map(|extent| extent as u64);
    let [a, b, c] = signature.dtypes.map(|dtype| dtype.bytes() as u64);
    let touch = |place, bytes, access| Touch { place, bytes: Some(bytes), access };
    let mut touches = vec![
        touch(product.a, m * k * batch * a, Access::Reads),
        touch(product.b, k * n * batch * b, Access::Reads),
    ];
    let row = match signature.addend {
        Addend::Row(dtype) => n * dtype.bytes() as u64,
        _ => m * n * batch * c,
    };
    touches.extend(product.addend.map(|place| touch(place, row, Access::Reads)));
    touches.push(touch(product.c, m * n * batch * c, Access::Writes));
    let workspace = library.workspace(signature).filter(|bytes| *bytes > 0);
    touches.extend(workspace.map(|bytes| touch(product.workspace, bytes, Access::Writes)));
    touches
}

fn of_attention(attention: &Attention, library: &dyn Library) -> Vec<Touch> {
    use AttentionTensor::{DK, DO, DQ, DV, Delta, DqSum, K, Lse, O, Q, Starts, V, WideDK, WideDV};
    let shape = &attention.shape;
    let tokens = (shape.batch * shape.length) as u64;
    let [heads, keys, width] = [shape.heads, shape.key_heads, shape.width].map(|extent| extent as u64);
    let touch = |&(tensor, place): &(AttentionTensor, Place)| {
        let (bytes, access) = match tensor {
            Q | DO => (2 * tokens * heads * width, Access::Reads),
            K | V => (2 * tokens * keys * width, Access::Reads),
            O if shape.backward => (2 * tokens * heads * width, Access::Reads),
            Lse if shape.backward => (4 * tokens * heads, Access::Reads),
            O | DQ | WideDK | WideDV => (2 * tokens * heads * width, Access::Writes),
            DK | DV => (2 * tokens * keys * width, Access::Writes),
            Lse | Delta => (4 * tokens * heads, Access::Writes),
            DqSum => (4 * tokens * heads * width, Access::Writes),
            Starts => (4 * tokens, Access::Reads),
            // Tables lie outside the arena and are bound by the device.
            _ => (0, Access::Reads),
        };
        Touch { place, bytes: Some(bytes), access }
    };
    let mut touches: Vec<Touch> = attention.places.iter().map(touch).collect();
    let workspace = library.attention(shape).filter(|bytes| *bytes > 0);
    let place = attention.workspace;
    touches.extend(workspace.map(|bytes| Touch { place, bytes: Some(bytes), access: Access::Writes }));
    touches
}
