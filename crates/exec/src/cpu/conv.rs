//! Convolution of images as a matrix product, one image at a time.
//!
//! ```text
//! patches (C·h·w, Y'·X'):  row (c, i, j), column (y, x)  =  image[c, y·stride + i − padding, x·stride + j − padding]
//!
//! forward        y  = w (O, C·h·w) · patches
//! to the weight  dw = Σ over images  dy (O, Y'·X') · patchesᵀ
//! to the image   patches' gradient = wᵀ · dy, each number then added to the pixel it was copied from
//! ```
//!
//! The patches of one image lie in the workspace: `h·w` times the image, which is modest for the image sizes this
//! project trains on. An image of a result in half precision lies there too, until it is complete. Absent on purpose:
//! anything smarter (direct kernels, Winograd).

use half::bf16;
use plimsoll_graph::op::Conv;
use plimsoll_graph::{DType, Op, Shape, Type};
use plimsoll_plan::Workspace;

use super::element::{self, Element};
use super::linear::kept_if;
use super::matmul::{self, Extents, Start, product};
use super::pack::View;
use super::{Call, split};
use crate::ExecError;

/// Runs an op of this file.
pub(super) fn run(call: &Call) -> Option<Result<(), ExecError>> {
    let known =
        matches!(call.op, Op::Conv2d { .. } | Op::Conv2dGradInput { .. } | Op::Conv2dGradWeight { .. });
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
        Op::Conv2d { conv, .. } => conv2d::<E>(call, *conv),
        Op::Conv2dGradInput { conv, .. } => conv2d_grad_input::<E>(call, *conv),
        Op::Conv2dGradWeight { conv, .. } => conv2d_grad_weight::<E>(call, *conv),
        _ => {}
    }
}

/// The scratch that an op of this file needs.
pub(super) fn workspace(op: &Op, inputs: &[Type], outputs: &[Type], _: usize) -> Option<Workspace> {
    Some(match op {
        Op::Conv2d { conv, .. } => conv2d_workspace(inputs, outputs, *conv),
        Op::Conv2dGradInput { conv, .. } => conv2d_grad_input_workspace(inputs, outputs, *conv),
        Op::Conv2dGradWeight { conv, .. } => conv2d_grad_weight_workspace(inputs, outputs, *conv),
        _ => return None,
    })
}

/// `(x[B,C,Y,X], w[O,C,h,w][, b[O]]) → [B,O,Y',X']`.
fn conv2d<E: Element>(call: &Call, conv: Conv) {
    let shape = |input: usize| call.inputs[input].ty.shape;
    let plan = Patches::new(shape(0), shape(1), call.outputs[0].ty.shape, conv);
    let (x, w) = (call.elements::<E>(0), call.input(1));
    let (packing, patches, room) = plan.split(call.scratch(), Patches::whole::<E>(plan.out * plan.columns()));
    let y = call.output_as::<E>(0);
    let images = x.chunks_exact(plan.image_len()).zip(y.chunks_exact_mut(plan.out * plan.columns()));
    for (image, result) in images {
        plan.gather(image, patches);
        let y = E::as_wide_mut(result).unwrap_or(&mut *room);
        let start = if call.inputs.len() > 2 {
            y.chunks_exact_mut(plan.columns()).zip(call.input(2)).for_each(|(y, bias)| y.fill(*bias));
            Start::Kept
        } else {
            Start::Zero
        };
        let w = View::new(w, plan.out, plan.rows(), plan.rows(), 1);
        let patches = View::new(patches, plan.columns(), plan.rows(), 1, plan.columns());
        product(plan.forward(), w, patches, start, y, packing);
        if !E::WHOLE {
            element::round(room, result);
        }
    }
}

/// `(w, dy) → dx`.
fn conv2d_grad_input<E: Element>(call: &Call, conv: Conv) {
    let shape = |input: usize| call.inputs[input].ty.shape;
    let plan = Patches::new(call.outputs[0].ty.shape, shape(0), shape(1), conv);
    let (w, dy) = (call.input(0), call.numbers(1));
    let (packing, patches, room) = plan.split(call.scratch(), Patches::whole::<E>(plan.image_len()));
    for (index, result) in call.output_as::<E>(0).chunks_exact_mut(plan.image_len()).enumerate() {
        let w = View::new(w, plan.rows(), plan.out, 1, plan.rows());
        let dy = dy.from(index * plan.out * plan.columns());
        let dy = View::of(dy, plan.columns(), plan.out, 1, plan.columns());
        product(plan.to_image(), w, dy, Start::Zero, patches, packing);
        plan.scatter(patches, E::as_wide_mut(result).unwrap_or(&mut *room));
        if !E::WHOLE {
            element::round(room, result);
        }
    }
}

