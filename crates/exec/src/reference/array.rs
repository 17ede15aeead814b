//! The operand of reference kernels: a shape and its elements as `f64`.
//!
//! Every element type fits into `f64` exactly, so one form serves all of them, sums lose nothing that
//! matters, and each result is rounded once, when it is stored.

use plimsoll_graph::Shape;

use super::Tensor;

/// Elements of a value, row-major.
#[derive(Clone, Debug)]
pub(super) struct Array {
    pub(super) shape: Shape,
    pub(super) data: Vec<f64>,
}

impl Array {
    pub(super) fn of(tensor: &Tensor) -> Array {
        Array { shape: tensor.ty.shape, data: tensor.numbers() }
    }

    pub(super) fn zeros(shape: impl Into<Shape>) -> Array {
        let shape = shape.into();
        Array { shape, data: vec![0.0; shape.elements()] }
    }

    pub(super) fn scalar(number: f64) -> Array {
        Array { shape: Shape::SCALAR, data: vec![number] }
    }

    /// An array whose element at each position is given by `element`.
    pub(super) fn build(shape: impl Into<Shape>, element: impl Fn(&[usize]) -> f64) -> Array {
        let shape = shape.into();
        Array { shape, data: positions(shape).map(|position| element(&position)).collect() }
    }

    pub(super) fn map(&self, function: impl Fn(f64) -> f64) -> Array {
        Array { shape: self.shape, data: self.data.iter().map(|&x| function(x)).collect() }
    }

    /// The element at a position.
    pub(super) fn at(&self, position: &[usize]) -> f64 {
        self.data[self.flat(position)]
    }

    /// Adds to the element at a position.
    pub(super) fn add_at(&mut self, position: &[usize], number: f64) {
        let flat = self.flat(position);
        self.data[flat] += number;
    }

    /// The elements along the last axis, at a position on the axes before it.
    pub(super) fn row(&self, leading: &[usize]) -> &[f64] {
        let first = self.flat(leading) * self.shape.columns();
        &self.data[first..first + self.shape.columns()]
    }

    /// As [`row`](Self::row), to write.
    pub(super) fn row_mut(&mut self, leading: &[usize]) -> &mut [f64] {
        let (first, columns) = (self.flat(leading) * self.shape.columns(), self.shape.columns());
        &mut self.data[first..first + columns]
    }

    /// All rows of the array seen as a matrix.
    pub(super) fn rows(&self) -> std::slice::ChunksExact<'_, f64> {
        self.data.chunks_exact(self.shape.columns())
    }

    /// The elements of a scalar or of an array of one.
    pub(super) fn only(&self) -> f64 {
        self.data[0]
    }

    fn flat(&self, position: &[usize]) -> usize {
        position.iter().zip(self.shape.iter()).fold(0, |flat, (index, extent)| flat * extent + index)
    }
}

/// All positions of a shape, the last axis running fastest.
pub(super) fn positions(shape: Shape) -> impl Iterator<Item = Vec<usize>> {
    (0..shape.elements()).map(move |mut flat| {
        let mut position = vec![0; shape.len()];
        for axis in (0..shape.len()).rev() {
            position[axis] = flat % shape[axis];
            flat /= shape[axis];
        }
        position
    })
}

/// `Σ aᵢ·bᵢ`.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// `sum += factor · x`.
pub(super) fn add_scaled(sum: &mut [f64], factor: f64, x: &[f64]) {
    for (slot, element) in sum.iter_mut().zip(x) {
        *slot += factor * element;
    }
}
