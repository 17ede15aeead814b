//! The list of cases, in the order of `op.rs`.
//!
//! Shapes are chosen to be awkward for kernels: one row, one column, sizes that no tile or vector
//! divides, and a few large enough to be split over threads or into chunks.

use plimsoll_graph::op::{Activation, Conv, Gelu, Head, Mask, Mlp};
use plimsoll_graph::{Axes, DType, Op, Shape, Type};

use super::{Case, Fill, Input, Tolerance, updates};

pub(super) const EXACT: Tolerance =
    Tolerance { relative: 0.0, reason: "numbers are moved or rounded once, as defined" };
pub(super) const ROUNDED: Tolerance =
    Tolerance { relative: 2.5e-7, reason: "one or two f32 operations, each within half of 2⁻²³" };
pub(super) const FUNCTION: Tolerance =
    Tolerance { relative: 2e-6, reason: "exponentials in f32, good to a few units in the last place" };
const SUMMED: Tolerance = Tolerance {
    relative: 5e-6,
    reason: "f32 sums of a few hundred terms, whose roundings grow like a random walk",
};
const DEEP: Tolerance =
    Tolerance { relative: 2e-5, reason: "exponentials of f32 sums, whose errors become relative errors" };
pub(super) const LONG: Tolerance = Tolerance {
    relative: 2e-5,
    reason: "f32 sums of tens of thousands of squares, whose roundings need not cancel",
};
const FAR: Tolerance = Tolerance {
    relative: 5e-5,
    reason: "position · frequency rounded to f32: half of 2⁻²³ of an angle of up to 512 radians",
};
/// The ignored target of all cases.
const IGNORE: i32 = -100;

/// Every case, in the order of `op.rs`; then those of weights stored in fewer bits.
pub fn all() -> Vec<Case> {
    let cases = [
        movement(),
        casts(),
        elementwise(),
        dropout(),
        linear(),
        matmul(),
        conv2d(),
        reductions(),
        norms(),
        embedding(),
        rope(),
        attention(),
        mlp(),
        cross_entropy(),
        head_loss(),
        updates::all(),
    ]
    .concat();
    let halves: Vec<Case> = cases.iter().filter_map(with_half_weight).collect();
    [cases, halves].concat()
}

/// The case with its weights stored as bf16, if its op reads any so.
fn with_half_weight(case: &Case) -> Option<Case> {
    let mut half = named(case.clone(), "half weight");
    let weights = half.inputs.iter_mut().enumerate().filter(|(input, _)| case.op.reads_half(*input));
    let stored = weights.map(|(_, weight)| weight.ty.dtype = DType::Bf16).count();
    (stored > 0).then_some(half)
}

/// A case named after its op, its parameters and the types it reads.
pub(super) fn case(op: Op, inputs: Vec<Input>, tolerance: Tolerance) -> Case {
    let types: Vec<String> = inputs.iter().map(|input| input.ty.to_string()).collect();
    let name = format!("{} {} {op:?}", op.name(), types.join(" "));
    Case { name, op, inputs, accumulate: false, tolerance, least_scale: 0.0 }
}

/// The case, and its twin that adds to what the outputs hold, which has magnitude 1 and may cancel.
pub(super) fn both_ways(case: Case) -> [Case; 2] {
    let name = format!("{} adding", case.name);
    let adding = Case { name, accumulate: true, least_scale: case.least_scale.max(1.0), ..case.clone() };
    [case, adding]
}

/// The case, judged relative to `magnitude` at least, because terms that large cancel in it.
fn cancelling(case: Case, magnitude: f64) -> Case {
    Case { least_scale: magnitude, ..case }
}

pub(super) fn named(case: Case, suffix: &str) -> Case {
    Case { name: format!("{} {suffix}", case.name), ..case }
}

pub(super) fn normal(shape: impl Into<Shape>) -> Input {
    floats(shape, Fill::Normal(1.0))
}

pub(super) fn floats(shape: impl Into<Shape>, fill: Fill) -> Input {
    Input { ty: Type::f32(shape), fill }
}

pub(super) fn integers(shape: impl Into<Shape>, fill: Fill) -> Input {
    Input { ty: Type::i32(shape), fill }
}

pub(super) fn scalar(number: f32) -> Input {
    floats([], Fill::Number(number))
}