/// `(x, dy) → dw`, summed over the images in order.
fn conv2d_grad_weight<E: Element>(call: &Call, conv: Conv) {
    let shape = |input: usize| call.inputs[input].ty.shape;
    let plan = Patches::new(shape(0), call.outputs[0].ty.shape, shape(1), conv);
    let (x, dy, dw) = (call.elements::<E>(0), call.numbers(1), call.output(0));
    let (packing, patches, _) = plan.split(call.scratch(), 0);
    for (index, image) in x.chunks_exact(plan.image_len()).enumerate() {
        plan.gather(image, patches);
        let start = kept_if(call.outputs[0].accumulate || index > 0);
        let dy = dy.from(index * plan.out * plan.columns());
        let dy = View::of(dy, plan.out, plan.columns(), plan.columns(), 1);
        let patches = View::new(patches, plan.rows(), plan.columns(), plan.columns(), 1);
        product(plan.to_weight(), dy, patches, start, dw, packing);
    }
}

/// Scratch of [`conv2d`].
fn conv2d_workspace(inputs: &[Type], outputs: &[Type], conv: Conv) -> Workspace {
    let plan = Patches::new(inputs[0].shape, inputs[1].shape, outputs[0].shape, conv);
    plan.workspace(plan.forward(), outputs[0], plan.out * plan.columns())
}

/// Scratch of [`conv2d_grad_input`].
fn conv2d_grad_input_workspace(inputs: &[Type], outputs: &[Type], conv: Conv) -> Workspace {
    let plan = Patches::new(outputs[0].shape, inputs[0].shape, inputs[1].shape, conv);
    plan.workspace(plan.to_image(), outputs[0], plan.image_len())
}

/// Scratch of [`conv2d_grad_weight`].
fn conv2d_grad_weight_workspace(inputs: &[Type], outputs: &[Type], conv: Conv) -> Workspace {
    let plan = Patches::new(inputs[0].shape, outputs[0].shape, inputs[1].shape, conv);
    plan.workspace(plan.to_weight(), outputs[0], 0)
}

/// The extents of a convolution of one image.
struct Patches {
    conv: Conv,
    channels: usize,
    out: usize,
    /// `[Y, X]`.
    image: [usize; 2],
    /// `[h, w]`.
    window: [usize; 2],
    /// `[Y', X']`.
    result: [usize; 2],
}

impl Patches {
    fn new(x: Shape, w: Shape, y: Shape, conv: Conv) -> Patches {
        Patches {
            conv,
            channels: x[1],
            out: w[0],
            image: [x[2], x[3]],
            window: [w[2], w[3]],
            result: [y[2], y[3]],
        }
    }

    fn rows(&self) -> usize {
        self.channels * self.window_len()
    }

    fn columns(&self) -> usize {
        self.result[0] * self.result[1]
    }

    fn window_len(&self) -> usize {
        self.window[0] * self.window[1]
    }

    fn image_len(&self) -> usize {
        self.channels * self.image[0] * self.image[1]
    }

    fn forward(&self) -> Extents {
        Extents { m: self.out, n: self.columns(), k: self.rows() }
    }

    fn to_image(&self) -> Extents {
        Extents { m: self.rows(), n: self.columns(), k: self.out }
    }

    fn to_weight(&self) -> Extents {
        Extents { m: self.out, n: self.rows(), k: self.columns() }
    }

    /// How many f32 numbers hold one image of a result until its sums are whole: none if the result holds sums itself.
    fn whole<E: Element>(len: usize) -> usize {
        if E::WHOLE { 0 } else { len }
    }

    /// Scratch of a product, of the patches, and of an image of the result where that is stored in half.
    fn workspace(&self, extents: Extents, result: Type, image: usize) -> Workspace {
        let image = if result.dtype == DType::Bf16 { image } else { 0 };
        let patches = 4 * (self.rows() * self.columns() + image) as u64;
        let Workspace { least, best } = matmul::workspace(extents);
        Workspace { least: least + patches, best: best + patches }
    }

