//! Matrix products: by the library where it has one for these types, else by the tiled kernel.

use plimsoll_exec::ExecError;
use plimsoll_graph::DType;

use super::ALIGNMENT;
use super::elementwise::blocks;
use super::launch::{Arg, StreamStep};
use super::library::{Addend, Product, Signature};
use super::lowering::{Call, Lowering, Operand, i64, kind, lanes, suffix, unsupported};
use super::place::Place;

/// Rows and columns of a tile of the kernel `product`.
const TILE: usize = 64;
/// The most blocks along the second axis of a grid.
const MOST_TILES: usize = 65_535;

/// A matrix, row by row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub(super) place: Place,
    pub(super) dtype: DType,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Matrix {
    /// An operand, all axes but the last taken as rows.
    pub(super) fn of(operand: &Operand) -> Matrix {
        let (shape, dtype) = (operand.shape(), operand.ty.dtype);
        Matrix { place: operand.place, dtype, rows: shape.rows(), columns: shape.columns() }
    }

    /// Rows `first … first + rows`.
    pub(super) fn rows_from(&self, first: usize, rows: usize) -> Matrix {
        let offset = first * self.columns * self.dtype.bytes();
        Matrix { place: self.place.after(offset as u64), rows, ..*self }
    }

    fn order(&self, transposed: bool) -> (usize, usize) {
        if transposed { (self.columns, self.rows) } else { (self.rows, self.columns) }
    }
}

/// The addend: nothing, the result itself, or a matrix elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) enum Plus {
    Nothing,
    Result,
    Matrix(Place),
    Row(Place, DType),
}

impl Plus {
    /// The result itself if it is to be added to.
    pub(super) fn result_if(adds: bool) -> Plus {
        if adds { Plus::Result } else { Plus::Nothing }
    }

    /// A bias, if there is one: a single row that is added to all rows of the result, or a matrix with a row for
    /// each.
    pub(super) fn bias(bias: Option<&Operand>) -> Plus {
        match bias {
            None => Plus::Nothing,
            Some(bias) if bias.shape().len() == 1 => Plus::Row(bias.place, bias.ty.dtype),
            Some(bias) => Plus::Matrix(bias.place),
        }
    }

    fn form(self) -> (Addend, Option<Place>) {
        match self {
            Plus::Nothing => (Addend::None, None),
            Plus::Result => (Addend::Result, None),
            Plus::Matrix(place) => (Addend::Matrix, Some(place)),
            Plus::Row(place, dtype) => (Addend::Row(dtype), Some(place)),
        }
    }
}

/// One of the factors, and whether it is read as its transpose.
pub(super) type Factor = (Matrix, bool);

pub(super) fn linear(to: &mut Lowering, call: &Call, transposed: bool, bias: bool) -> Result<(), ExecError> {
    let (x, w, y) = (Matrix::of(&call.inputs[0]), Matrix::of(&call.inputs[1]), Matrix::of(&call.outputs[0]));
    let plus = Plus::bias(bias.then(|| &call.inputs[2]));
    // A result of one axis has a bias of its own shape, which serves as a row for all rows.
    product(to, call, [(x, false), (w, !transposed)], y, plus)
}

pub(super) fn linear_grad_input(to: &mut Lowering, call: &Call, transposed: bool) -> Result<(), ExecError> {
    let (w, dy, dx) =
        (Matrix::of(&call.inputs[0]), Matrix::of(&call.inputs[1]), Matrix::of(&call.outputs[0]));
    product(to, call, [(dy, false), (w, transposed)], dx, Plus::Nothing)
}

pub(super) fn linear_grad_weight(to: &mut Lowering, call: &Call, transposed: bool) -> Result<(), ExecError> {
    let (x, dy, dw) = (Matrix::of(&call.inputs[0]), Matrix::of(&call.inputs[1]), &call.outputs[0]);
    grad_weight(to, call, [x, dy], (Matrix::of(dw), dw.accumulate), transposed)
}

/// `dw = dyᵀ·x`, or its transpose; the flag says that it is added to.
pub(super) fn grad_weight(
    to: &mut Lowering,
    call: &Call,
    [x, dy]: [Matrix; 2],
    (dw, adds): (Matrix, bool),
    transposed: bool,
) -> Result<(), ExecError> {
    let factors = if transposed { [(x, true), (dy, false)] } else { [(dy, true), (x, false)] };
    product(to, call, factors, dw, Plus::result_if(adds))
}

pub(super) fn matmul(to: &mut Lowering, call: &Call, ta: bool, tb: bool) -> Result<(), ExecError> {
    let matrix = |operand: &Operand| {
        let shape = operand.shape();
        Matrix { rows: shape[shape.len() - 2], ..Matrix::of(operand) }
    };
    let shape = call.inputs[0].shape();
    let batch = shape[..shape.len() - 2].iter().product();
    let [a, b, c] = [&call.inputs[0], &call.inputs[1], &call.outputs[0]].map(matrix);
    batched(to, call, [(a, ta), (b, tb)], c, (Plus::Nothing, batch))
}

/// `c = a·b + plus`.
pub(super) fn product(
    to: &mut Lowering,
    call: &Call,
    factors: [Factor; 2],
    c: Matrix,
    plus: Plus,
) -> Result<(), ExecError> {
    batched(to, call, factors, c, (plus, 1))
}