/// What the forward op stored as its output `output`, of type `ty`.
fn stored(ty: Type, op: &Op, from: &[usize], output: usize) -> Input {
    Input { ty, fill: Fill::Forward { op: op.clone(), from: from.to_vec(), output } }
}

fn movement() -> Vec<Case> {
    let exact = |op: Op, shape: Shape| case(op, vec![normal(shape)], EXACT);
    let transpose = |shape: Shape, permutation: &[usize]| {
        exact(Op::Transpose { permutation: permutation.to_vec() }, shape)
    };
    let slice = |shape: Shape, axis, start, len| exact(Op::Slice { axis, start, len }, shape);
    let pad = |shape: Shape, axis, start, len| exact(Op::Pad { axis, start, len }, shape);
    let concat = |shapes: &[Shape], axis| {
        case(Op::Concat { axis }, shapes.iter().map(|&shape| normal(shape)).collect(), EXACT)
    };
    let broadcast = |shape: Shape, axes: Axes| exact(Op::Broadcast { shape, axes }, shape.without(axes));
    vec![
        exact(Op::Reshape { shape: [15].into() }, [3, 5].into()),
        exact(Op::Reshape { shape: [2, 3, 1, 7].into() }, [6, 7].into()),
        transpose([5, 7].into(), &[1, 0]),
        transpose([65, 33].into(), &[1, 0]),
        transpose([1, 9].into(), &[1, 0]),
        transpose([2, 3, 5, 4].into(), &[0, 2, 1, 3]),
        transpose([2, 3, 4].into(), &[2, 0, 1]),
        transpose([1, 2, 2, 3, 2, 3].into(), &[0, 3, 1, 4, 2, 5]),
        transpose([6].into(), &[0]),
        slice([7].into(), 0, 2, 3),
        slice([5, 9].into(), 0, 4, 1),
        slice([5, 9].into(), 1, 0, 9),
        slice([3, 4, 33].into(), 2, 1, 17),
        slice([3, 8, 2].into(), 1, 5, 3),
        pad([3].into(), 0, 2, 7),
        pad([2, 5].into(), 1, 0, 6),
        pad([3, 2, 5].into(), 1, 3, 8),
        pad([2, 3].into(), 0, 0, 2),
        concat(&[[2, 3].into()], 0),
        concat(&[[2, 3].into(), [5, 3].into()], 0),
        concat(&[[3, 2].into(), [3, 7].into(), [3, 1].into()], 1),
        concat(&[[2, 3, 5].into(), [2, 1, 5].into()], 1),
        broadcast([3, 5].into(), Axes::of([0, 1])),
        broadcast([7, 13].into(), Axes::of([0])),
        broadcast([7, 13].into(), Axes::of([1])),
        broadcast([2, 3, 4, 5].into(), Axes::of([0, 2])),
        broadcast([2, 6, 33].into(), Axes::of([1])),
    ]
}

fn casts() -> Vec<Case> {
    let cast = |from: DType, to: DType, shape: Shape, fill: Fill| {
        let input = Input { ty: Type { shape, dtype: from }, fill };
        case(Op::Cast { to }, vec![input], EXACT)
    };
    let mut cases = Vec::new();
    for half in [DType::Bf16, DType::F16] {
        cases.push(cast(DType::F32, half, [3, 67].into(), Fill::Normal(1.0)));
        cases.push(cast(half, DType::F32, [3, 67].into(), Fill::Normal(1.0)));
        cases.push(named(cast(DType::F32, half, [18].into(), Fill::Edges), "edges, some overflow"));
    }
    cases.push(cast(DType::F32, DType::F32, [5].into(), Fill::Normal(1.0)));
    cases.push(cast(DType::I32, DType::F32, [2, 9].into(), Fill::Below(50_000)));
    cases
}

