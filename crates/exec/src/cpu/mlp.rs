//! The feed-forward network, forward and backward, a tile of rows at a time.
//!
//! ```text
//!   x (N, C)         gate, up (rows, F), in the workspace          y (N, C)
//!  ┌───────┐ · wᵀ  ┌──────────────────────────┐ activation, · wᵀ  ┌───────┐
//!  │▒▒▒▒▒▒▒│ ────▶ │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│ ────────────────▶ │▒▒▒▒▒▒▒│
//!  ├───────┤       └──────────────────────────┘                   ├───────┤
//!  │       │         backward: built again, then gradients        │       │
//! ```
//!
//! The bits are those of the single ops: a product computes the sums of a row whole, gradients of weights and biases
//! continue from tile to tile in the order of the rows, and the results of two backward products are added as wholes, not
//! as one long sum. A tile's rows are copied before its result is written, which may then overwrite them. If values between
//! nodes are bf16, hidden values are rounded to it in their f32 scratch, at the places where single ops would store them.

use half::bf16;
use plimsoll_graph::op::{Activation, Gelu, Mlp};
use plimsoll_graph::{DType, Op, Type};
use plimsoll_plan::Workspace;

use super::activation::{GeluErf, GeluErfGrad, GeluTanh, GeluTanhGrad, Swiglu, SwigluGrad};
use super::element::{self, Element};
use super::elementwise::add_to;
use super::lanes::{PIECE, Streams, map_streams};
use super::linear::{Weight, extents_of, kept_if};
use super::matmul::{self, Extents, Start};
use super::pack::Numbers;
use super::split::Overwritten;
use super::{Call, split, sums};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    let known = matches!(call.op, Op::Mlp(_) | Op::MlpGrad { .. });
    known.then(|| {
        match call.precision()? {
            DType::Bf16 => run_as::<bf16>(call),
            _ => run_as::<f32>(call),
        }
        Ok(())
    })
}

/// Runs an op of this file whose values between nodes are of type `E`.
fn run_as<E: Element>(call: &Call) {
    match call.op {
        Op::Mlp(form) => mlp::<E>(call, *form),
        Op::MlpGrad { mlp: form, weights, biases } => mlp_grad::<E>(call, *form, *weights, *biases),
        _ => {}
    }
}

/// The scratch that an op of this file needs.
pub(super) fn workspace(op: &Op, inputs: &[Type], _: &[Type], _: usize) -> Option<Workspace> {
    Some(match op {
        Op::Mlp(form) => mlp_workspace(*form, inputs),
        Op::MlpGrad { mlp: form, .. } => mlp_grad_workspace(*form, inputs),
        _ => return None,
    })
}

/// Parts of the workspace begin at a cache line, which is this many floats.
const LINE: usize = 16;

/// `(x, w₁ … wₙ[, b₁ … bₙ]) → y`.
fn mlp<E: Element>(call: &Call, form: Mlp) {
    let (network, sizes) = (Network::new::<E>(call, form, 1), Sizes::of_call(call, form, 1));
    let mut room = Room(call.scratch());
    let x_tile = room.take(sizes.rows * sizes.first_tile());
    let mut hidden = room.take_hidden(&sizes);
    let x = Overwritten::<E>::input(call, 0);
    for (first, rows) in sizes.tiles() {
        x.widen_to(first * sizes.c, &mut x_tile[..rows * sizes.c]);
        let mut hidden = beginnings(&mut hidden, rows * sizes.f);
        network.lead_in(rows, &x_tile[..rows * sizes.c], &mut hidden, room.0);
        network.activate(&mut hidden, None);
        let y = &mut call.output_as::<E>(0)[first * sizes.out..][..rows * sizes.out];
        // The rows of `x` have been read, and the rows of a result to be rounded use their place.
        let whole = E::as_wide_mut(y).unwrap_or(&mut x_tile[..rows * sizes.out]);
        network.last.forward(rows, network.numbers(hidden[0]), whole, room.0);
        store_rounded(&x_tile[..rows * sizes.out], y);
    }
}

/// Stores numbers that waited until they were whole; f32 are where they belong.
fn store_rounded<E: Element>(numbers: &[f32], to: &mut [E]) {
    if !E::WHOLE {
        split::rows(to.len(), PIECE, [to], |range, [to]| element::round(&numbers[range], to));
    }
}