    /// Scratch for packing, and at its end the patches and room for `whole` numbers.
    fn split<'a>(
        &self,
        scratch: &'a mut [f32],
        whole: usize,
    ) -> (&'a mut [f32], &'a mut [f32], &'a mut [f32]) {
        let (packing, rest) = scratch.split_at_mut(scratch.len() - self.rows() * self.columns() - whole);
        let (patches, room) = rest.split_at_mut(rest.len() - whole);
        (packing, patches, room)
    }

    fn gather<E: Element>(&self, image: &[E], patches: &mut [f32]) {
        let pixels = self.image[0] * self.image[1];
        split::chunks([(patches, self.window_len() * self.columns())], |channel, [patches]| {
            let image = &image[channel * pixels..][..pixels];
            self.for_each_number(|pixel, patch| {
                patches[patch] = pixel.map_or(0.0, |pixel| image[pixel].wide());
            });
        });
    }

    fn scatter(&self, patches: &[f32], image: &mut [f32]) {
        let numbers = self.window_len() * self.columns();
        split::chunks([(image, self.image[0] * self.image[1])], |channel, [image]| {
            let patches = &patches[channel * numbers..][..numbers];
            image.fill(0.0);
            self.for_each_number(|pixel, patch| {
                if let Some(pixel) = pixel {
                    image[pixel] += patches[patch];
                }
            });
        });
    }

    /// Visits the numbers of one channel's patches in memory order. `visit` gets the pixel that a number copies (none in
    /// the padding) and the place of the number.
    fn for_each_number(&self, mut visit: impl FnMut(Option<usize>, usize)) {
        let source = |axis: usize, at: usize, offset: usize| {
            (at * self.conv.stride + offset)
                .checked_sub(self.conv.padding)
                .filter(|&at| at < self.image[axis])
        };
        let mut place = 0;
        for window in 0..self.window_len() {
            let (i, j) = (window / self.window[1], window % self.window[1]);
            for y in 0..self.result[0] {
                let row = source(0, y, i);
                for x in 0..self.result[1] {
                    let pixel = row.zip(source(1, x, j)).map(|(row, column)| row * self.image[1] + column);
                    visit(pixel, place);
                    place += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::{Trial, numbers};

    const X: [usize; 4] = [2, 3, 9, 7];
    const WINDOW: [usize; 2] = [3, 2];
    const OUT: usize = 5;

    /// Visits `(x, w, y)`, the flat places of every product of the convolution.
    fn products(conv: Conv, [rows, columns]: [usize; 2], mut visit: impl FnMut(usize, usize, usize)) {
        let [batch, channels, height, width] = X;
        let [h, w] = WINDOW;
        for index in 0..batch * OUT * channels * rows * columns * h * w {
            let (rest, j) = (index / w, index % w);
            let (rest, i) = (rest / h, rest % h);
            let (rest, x) = (rest / columns, rest % columns);
            let (rest, y) = (rest / rows, rest % rows);
            let (rest, c) = (rest / channels, rest % channels);
            let (b, o) = (rest / OUT, rest % OUT);
            let at =
                |place: usize, offset: usize| (place * conv.stride + offset) as isize - conv.padding as isize;
            let (image_y, image_x) = (at(y, i), at(x, j));
            if (0..height as isize).contains(&image_y) && (0..width as isize).contains(&image_x) {
                let pixel = ((b * channels + c) * height + image_y as usize) * width + image_x as usize;
                visit(pixel, ((o * channels + c) * h + i) * w + j, ((b * OUT + o) * rows + y) * columns + x);
            }
        }
    }

    fn close(got: &[f32], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (at, (got, want)) in got.iter().zip(want).enumerate() {
            assert!((f64::from(*got) - want).abs() < 1e-5, "element {at}: {got}, not {want}");
        }
    }

    #[test]
    fn convolutions_and_their_gradients_match_their_definition() {
        let w = [OUT, X[1], WINDOW[0], WINDOW[1]];
        for (stride, padding) in [(1, 0), (1, 1), (2, 0), (2, 1), (3, 2)] {
            let conv = Conv { stride, padding };
            let result = [0, 1].map(|axis| (X[axis + 2] + 2 * padding - WINDOW[axis]) / stride + 1);
            let y = [X[0], OUT, result[0], result[1]];
            let pixels = result[0] * result[1];

            let trial = Trial::random(Op::Conv2d { conv, bias: true }, &[&X, &w, &[OUT]]);
            let (a, b, bias) = (trial.input(0), trial.input(1), trial.input(2));
            let mut want: Vec<f64> =
                (0..X[0] * OUT * pixels).map(|at| f64::from(bias[at / pixels % OUT])).collect();
            products(conv, result, |x, w, y| want[y] += f64::from(a[x]) * f64::from(b[w]));
            close(&trial.run_everywhere()[0], &want);

            let trial = Trial::random(Op::Conv2dGradInput { conv, image: [X[2], X[3]] }, &[&w, &y]);
            let (a, b) = (trial.input(0), trial.input(1));
            let mut want = vec![0.0; X.iter().product()];
            products(conv, result, |x, w, y| want[x] += f64::from(a[w]) * f64::from(b[y]));
            close(&trial.run_everywhere()[0], &want);

            for accumulate in [false, true] {
                let mut trial = Trial::random(Op::Conv2dGradWeight { conv, window: WINDOW }, &[&X, &y]);
                let (a, b) = (trial.input(0), trial.input(1));
                let before = numbers(w.iter().product(), 9);
                let mut want = vec![0.0; before.len()];
                if accumulate {
                    trial = trial.onto(0, &before);
                    want = before.iter().map(|&x| f64::from(x)).collect();
                }
                products(conv, result, |x, w, y| want[w] += f64::from(a[x]) * f64::from(b[y]));
                close(&trial.run_everywhere()[0], &want);
            }
        }
    }
}