fn elementwise() -> Vec<Case> {
    let mut cases = Vec::new();
    let pairs: [(Shape, Shape); 8] = [
        ([].into(), [].into()),
        ([1].into(), [1].into()),
        ([7, 13].into(), [7, 13].into()),
        ([129, 257].into(), [129, 257].into()),
        ([3, 5, 7].into(), [7].into()),
        ([3, 5, 7].into(), [5, 7].into()),
        ([65, 33].into(), [33].into()),
        ([3, 5].into(), [].into()),
    ];
    for (a, b) in pairs {
        cases.push(case(Op::Add, vec![normal(a), normal(b)], ROUNDED));
        cases.push(case(Op::Mul, vec![normal(a), normal(b)], ROUNDED));
    }
    let shapes: [Shape; 4] = [[1].into(), [7, 13].into(), [3, 5, 33].into(), [129, 257].into()];
    for shape in shapes {
        cases.push(case(Op::Scale { factor: -0.37 }, vec![normal(shape)], ROUNDED));
        for (op, inputs) in functions() {
            cases.push(case(op, vec![normal(shape); inputs], FUNCTION));
        }
    }
    // Where e^−x overflows f32, the functions must still be 0 or x.
    for (op, inputs) in functions() {
        let mut operands = vec![normal([4, 19]); inputs];
        operands[0].fill = Fill::Normal(60.0);
        cases.push(named(case(op, operands, FUNCTION), "large"));
    }
    cases
}

/// The nonlinear functions, each with its number of inputs of equal shape.
fn functions() -> [(Op, usize); 10] {
    [
        (Op::Silu, 1),
        (Op::SiluGrad, 2),
        (Op::Gelu(Gelu::Tanh), 1),
        (Op::Gelu(Gelu::Erf), 1),
        (Op::GeluGrad(Gelu::Tanh), 2),
        (Op::GeluGrad(Gelu::Erf), 2),
        (Op::Tanh, 1),
        (Op::TanhGrad, 2),
        (Op::Swiglu, 2),
        (Op::SwigluGrad, 3),
    ]
}

fn dropout() -> Vec<Case> {
    let dropout = |shape: Shape, p| {
        let op = Op::Dropout { p, stream: 0x0123_4567_89ab_cdef };
        case(op, vec![normal(shape), integers([4], Fill::Rng)], ROUNDED)
    };
    vec![
        dropout([].into(), 0.5),
        dropout([9].into(), 0.3),
        dropout([3, 7].into(), 0.1),
        dropout([2, 5, 33].into(), 0.5),
        dropout([130, 67].into(), 0.25),
    ]
}

fn linear() -> Vec<Case> {
    let mut cases = Vec::new();
    // (rows, in, out)
    let sizes = [(1, 1, 1), (1, 7, 5), (3, 16, 16), (13, 33, 17), (65, 48, 40), (130, 96, 72), (5, 257, 3)];
    for (rows, input, out) in sizes {
        for transposed in [false, true] {
            let weight = normal(if transposed { [input, out] } else { [out, input] });
            let (x, dy) = (normal([rows, input]), normal([rows, out]));
            let plain = Op::Linear { transposed, bias: false };
            let biased = Op::Linear { transposed, bias: true };
            cases.push(case(plain, vec![x.clone(), weight.clone()], SUMMED));
            cases.push(case(biased.clone(), vec![x.clone(), weight.clone(), normal([out])], SUMMED));
            cases.push(case(biased, vec![x.clone(), weight.clone(), dy.clone()], SUMMED));
            cases.push(case(Op::LinearGradInput { transposed }, vec![weight, dy.clone()], SUMMED));
            cases.extend(both_ways(case(Op::LinearGradWeight { transposed }, vec![x, dy], SUMMED)));
        }
    }
    let deep = Op::Linear { transposed: false, bias: true };
    cases.push(case(deep, vec![normal([2, 3, 5]), normal([7, 5]), normal([7])], SUMMED));
    let weight = Op::LinearGradWeight { transposed: false };
    cases.extend(both_ways(case(weight, vec![normal([2, 3, 5]), normal([2, 3, 7])], SUMMED)));
    cases
}

fn matmul() -> Vec<Case> {
    let mut cases = Vec::new();
    let sizes = [(1, 1, 1), (5, 7, 3), (17, 33, 9), (66, 20, 35)]; // (m, k, n)
    for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
        for (m, k, n) in sizes {
            let a = if transpose_a { [k, m] } else { [m, k] };
            let b = if transpose_b { [n, k] } else { [k, n] };
            let op = Op::Matmul { transpose_a, transpose_b };
            cases.push(case(op.clone(), vec![normal(a), normal(b)], SUMMED));
            let [a, b] = [a, b].map(|[rows, columns]| normal([2, 3, rows, columns]));
            cases.push(case(op, vec![a, b], SUMMED));
        }
    }
    cases
}