fn batched(
    to: &mut Lowering,
    call: &Call,
    [(a, ta), (b, tb)]: [Factor; 2],
    c: Matrix,
    (plus, batch): (Plus, usize),
) -> Result<(), ExecError> {
    let ((m, k), (_, n)) = (a.order(ta), b.order(tb));
    let (addend, addend_place) = plus.form();
    let places = [Some(a.place), Some(b.place), Some(c.place), addend_place];
    let dtypes = [a.dtype, b.dtype, c.dtype];
    let alignment = alignment_of(&places);
    let signature = Signature { m, n, k, batch, transpose_a: ta, transpose_b: tb, dtypes, addend, alignment };
    if m * n * batch == 0 {
        return Ok(());
    }
    let plain = Signature { addend: Addend::None, ..signature };
    let row = if let Plus::Row(place, dtype) = plus { Some((place, dtype)) } else { None };
    // A result of one row may take over the bytes of its bias, which must then be read before they are written: our
    // kernel does so. Shapes decide, since the walk that computes scratch knows no places.
    let apart = row.is_none() || m * batch > 1;
    let row = row.filter(|_| apart);
    if let Some(bytes) = to.library.workspace(&signature).filter(|_| apart) {
        by_library(to, signature, [a.place, b.place, c.place], addend_place, bytes);
    } else if let (Some(row), Some(bytes)) = (row, to.library.workspace(&plain)) {
        by_library(to, plain, [a.place, b.place, c.place], None, bytes);
        add_row(to, call, c, row)?;
    } else {
        by_kernel(to, call, &signature, [a.place, b.place, c.place], addend_place)?;
    }
    Ok(())
}

fn by_library(
    to: &mut Lowering,
    signature: Signature,
    places: [Place; 3],
    addend: Option<Place>,
    bytes: u64,
) {
    let [a, b, c] = places;
    let mark = to.mark();
    let workspace = to.take(bytes);
    to.release(mark);
    to.steps.push(StreamStep::Product(Product { signature, a, b, c, addend, workspace }));
}

fn add_row(to: &mut Lowering, call: &Call, c: Matrix, row: (Place, DType)) -> Result<(), ExecError> {
    let count = c.rows * c.columns;
    let args = vec![Arg::Pointer(c.place), Arg::Pointer(row.0), kind(row.1), i64(count), i64(c.columns)];
    let kernel = format!("add_bias_{}", suffix(call, c.dtype)?);
    to.launch(kernel, blocks(count, lanes(c.dtype)), 256, args);
    Ok(())
}

fn by_kernel(
    to: &mut Lowering,
    call: &Call,
    s: &Signature,
    [a, b, c]: [Place; 3],
    addend: Option<Place>,
) -> Result<(), ExecError> {
    let kernel = format!("product_{}_{}", suffix(call, s.dtypes[0])?, suffix(call, s.dtypes[1])?);
    let tiles = [s.n.div_ceil(TILE), s.m.div_ceil(TILE), s.batch];
    if tiles[1..].iter().any(|&tiles| tiles > MOST_TILES) {
        let why = format!("has {} rows in {} matrices, more than our kernel takes", s.m, s.batch);
        return Err(unsupported(call, &why));
    }
    let (addend, addend_dtype, addend_row) = match s.addend {
        Addend::None => (Arg::Null, s.dtypes[2], 0),
        Addend::Result => (Arg::Pointer(c), s.dtypes[2], s.n),
        Addend::Matrix => (addend.map_or(Arg::Null, Arg::Pointer), s.dtypes[2], s.n),
        Addend::Row(dtype) => (addend.map_or(Arg::Null, Arg::Pointer), dtype, 0),
    };
    let strides = |rows: usize, columns: usize, transposed: bool| {
        if transposed { [i64(1), i64(rows)] } else { [i64(columns), i64(1)] }
    };
    let mut shape = vec![Arg::I32(s.m as i32), Arg::I32(s.n as i32), Arg::I32(s.k as i32)];
    shape.extend(strides(s.m, s.k, s.transpose_a));
    shape.extend(strides(s.k, s.n, s.transpose_b));
    shape.extend([s.m * s.k, s.k * s.n, s.m * s.n, addend_row].map(i64));
    let args = vec![
        Arg::Pointer(a),
        Arg::Pointer(b),
        Arg::Pointer(c),
        kind(s.dtypes[2]),
        addend,
        kind(addend_dtype),
        Arg::Struct(shape),
    ];
    to.launch_grid(kernel, tiles.map(|tiles| tiles as u32), [256, 1], 0, args);
    Ok(())
}

/// The largest power of two that divides all places.
fn alignment_of(places: &[Option<Place>]) -> u64 {
    let all = places.iter().flatten().fold(ALIGNMENT, |all, place| all | place.0);
    1 << all.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_is_that_of_the_worst_place() {
        let of = |places: &[u64]| {
            alignment_of(&places.iter().map(|&place| Some(Place(place))).collect::<Vec<_>>())
        };
        assert_eq!(of(&[0, 256, 512]), 256);
        assert_eq!(of(&[0, 256, 12]), 4);
        assert_eq!(of(&[1024, 96]), 32);
    }
}
