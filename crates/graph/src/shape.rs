//! Static shapes, row-major.

use std::fmt;
use std::ops::Deref;

use crate::DType;

/// The most axes a shape may have (a pixel shuffle needs six).
pub const MAX_RANK: usize = 6;

/// Extents of a value, outermost axis first. A scalar has no axes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    extents: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// The shape of a scalar.
    pub const SCALAR: Shape = Shape { extents: [1; MAX_RANK], rank: 0 };

    /// A shape from its extents, or `None` when there are more than [`MAX_RANK`].
    pub fn new(extents: &[usize]) -> Option<Shape> {
        let mut shape = Shape::SCALAR;
        shape.extents.get_mut(..extents.len())?.copy_from_slice(extents);
        shape.rank = extents.len() as u8;
        Some(shape)
    }

    /// Number of elements. It saturates at `usize::MAX`, so that no shape seems smaller than it is; the builder refuses
    /// such shapes.
    pub fn elements(&self) -> usize {
        self.iter().fold(1, |product: usize, &extent| product.saturating_mul(extent))
    }

    /// Extent of the innermost axis (1 for a scalar).
    pub fn columns(&self) -> usize {
        self.last().copied().unwrap_or(1)
    }

    /// Elements divided by [`columns`](Self::columns): the shape seen as a matrix.
    pub fn rows(&self) -> usize {
        self.iter().rev().skip(1).fold(1, |product: usize, &extent| product.saturating_mul(extent))
    }

    /// This shape without the axes in `axes`.
    #[must_use]
    pub fn without(&self, axes: Axes) -> Shape {
        let mut kept = Shape::SCALAR;
        for (_, &extent) in self.iter().enumerate().filter(|(axis, _)| !axes.contains(*axis)) {
            kept.extents[kept.rank as usize] = extent;
            kept.rank += 1;
        }
        kept
    }

    /// This shape with the extent of `axis` replaced.
    #[must_use]
    pub fn with(&self, axis: usize, extent: usize) -> Shape {
        let mut changed = *self;
        changed.extents[axis] = extent;
        changed
    }

    /// Whether `suffix` equals the innermost axes of this shape (a scalar always does).
    pub fn ends_with_shape(&self, suffix: &Shape) -> bool {
        self.ends_with(suffix)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(extents: [usize; N]) -> Shape {
        const { assert!(N <= MAX_RANK, "a shape has at most six axes") };
        let mut shape = Shape::SCALAR;
        shape.extents[..N].copy_from_slice(&extents);
        shape.rank = N as u8;
        shape
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.extents[..self.rank as usize]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, extent) in self.iter().enumerate() {
            let comma = if axis == 0 { "" } else { "," };
            write!(f, "{comma}{extent}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A set of axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Axes(u8);

impl Axes {
    /// The set holding the given axes.
    pub fn of(axes: impl IntoIterator<Item = usize>) -> Axes {
        Axes(axes.into_iter().fold(0, |bits, axis| bits | 1 << axis))
    }

    /// Whether `axis` is in the set.
    pub fn contains(self, axis: usize) -> bool {
        self.0 >> axis & 1 == 1
    }

    /// The axes in rising order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_RANK).filter(move |&axis| self.contains(axis))
    }
}

/// Shape and element type of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Type {
    /// Extents.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
}

impl Type {
    /// An `f32` value of this shape.
    pub fn f32(shape: impl Into<Shape>) -> Type {
        Type { shape: shape.into(), dtype: DType::F32 }
    }

    /// An `i32` value of this shape.
    pub fn i32(shape: impl Into<Shape>) -> Type {
        Type { shape: shape.into(), dtype: DType::I32 }
    }

    /// Bytes of the value, without alignment.
    pub fn bytes(&self) -> usize {
        self.shape.elements().saturating_mul(self.dtype.bytes())
    }

    /// Whether a machine could address the value: its bytes are at most `isize::MAX`, however its axes are multiplied.
    pub(crate) fn is_addressable(&self) -> bool {
        let axes = self.shape.iter().map(|&extent| extent.max(1));
        let elements = axes.fold(1, |product: usize, extent| product.saturating_mul(extent));
        isize::try_from(elements.saturating_mul(self.dtype.bytes())).is_ok()
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_reads_as_a_matrix() {
        let shape = Shape::from([2, 3, 4]);
        assert_eq!((shape.rows(), shape.columns(), shape.elements()), (6, 4, 24));
        assert_eq!((Shape::SCALAR.rows(), Shape::SCALAR.columns()), (1, 1));
    }

    #[test]
    fn axes_can_be_removed() {
        assert_eq!(Shape::from([2, 3, 4]).without(Axes::of([0, 2])), Shape::from([3]));
    }

    #[test]
    fn a_shape_beyond_all_memory_does_not_wrap_to_a_small_one() {
        let huge = Type::f32([1 << 62, 4]);
        assert_eq!((huge.shape.elements(), huge.bytes()), (usize::MAX, usize::MAX));
        assert!(!huge.is_addressable() && !Type::f32([0, 1 << 62, 1 << 62]).is_addressable());
        assert!(Type::f32([1 << 40]).is_addressable());
    }

    #[test]
    fn a_seventh_axis_is_refused() {
        assert_eq!(Shape::new(&[1; 7]), None);
    }
}