fn conv2d() -> Vec<Case> {
    let mut cases = Vec::new();
    // (batch, channels, out, image, window, stride, padding)
    let sizes = [
        (1, 1, 1, [1, 1], [1, 1], 1, 0),
        (2, 3, 5, [7, 6], [3, 3], 1, 1),
        (1, 3, 4, [9, 9], [3, 2], 2, 0),
        (2, 2, 3, [8, 5], [4, 4], 4, 2),
        (1, 5, 7, [16, 16], [3, 3], 1, 1),
    ];
    for (batch, channels, out, image, window, stride, padding) in sizes {
        let conv = Conv { stride, padding };
        let extent = |axis: usize| (image[axis] + 2 * padding - window[axis]) / stride + 1;
        let x = normal([batch, channels, image[0], image[1]]);
        let w = normal([out, channels, window[0], window[1]]);
        let dy = normal([batch, out, extent(0), extent(1)]);
        cases.push(case(Op::Conv2d { conv, bias: false }, vec![x.clone(), w.clone()], SUMMED));
        cases.push(case(Op::Conv2d { conv, bias: true }, vec![x.clone(), w.clone(), normal([out])], SUMMED));
        cases.push(case(Op::Conv2dGradInput { conv, image }, vec![w, dy.clone()], SUMMED));
        cases.extend(both_ways(case(Op::Conv2dGradWeight { conv, window }, vec![x, dy], SUMMED)));
    }
    cases
}

fn reductions() -> Vec<Case> {
    let sum = |shape: Shape, axes: &[usize]| {
        let op = Op::Sum { axes: Axes::of(axes.iter().copied()) };
        let terms: usize = axes.iter().map(|&axis| shape[axis]).product();
        both_ways(cancelling(case(op, vec![normal(shape)], SUMMED), (terms as f64).sqrt()))
    };
    let mut cases = [
        sum([1].into(), &[0]),
        sum([7, 13].into(), &[0]),
        sum([7, 13].into(), &[1]),
        sum([7, 13].into(), &[0, 1]),
        sum([2, 3, 4, 5].into(), &[0, 2]),
        sum([2, 3, 4, 5].into(), &[0, 2, 3]),
        sum([130, 67].into(), &[0]),
        sum([130, 67].into(), &[0, 1]),
    ]
    .concat();
    let shapes: [Shape; 5] =
        [[1].into(), [1, 7].into(), [5, 33].into(), [2, 3, 100].into(), [130, 67].into()];
    for shape in shapes {
        cases.push(case(Op::Softmax, vec![normal(shape)], FUNCTION));
        let y = stored(Type::f32(shape), &Op::Softmax, &[1], 0);
        // Nothing is left of the gradient of a single column.
        let least = if shape.columns() == 1 { 1.0 } else { 0.0 };
        cases.push(cancelling(case(Op::SoftmaxGrad, vec![y, normal(shape)], SUMMED), least));
    }
    let far = floats([3, 21], Fill::Normal(100.0));
    cases.push(named(case(Op::Softmax, vec![far], DEEP), "of large numbers"));
    cases
}

fn norms() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes: [Shape; 6] =
        [[7].into(), [1, 5].into(), [5, 33].into(), [2, 3, 64].into(), [130, 100].into(), [4, 1].into()];
    for shape in shapes {
        let (x, w, b) = (normal(shape), normal([shape.columns()]), normal([shape.columns()]));
        let (dy, per_row) = (normal(shape), Type::f32([shape.rows()]));
        // Nothing is left of the gradient of a single column; rstd makes the terms large first.
        let least = if shape.columns() == 1 { 10.0 } else { 0.0 };
        let norm = Op::LayerNorm { epsilon: 1e-5 };
        cases.push(case(norm.clone(), vec![x.clone(), w.clone(), b.clone()], SUMMED));
        // Statistics depend on x alone; w (index 1) and x stand in for the other operands.
        let mean = |from: &[usize]| stored(per_row, &norm, from, 1);
        let rstd = |from: &[usize]| stored(per_row, &norm, from, 2);
        let inputs = vec![x.clone(), w.clone(), mean(&[0, 1, 1]), rstd(&[0, 1, 1]), dy.clone()];
        cases.push(cancelling(case(Op::LayerNormGradInput, inputs, SUMMED), least));

        let norm = Op::RmsNorm { epsilon: 1e-6 };
        cases.push(case(norm.clone(), vec![x.clone(), w.clone()], SUMMED));
        let inputs = vec![x.clone(), w, stored(per_row, &norm, &[0, 1], 1), dy.clone()];
        cases.push(cancelling(case(Op::RmsNormGradInput, inputs, SUMMED), least));

        // The gradients of the weight do not read it, so their statistics are drawn.
        let (mean, rstd) =
            (floats(per_row.shape, Fill::Normal(0.1)), floats(per_row.shape, Fill::Squares(1.0)));
        let inputs = vec![x.clone(), mean, rstd.clone(), dy.clone()];
        cases.extend(both_ways(case(Op::LayerNormGradWeight, inputs, SUMMED)));
        cases.extend(both_ways(case(Op::RmsNormGradWeight, vec![x, rstd, dy], SUMMED)));
    }
    cases
}