/// `(x, dy, w₁ … wₙ[, b₁ … bₙ]) → (dx[, dw₁ … dwₙ][, db₁ … dbₙ])`.
fn mlp_grad<E: Element>(call: &Call, form: Mlp, weights: bool, biases: bool) {
    let (network, sizes) = (Network::new::<E>(call, form, 2), Sizes::of_call(call, form, 2));
    let first_bias = 1 + if weights { form.products() } else { 0 };
    let outputs = Outputs { call, weights: weights.then_some(1), biases: biases.then_some(first_bias) };
    let mut room = Room(call.scratch());
    let (x_tile, dy_tile) = (room.take(sizes.rows * sizes.c), room.take(sizes.rows * sizes.out));
    let mut hidden = room.take_hidden(&sizes);
    let other = room.take(sizes.rows * sizes.other());
    let mut sums = room.take_sums(&sizes);
    let (x, dy) = (Overwritten::<E>::input(call, 0), Overwritten::<E>::input(call, 1));
    for sums in &mut sums {
        sums.fill(0.0);
    }
    for (first, rows) in sizes.tiles() {
        let (x_tile, dy_tile) = (&mut x_tile[..rows * sizes.c], &mut dy_tile[..rows * sizes.out]);
        x.widen_to(first * sizes.c, x_tile);
        dy.widen_to(first * sizes.out, dy_tile);
        let tile = Tile { rows, further: first > 0, x: x_tile, dy: dy_tile, sizes: &sizes };
        let mut hidden = beginnings(&mut hidden, rows * sizes.f);
        network.lead_in(rows, tile.x, &mut hidden, room.0);
        network.backward(&tile, &mut hidden, other, &outputs, room.0);
        if outputs.biases.is_some() {
            let terms = hidden.iter().take(network.leading).map(|part| &**part).chain([tile.dy]);
            terms.zip(&mut sums).for_each(|(terms, sums)| sums::further_columns(terms, sums));
        }
        let dx = &mut call.output_as::<E>(0)[first * sizes.c..][..rows * sizes.c];
        let whole = E::as_wide_mut(dx).unwrap_or(&mut *x_tile);
        network.send_back(rows, &hidden, other, whole, room.0);
        store_rounded(x_tile, dx);
    }
    outputs.store_sums(&sums[..=network.leading]);
}

/// Scratch of [`mlp()`].
fn mlp_workspace(form: Mlp, inputs: &[Type]) -> Workspace {
    let sizes = Sizes::new(form, inputs[0], inputs[1], inputs[form.products()]);
    let parts = [sizes.rows * sizes.first_tile()].into_iter().chain(sizes.hidden());
    with_products(parts, &[sizes.up(), sizes.down()])
}

/// Scratch of [`mlp_grad`].
fn mlp_grad_workspace(form: Mlp, inputs: &[Type]) -> Workspace {
    let sizes = Sizes::new(form, inputs[0], inputs[2], inputs[1 + form.products()]);
    let Sizes { rows, c, f, out, .. } = sizes;
    let operands = [rows * c, rows * out, rows * sizes.other()];
    let parts = operands.into_iter().chain(sizes.hidden()).chain(sizes.sums());
    let [up, down] = [(c, f), (f, out)].map(|(m, n)| if form.transposed { (m, n) } else { (n, m) });
    let gradients = [up, down].map(|(m, n)| Extents { m, n, k: rows });
    let back = [Extents { m: rows, n: f, k: out }, Extents { m: rows, n: c, k: f }];
    with_products(parts, &[sizes.up(), back[0], back[1], gradients[0], gradients[1]])
}

/// Room for these parts, and for products that run one after the other.
fn with_products(parts: impl Iterator<Item = usize>, products: &[Extents]) -> Workspace {
    let parts: usize = parts.map(|len| 4 * len.next_multiple_of(LINE)).sum();
    let most = |of: fn(Workspace) -> u64| {
        let bytes = products.iter().map(|&extents| of(matmul::workspace(extents)));
        parts as u64 + bytes.max().unwrap_or(0)
    };
    Workspace { least: most(|one| one.least), best: most(|one| one.best) }
}

/// Extents of a network: `N` rows of `C` columns, `F` hidden ones, and rows of a tile.
struct Sizes {
    n: usize,
    rows: usize,
    c: usize,
    f: usize,
    out: usize,
    leading: usize,
    bias: bool,
    /// Whether values between nodes are bf16.
    half: bool,
}

impl Sizes {
    fn new(form: Mlp, x: Type, first: Type, last: Type) -> Sizes {
        let (n, leading) = (x.shape.rows(), form.products() - 1);
        let (f, c) = extents_of(first.shape, form.transposed);
        let (out, _) = extents_of(last.shape, form.transposed);
        Sizes {
            n,
            rows: form.rows.min(n).max(1),
            c,
            f,
            out,
            leading,
            bias: form.bias,
            half: x.dtype == DType::Bf16,
        }
    }

    /// Columns of the first tile: those of `x`, and of a result that waits there to be rounded.
    fn first_tile(&self) -> usize {
        if self.half { self.c.max(self.out) } else { self.c }
    }

