//! Feed-forward networks in tiles of rows: products and activations on scratch, one tile after the other.
//!
//! The result may lie over the rows it was made of, so a tile's inputs are read for the last time before its result is
//! written.

use plimsoll_exec::ExecError;
use plimsoll_graph::DType;
use plimsoll_graph::op::{Activation, Gelu, Mlp};

use super::elementwise::blocks;
use super::launch::Arg;
use super::lowering::{Call, Lowering, Operand, i64, lanes, suffix};
use super::product::{Matrix, Plus, grad_weight, product};
use super::sums::{Total, sum_rows};

/// A network and its parameters.
struct Network<'a> {
    form: Mlp,
    weights: &'a [Operand],
    biases: &'a [Operand],
    suffix: &'static str,
    dtype: DType,
    /// Columns between the products.
    hidden: usize,
}

impl<'a> Network<'a> {
    fn new(call: &Call<'a>, form: Mlp, first: usize) -> Result<Network<'a>, ExecError> {
        let (weights, biases) = call.inputs[first..].split_at(form.products());
        let dtype = call.inputs[0].ty.dtype;
        let hidden = weights[0].shape()[usize::from(form.transposed)];
        Ok(Network { form, weights, biases, suffix: suffix(call, dtype)?, dtype, hidden })
    }

    fn last(&self) -> usize {
        self.weights.len() - 1
    }

    fn scratch(&self, to: &mut Lowering, rows: usize) -> Matrix {
        Matrix::of(&to.value([rows, self.hidden], self.dtype))
    }

    /// Linear layer `index` of `x`.
    fn layer(
        &self,
        to: &mut Lowering,
        call: &Call,
        index: usize,
        [x, y]: [Matrix; 2],
    ) -> Result<(), ExecError> {
        let weight = Matrix::of(&self.weights[index]);
        product(
            to,
            call,
            [(x, false), (weight, !self.form.transposed)],
            y,
            Plus::bias(self.biases.get(index)),
        )
    }

    /// The gradient that layer `index` sends back, added where `plus` says so.
    fn send_back(
        &self,
        to: &mut Lowering,
        call: &Call,
        index: usize,
        [dz, dx]: [Matrix; 2],
        plus: Plus,
    ) -> Result<(), ExecError> {
        let weight = Matrix::of(&self.weights[index]);
        product(to, call, [(dz, false), (weight, self.form.transposed)], dx, plus)
    }

    fn kernel(&self, gradient: bool) -> String {
        let name = match self.form.activation {
            Activation::Swiglu => "swiglu",
            Activation::Gelu(Gelu::Tanh) => "gelu_tanh",
            Activation::Gelu(Gelu::Erf) => "gelu_erf",
        };
        format!("{name}{}_{}", if gradient { "_grad" } else { "" }, self.suffix)
    }

    /// An elementwise kernel over matrices of one shape, the results last.
    fn each(&self, to: &mut Lowering, gradient: bool, operands: &[Matrix]) {
        let count = operands[0].rows * operands[0].columns;
        let mut args: Vec<Arg> = operands.iter().map(|matrix| Arg::Pointer(matrix.place)).collect();
        args.push(i64(count));
        if operands.len() == 3 {
            args.push(i64(count)); // a function of two: the second is as long as the first
        }
        to.launch(self.kernel(gradient), blocks(count, lanes(self.dtype)), 256, args);
    }

    /// The products before the activation, and the activation.
    fn activate(&self, to: &mut Lowering, call: &Call, x: Matrix, tile: &Tile) -> Result<(), ExecError> {
        for (index, z) in tile.leading.iter().enumerate() {
            self.layer(to, call, index, [x, *z])?;
        }
        self.each(to, false, &[&tile.leading[..], &[tile.hidden]].concat());
        Ok(())
    }
}

/// Scratch of one tile.
struct Tile {
    /// Results of the products before the activation.
    leading: Vec<Matrix>,
    hidden: Matrix,
}

impl Tile {
    fn new(to: &mut Lowering, network: &Network, rows: usize) -> Tile {
        let leading = (0..network.last()).map(|_| network.scratch(to, rows)).collect();
        Tile { leading, hidden: network.scratch(to, rows) }
    }