fn embedding() -> Vec<Case> {
    let mut cases = Vec::new();
    let sizes: [(usize, usize, Shape); 4] =
        [(1, 1, [1].into()), (11, 5, [2, 3].into()), (50, 33, [130].into()), (3, 7, [4, 40].into())];
    for (rows, width, ids) in sizes {
        let table = normal([rows, width]);
        let extents: Vec<usize> = ids.iter().copied().chain([width]).collect();
        let dy = normal(Shape::new(&extents).unwrap_or(Shape::SCALAR));
        let ids = integers(ids, Fill::Below(rows));
        cases.push(case(Op::Embedding, vec![table, ids.clone()], EXACT));
        cases.extend(both_ways(case(Op::EmbeddingGrad { rows }, vec![ids, dy], SUMMED)));
    }
    cases
}

fn rope() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [[1, 1, 1, 2], [2, 5, 3, 8], [1, 67, 4, 64], [2, 3, 1, 20]] {
        let (x, frequencies) = (normal(shape), floats([shape[3] / 2], Fill::Frequencies));
        let positions = integers([shape[0], shape[1]], Fill::Below(512));
        for inverse in [false, true] {
            let near = Op::Rope { inverse, positions: false };
            cases.push(case(near, vec![x.clone(), frequencies.clone()], SUMMED));
            let far = Op::Rope { inverse, positions: true };
            cases.push(case(far, vec![x.clone(), frequencies.clone(), positions.clone()], FAR));
        }
    }
    cases
}

fn attention() -> Vec<Case> {
    let mask = |causal, window, documents| Mask { causal, window, documents };
    // (batch, length, query heads, key heads, width, mask)
    let sizes = [
        (1, 1, 1, 1, 32, mask(true, None, false)),
        (2, 5, 3, 3, 20, mask(true, None, false)),
        (1, 37, 4, 1, 32, mask(true, None, false)),
        (2, 67, 4, 4, 64, mask(true, None, false)),
        (1, 130, 8, 2, 64, mask(true, None, false)),
        (1, 70, 4, 2, 64, mask(true, Some(16), false)),
        (1, 9, 2, 1, 20, mask(true, Some(1), false)),
        (2, 33, 2, 1, 20, mask(true, None, true)),
        (2, 91, 4, 1, 32, mask(true, Some(40), true)),
        (1, 19, 2, 2, 32, mask(false, None, false)),
        (2, 41, 3, 1, 20, mask(false, Some(7), false)),
        (1, 65, 2, 2, 64, mask(false, None, true)),
        (1, 3, 2, 1, 2, mask(false, None, false)),
    ];
    sizes.into_iter().flat_map(|(b, t, h, k, d, mask)| attention_pair([b, t, h, d], k, mask)).collect()
}

fn attention_pair(queries: [usize; 4], key_heads: usize, mask: Mask) -> [Case; 2] {
    let [batch, length, heads, width] = queries;
    let scale = 1.0 / (width as f32).sqrt();
    let keys = normal([batch, length, key_heads, width]);
    let operands = vec![normal(queries), keys.clone(), keys];
    let doc_start = mask.documents.then(|| integers([batch, length], Fill::Documents));

    let forward = Op::Attention { mask, scale };
    let inputs = operands.iter().cloned().chain(doc_start.clone()).collect();
    let from: &[usize] = if mask.documents { &[0, 1, 2, 6] } else { &[0, 1, 2] };
    let saved = [
        stored(Type::f32(queries), &forward, from, 0),
        stored(Type::f32([batch, heads, length]), &forward, from, 1),
        normal(queries),
    ];
    let backward = operands.into_iter().chain(saved).chain(doc_start).collect();
    // A query that sees one position has no gradient: two sums of products cancel.
    let least = if length == 1 || mask.window == Some(1) { 1.0 } else { 0.0 };
    let backward = cancelling(case(Op::AttentionGrad { mask, scale }, backward, DEEP), least);
    [case(forward, inputs, DEEP), backward]
}

