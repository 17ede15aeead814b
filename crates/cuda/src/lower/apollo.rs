//! APOLLO: a gradient scaled by moments of its random projection.
//!
//! ```text
//! scratch   factors of all channels | of one matrix: P, R, and ‖R‖² and ‖g‖² of each channel
//! ```
//!
//! The projection and its product are f32 for gradients of either type.

use plimsoll_exec::ExecError;
use plimsoll_graph::DType;
use plimsoll_graph::op::{Apollo, ApolloScaling, Muon};

use super::elementwise::blocks;
use super::launch::Arg;
use super::lowering::{Call, Lowering, Operand, i64, suffix};
use super::place::Place;
use super::product::{Matrix, Plus, product};
use super::sums::{Total, chunks, column_tiles, finish};
use super::updates::{UPDATED, ranges, weights_name};

pub(super) fn apollo(to: &mut Lowering, call: &Call, rates: Apollo) -> Result<(), ExecError> {
    let (grad, [lr, step, scale]) = (&call.inputs[0], [1, 2, 3].map(|index| call.inputs[index].pointer()));
    let shape = grad.shape();
    let [matrices, _, longer] = Muon::extents(shape);
    let whole = Matrix::of(grad);
    let factors = to.take(4 * (matrices * longer) as u64);
    let state = &call.outputs[rates.stored.types(shape, 0).len()..];
    for matrix in 0..matrices {
        let rows = whole.rows / matrices;
        let own = One {
            g: whole.rows_from(matrix * rows, rows),
            matrix,
            factors: place_of(factors, matrix * longer),
        };
        own.scale(to, call, rates, state)?;
    }
    let root = f64::from(rates.scale).sqrt() as f32;
    let mut by = [rates.beta1, rates.beta2, root, rates.weight_decay].map(Arg::F32).to_vec();
    by.extend([i64(whole.rows / matrices.max(1)), i64(whole.columns)]);
    let args =
        vec![ranges(call, grad, rates.stored, 0), lr, step, scale, Arg::Pointer(factors), Arg::Struct(by)];
    let kernel = format!("apollo_{}", weights_name(rates.stored));
    to.launch(kernel, grad.count().div_ceil(UPDATED), 256, args);
    Ok(())
}

/// The f32 number `index` behind a place.
fn place_of(place: Place, index: usize) -> Place {
    place.after(4 * index as u64)
}

/// One matrix of a parameter.
struct One {
    g: Matrix,
    matrix: usize,
    /// The factors of the matrix.
    factors: Place,
}

impl One {
    fn tall(&self) -> bool {
        self.g.rows >= self.g.columns
    }

    fn longer(&self) -> usize {
        self.g.rows.max(self.g.columns)
    }

    /// Moves the moments on and leaves the factors of the matrix.
    fn scale(
        &self,
        to: &mut Lowering,
        call: &Call,
        rates: Apollo,
        state: &[Operand],
    ) -> Result<(), ExecError> {
        let (mark, scale) = (to.mark(), call.inputs[3].pointer());
        let low = self.project(to, call, rates)?;
        let of_low = to.take(4 * self.longer() as u64);
        let rest = |beta: f32| (1.0 - f64::from(beta)) as f32;
        let moving = [rates.beta1, rest(rates.beta1), rates.beta2, rest(rates.beta2), rates.epsilon];
        let first = (self.matrix * self.longer() * rates.rank * state[0].ty.dtype.bytes()) as u64;
        let mut args = vec![Arg::Pointer(low)];
        args.extend(state[..2].iter().map(|moment| Arg::Pointer(moment.place.after(first))));
        args.extend([state[0].kind(), scale.clone(), Arg::Struct(moving.map(Arg::F32).into())]);
        args.extend([i64(rates.rank), Arg::Pointer(self.factors), Arg::Pointer(of_low)]);
        to.launch("apollo_channels", self.longer(), 256, args);
        let squares = self.squares(to, call)?;
        let whole = Arg::I32(i32::from(rates.scaling == ApolloScaling::Tensor));
        let limit = vec![Arg::F32(Apollo::GROWTH), Arg::F32(Apollo::LEAST_NORM), whole];
        let norm = place_of(state[2].place, self.matrix);
        let mut args: Vec<Arg> = [self.factors, of_low, squares, norm].map(Arg::Pointer).into();
        args.extend([scale, Arg::Struct(limit), i64(self.longer())]);
        to.launch("apollo_factors", 1, 256, args);
        to.release(mark);
        Ok(())
    }

    /// The projection: `rank` numbers for each channel.
    fn project(&self, to: &mut Lowering, call: &Call, rates: Apollo) -> Result<Place, ExecError> {
        let (rank, shorter) = (rates.rank, self.g.rows.min(self.g.columns));
        let (count, dtype) = (rank * shorter, DType::F32);
        let low = to.take(4 * (self.longer() * rank) as u64);
        let mark = to.mark();
        let p = Matrix { place: to.take(4 * count as u64), dtype, rows: rank, columns: shorter };
        let name = rates.stream.wrapping_add(self.matrix as u64);
        let deviation = (1.0 / (rank as f64).sqrt()) as f32;
        let mut args = vec![Arg::Pointer(p.place), call.inputs[4].pointer(), call.inputs[2].pointer()];
        args.extend([Arg::U64(name), i64(rates.gap), Arg::F32(deviation), i64(count)]);
        to.launch("apollo_projection", blocks(count, 4), 256, args);
        let result = Matrix { place: low, dtype, rows: self.longer(), columns: rank };
        product(to, call, [(self.g, !self.tall()), (p, true)], result, Plus::Nothing)?;
        to.release(mark);
        Ok(low)
    }

    /// The squared norm of each channel of the gradient.
    fn squares(&self, to: &mut Lowering, call: &Call) -> Result<Place, ExecError> {
        let Matrix { place, dtype, rows, columns } = self.g;
        let (scale, sums) = (call.inputs[3].pointer(), to.value([self.longer()], DType::F32));
        if self.tall() {
            let mut args = vec![Arg::Pointer(place), call.inputs[0].kind(), scale, sums.pointer()];
            args.extend([i64(columns), Arg::F32(0.0)]);
            to.launch("squares_of_rows", rows, 256, args);
            return Ok(sums.place);
        }
        let (pieces, chunk) = chunks(rows);
        let partial = to.take(4 * (pieces * columns) as u64);
        let mut args = vec![Arg::Pointer(place), scale, Arg::Pointer(partial)];
        args.extend([i64(rows), i64(columns), i64(chunk), Arg::F32(0.0)]);
        let grid = [column_tiles(columns, dtype) as u32, pieces as u32, 1];
        let kernel = format!("squares_of_columns_{}", suffix(call, dtype)?);
        to.launch_grid(kernel, grid, [32, 8], 0, args);
        finish(to, partial, [1, pieces, columns], Total::of(&sums));
        Ok(sums.place)
    }
}