    /// The sizes of a call. Input `weights` is the first of its weights.
    fn of_call(call: &Call, form: Mlp, weights: usize) -> Sizes {
        let ty = |index: usize| call.inputs[index].ty;
        Sizes::new(form, ty(0), ty(weights), ty(weights + form.products() - 1))
    }

    /// First row and number of rows of each tile.
    fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (n, rows) = (self.n, self.rows);
        (0..n).step_by(rows).map(move |first| (first, rows.min(n - first)))
    }

    /// Lengths of the leading products' results for a tile; the second is 0 where there is one product.
    fn hidden(&self) -> [usize; 2] {
        [self.rows * self.f, if self.leading > 1 { self.rows * self.f } else { 0 }]
    }

    /// Columns of the hidden values behind the activation, or of one of two backward products.
    fn other(&self) -> usize {
        self.f.max(self.c)
    }

    /// Lengths of the sums of bias gradients: of the leading products, then of the last.
    fn sums(&self) -> [usize; 3] {
        let columns = if self.leading > 1 { [self.f, self.f, self.out] } else { [self.f, self.out, 0] };
        columns.map(|columns| if self.bias { columns } else { 0 })
    }

    fn up(&self) -> Extents {
        Extents { m: self.rows, n: self.f, k: self.c }
    }

    fn down(&self) -> Extents {
        Extents { m: self.rows, n: self.out, k: self.f }
    }
}

/// The workspace, handed out part by part.
struct Room<'a>(&'a mut [f32]);

impl<'a> Room<'a> {
    fn take(&mut self, len: usize) -> &'a mut [f32] {
        let (part, rest) = std::mem::take(&mut self.0).split_at_mut(len.next_multiple_of(LINE));
        self.0 = rest;
        &mut part[..len]
    }

    fn take_hidden(&mut self, sizes: &Sizes) -> [&'a mut [f32]; 2] {
        sizes.hidden().map(|len| self.take(len))
    }

    fn take_sums(&mut self, sizes: &Sizes) -> [&'a mut [f32]; 3] {
        sizes.sums().map(|len| self.take(len))
    }
}

/// The first `len` numbers of each part, or fewer if the part is shorter.
fn beginnings<'a>(parts: &'a mut [&mut [f32]; 2], len: usize) -> [&'a mut [f32]; 2] {
    parts.each_mut().map(|part| {
        let len = len.min(part.len());
        &mut part[..len]
    })
}

/// A linear layer of the network.
#[derive(Clone, Copy)]
struct Layer<'a> {
    weight: Weight<'a>,
    bias: Option<&'a [f32]>,
}

impl Layer<'_> {
    fn forward(&self, rows: usize, x: Numbers, y: &mut [f32], packing: &mut [f32]) {
        self.weight.forward(rows, x, self.bias.map_or(Start::Zero, Start::Bias), y, packing);
    }
}

/// The network of a call.
struct Network<'a> {
    activation: Activation,
    /// Gate and up; where there is no gate, up alone counts.
    lead: [Layer<'a>; 2],
    leading: usize,
    last: Layer<'a>,
    /// Whether hidden values are rounded to bf16.
    half: bool,
}

/// Rows of a call that are worked on together.
struct Tile<'a> {
    rows: usize,
    /// Whether others came before.
    further: bool,
    /// (rows, C)
    x: &'a [f32],
    /// (rows, C')
    dy: &'a [f32],
    sizes: &'a Sizes,
}