fn mlp() -> Vec<Case> {
    let mut cases = Vec::new();
    let gelu = |form| Activation::Gelu(form);
    // (rows, width, hidden width, rows of a tile, form)
    let sizes = [
        (1, 1, 1, 1, (Activation::Swiglu, false, false)),
        (7, 5, 11, 3, (Activation::Swiglu, false, false)),
        (130, 33, 57, 64, (Activation::Swiglu, false, false)),
        (40, 19, 48, 32, (Activation::Swiglu, true, true)),
        (9, 13, 21, 100, (gelu(Gelu::Tanh), true, true)),
        (130, 33, 57, 32, (gelu(Gelu::Tanh), true, true)),
        (67, 24, 40, 64, (gelu(Gelu::Erf), false, true)),
        (12, 65, 7, 5, (gelu(Gelu::Erf), false, false)),
    ];
    for (rows, width, hidden, tile, (activation, transposed, bias)) in sizes {
        let mlp = Mlp { activation, transposed, bias, rows: tile };
        let products = mlp.products();
        let extents = |index: usize| if index + 1 == products { (width, hidden) } else { (hidden, width) };
        let weight = |index| {
            let (out, input) = extents(index);
            floats(if transposed { [input, out] } else { [out, input] }, Fill::Normal(0.3))
        };
        let weights = (0..products).map(weight);
        let biases = (0..products).filter(|_| bias).map(|index| normal([extents(index).0]));
        let parameters: Vec<Input> = weights.chain(biases).collect();
        let operands = |rows_read| [&vec![normal([rows, width]); rows_read], &parameters[..]].concat();
        cases.push(case(Op::Mlp(mlp), operands(1), DEEP));
        let gradient = |weights, biases| case(Op::MlpGrad { mlp, weights, biases }, operands(2), DEEP);
        cases.push(gradient(false, false));
        cases.extend(both_ways(gradient(true, bias)));
        if bias {
            cases.extend(both_ways(gradient(false, true)));
        }
    }
    cases
}

fn cross_entropy() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, words) in [(1, 2), (5, 7), (33, 101), (200, 50)] {
        for (suffix, words_used) in [("", words), ("all ignored", 0)] {
            let targets = integers([rows], Fill::Targets { words: words_used, ignore_index: IGNORE });
            let inputs = vec![floats([rows, words], Fill::Normal(3.0)), targets, scalar(0.125)];
            let ops =
                [Op::CrossEntropy { ignore_index: IGNORE }, Op::CrossEntropyGrad { ignore_index: IGNORE }];
            // Where the target is all but certain, logits of magnitude 1 cancel, and so does 1 − p.
            let scaled = |op| cancelling(case(op, inputs.clone(), DEEP), 0.125);
            cases.extend(ops.map(|op| named(scaled(op), suffix)));
        }
    }
    cases
}

fn head_loss() -> Vec<Case> {
    let mut cases = Vec::new();
    // (rows, width, words)
    for (rows, width, words) in [(1, 3, 5), (7, 5, 11), (129, 64, 131), (200, 33, 57)] {
        for bias in [false, true] {
            let head = Head { ignore_index: IGNORE, bias };
            let targets = integers([rows], Fill::Targets { words, ignore_index: IGNORE });
            let weight = floats([words, width], Fill::Normal(0.3));
            let mut inputs = vec![normal([rows, width]), weight, targets, scalar(0.03)];
            inputs.extend(bias.then(|| normal([words])));
            // As for the cross-entropy on its own.
            let scaled = |op| cancelling(case(op, inputs.clone(), DEEP), 0.03);
            let gradient = |weight, bias| scaled(Op::HeadLossGrad { head, weight, bias });
            cases.push(scaled(Op::HeadLoss(head)));
            cases.push(gradient(false, false));
            cases.extend(both_ways(gradient(true, bias)));
            if bias {
                cases.extend(both_ways(gradient(false, true)));
            }
        }
    }
    cases
}