    /// The first `rows` rows of the tile.
    fn of_rows(&self, rows: usize) -> Tile {
        let leading = self.leading.iter().map(|z| z.rows_from(0, rows)).collect();
        Tile { leading, hidden: self.hidden.rows_from(0, rows) }
    }
}

pub(super) fn mlp(to: &mut Lowering, call: &Call, form: Mlp) -> Result<(), ExecError> {
    let network = Network::new(call, form, 1)?;
    let (x, y) = (Matrix::of(&call.inputs[0]), Matrix::of(&call.outputs[0]));
    let most = form.rows.min(x.rows);
    let tile = Tile::new(to, &network, most);
    for first in (0..x.rows).step_by(most.max(1)) {
        let rows = most.min(x.rows - first);
        let tile = tile.of_rows(rows);
        network.activate(to, call, x.rows_from(first, rows), &tile)?;
        network.layer(to, call, network.last(), [tile.hidden, y.rows_from(first, rows)])?;
    }
    Ok(())
}

pub(super) fn mlp_grad(
    to: &mut Lowering,
    call: &Call,
    form: Mlp,
    weights: bool,
    biases: bool,
) -> Result<(), ExecError> {
    let network = Network::new(call, form, 2)?;
    let [x, dy] = [0, 1].map(|index| Matrix::of(&call.inputs[index]));
    let dx = Matrix::of(&call.outputs[0]);
    let (dw, db) = call.outputs[1..].split_at(if weights { form.products() } else { 0 });
    let sums = Sums { dw, db: if biases { db } else { &[] } };
    let most = form.rows.min(x.rows);
    let tile = Tile::new(to, &network, most);
    let dhidden = network.scratch(to, most);
    for first in (0..x.rows).step_by(most.max(1)) {
        let rows = most.min(x.rows - first);
        let [x, dy, dx] = [x, dy, dx].map(|matrix| matrix.rows_from(first, rows));
        let (tile, dhidden) = (tile.of_rows(rows), dhidden.rows_from(0, rows));
        network.activate(to, call, x, &tile)?;
        let last = network.last();
        network.send_back(to, call, last, [dy, dhidden], Plus::Nothing)?;
        sums.add(to, call, &network, last, ([tile.hidden, dy], first > 0))?;
        // Gradients take the places of the values they belong to.
        let operands = [&tile.leading[..], &[dhidden], &tile.leading[..]].concat();
        network.each(to, true, &operands);
        for (index, &dz) in tile.leading.iter().enumerate() {
            sums.add(to, call, &network, index, ([x, dz], first > 0))?;
        }
        for (index, &dz) in tile.leading.iter().enumerate() {
            network.send_back(to, call, index, [dz, dx], Plus::result_if(index > 0))?;
        }
    }
    Ok(())
}

/// Gradients of the parameters, as far as they are wanted.
struct Sums<'a> {
    dw: &'a [Operand],
    db: &'a [Operand],
}

impl Sums<'_> {
    /// Adds one tile's contribution to the gradients of layer `index`, or starts with it.
    fn add(
        &self,
        to: &mut Lowering,
        call: &Call,
        network: &Network,
        index: usize,
        ([x, dz], later): ([Matrix; 2], bool),
    ) -> Result<(), ExecError> {
        if let Some(dw) = self.dw.get(index) {
            let adds = dw.accumulate || later;
            grad_weight(to, call, [x, dz], (Matrix::of(dw), adds), network.form.transposed)?;
        }
        if let Some(db) = self.db.get(index) {
            let total = Total { adds: db.accumulate || later, ..Total::of(db) };
            sum_rows(to, call, (dz.place, dz.dtype), [dz.rows, dz.columns], total)?;
        }
        Ok(())
    }
}