impl<'a> Network<'a> {
    /// The network of a call whose weights begin with input `weights`.
    fn new<E: Element>(call: &'a Call, form: Mlp, weights: usize) -> Network<'a> {
        let products = form.products();
        let layer = |index: usize| Layer {
            weight: Weight::input(call, weights + index, form.transposed),
            bias: form.bias.then(|| call.input(weights + products + index)),
        };
        let lead = [layer(0), layer(products - 2)];
        let (activation, last) = (form.activation, layer(products - 1));
        Network { activation, lead, leading: products - 1, last, half: !E::WHOLE }
    }

    /// Rounds a hidden value as if this op had stored it and the next one read it.
    fn stored(&self, hidden: &mut [f32]) {
        if self.half {
            split::chunks([(hidden, PIECE)], |_, [part]| element::round_in_place(part));
        }
    }

    /// Values of a tile as products read them: either all or none were read from bf16 or rounded to it.
    fn numbers<'b>(&self, values: &'b [f32]) -> Numbers<'b> {
        Numbers::in_scratch(values, self.half)
    }

    /// Inputs of the activation.
    fn lead_in(&self, rows: usize, x: &[f32], hidden: &mut [&mut [f32]; 2], packing: &mut [f32]) {
        for (layer, hidden) in self.lead.iter().zip(hidden).take(self.leading) {
            layer.forward(rows, self.numbers(x), hidden, packing);
            self.stored(hidden);
        }
    }

    /// The activation of gate and up, written to `into`, or over gate.
    fn activate(&self, [gate, up]: &mut [&mut [f32]; 2], mut into: Option<&mut [f32]>) {
        let len = gate.len();
        let outputs = [into.as_mut().map_or(gate.as_mut_ptr(), |into| into[..len].as_mut_ptr())];
        let inputs = [gate.as_ptr(), up.as_ptr()];
        let [first, _] = inputs;
        match self.activation {
            Activation::Swiglu => map_streams(Streams { inputs, outputs }, &Swiglu, len),
            Activation::Gelu(Gelu::Tanh) => map_streams(Streams { inputs: [first], outputs }, &GeluTanh, len),
            Activation::Gelu(Gelu::Erf) => map_streams(Streams { inputs: [first], outputs }, &GeluErf, len),
        }
        match into {
            Some(into) => self.stored(&mut into[..len]),
            None => self.stored(gate),
        }
    }

    /// From the gradient `dh` behind the activation to those of `hidden`, in its place.
    fn differentiate(&self, hidden: &mut [&mut [f32]; 2], dh: &[f32]) {
        let (len, dh) = (hidden[0].len(), dh.as_ptr());
        let [gate, up] = hidden.each_mut().map(|part| part.as_mut_ptr());
        let alone = Streams { inputs: [gate.cast_const(), dh], outputs: [gate] };
        match self.activation {
            Activation::Swiglu => {
                let inputs = [gate.cast_const(), up.cast_const(), dh];
                map_streams(Streams { inputs, outputs: [gate, up] }, &SwigluGrad, len);
            }
            Activation::Gelu(Gelu::Tanh) => map_streams(alone, &GeluTanhGrad, len),
            Activation::Gelu(Gelu::Erf) => map_streams(alone, &GeluErfGrad, len),
        }
        for part in hidden {
            self.stored(part);
        }
    }

    /// Replaces `hidden` by its gradient and adds to the gradients of the weights.
    fn backward(
        &self,
        tile: &Tile,
        hidden: &mut [&mut [f32]; 2],
        other: &mut [f32],
        outputs: &Outputs,
        packing: &mut [f32],
    ) {
        let other = &mut other[..tile.rows * tile.sizes.f];
        if outputs.weights.is_some() {
            self.activate(hidden, Some(other));
        }
        let dy = self.numbers(tile.dy);
        outputs.add_weight(self.leading, &self.last, tile, [self.numbers(other), dy], packing);
        self.last.weight.backward(tile.rows, dy, other, packing);
        self.stored(other);
        self.differentiate(hidden, other);
        for (index, (layer, hidden)) in self.lead.iter().zip(hidden).take(self.leading).enumerate() {
            let operands = [self.numbers(tile.x), self.numbers(hidden)];
            outputs.add_weight(index, layer, tile, operands, packing);
        }
    }

    /// The gradient of `x` from those of `hidden`: the sum of the gradients that the leading products send back.
    fn send_back(
        &self,
        rows: usize,
        hidden: &[&mut [f32]; 2],
        other: &mut [f32],
        dx: &mut [f32],
        packing: &mut [f32],
    ) {
        self.lead[0].weight.backward(rows, self.numbers(hidden[0]), dx, packing);
        if self.leading > 1 {
            let other = &mut other[..dx.len()];
            self.lead[1].weight.backward(rows, self.numbers(hidden[1]), other, packing);
            self.stored(dx);
            self.stored(other);
            add_to(dx, other);
        }
    }
}

/// Where gradients of parameters go.
struct Outputs<'a> {
    call: &'a Call<'a>,
    /// The output that belongs to the first weight, if any is wanted.
    weights: Option<usize>,
    /// The same for biases.
    biases: Option<usize>,
}

impl Outputs<'_> {
    /// Adds a tile's part of the gradient of weight `index`, if it is wanted.
    fn add_weight(
        &self,
        index: usize,
        layer: &Layer,
        tile: &Tile,
        operands: [Numbers; 2],
        packing: &mut [f32],
    ) {
        let Some(output) = self.weights.map(|first| first + index) else { return };
        let start = kept_if(tile.further || self.call.outputs[output].accumulate);
        layer.weight.gradient(tile.rows, operands, start, self.call.output(output), packing);
    }

    /// Stores the sums of bias gradients, or adds them to the existing ones.
    fn store_sums(&self, sums: &[&mut [f32]]) {
        let Some(first) = self.biases else { return };
        for (output, sums) in (first..).zip(sums) {
            let into = self.call.output(output);
            if self.call.outputs[output].accumulate {
                add_to(into, sums);
            } else {
                into.copy_from_slice(sums);
            }
        }
    }
}

#[cfg(test)]
mod tests;
