//! Products of small matrices that lie in cache, for attention.
//!
//! A block of rows times a few vectors of columns is kept in registers while the inner index runs. The
//! operand that supplies single numbers may have any strides, so a transposed factor costs nothing; the
//! one that supplies vectors has contiguous rows. Large products, which need packing and cache blocking,
//! are elsewhere. Fused multiplication is used where the instructions have it: bits may differ between
//! instruction paths, never between runs or numbers of threads. Products of bf16 are not here: weights of attention would have
//! to be rounded first.
#![allow(
    clippy::inline_always,
    reason = "inner loops must be compiled with their callers' vector instructions"
)]
#![allow(unsafe_code, reason = "vector instructions, and loads without a bounds check in the inner loop")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, __m512, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_storeu_ps,
    _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_storeu_ps,
};

#[cfg(target_arch = "x86_64")]
use super::Instructions;

/// `c = a·b`, or `c += a·b`, with `a (m, k)`, `b (k, n)`, `c (m, n)`.
pub(super) struct Product<'a> {
    /// The factor that supplies single numbers.
    pub(super) a: &'a [f32],
    /// Distance between neighbours in a column and in a row of `a`.
    pub(super) a_strides: [usize; 2],
    /// Supplies vectors.
    pub(super) b: &'a [f32],
    /// Distance between rows of `b`.
    pub(super) b_stride: usize,
    /// Extents `[m, n, k]`.
    pub(super) extents: [usize; 3],
    /// Whether to add to the content of `c`.
    pub(super) add: bool,
}

impl Product<'_> {
    /// Computes the product into `c`, whose rows lie `c_stride` apart.
    pub(super) fn into(self, c: &mut [f32], c_stride: usize) {
        // SAFETY: `check` finds every index to lie inside its slice.
        unsafe { self.check(c, c_stride).at_full_width() }
    }

    fn check(self, c: &mut [f32], c_row: usize) -> Tiles {
        let [m, n, k] = self.extents;
        let ([a_row, a_column], b_row) = (self.a_strides, self.b_stride);
        assert!(m > 0 && n > 0 && k > 0, "an empty product");
        assert!((m - 1) * a_row + (k - 1) * a_column < self.a.len(), "a is too short");
        assert!((k - 1) * b_row + n <= self.b.len(), "b is too short");
        assert!((m - 1) * c_row + n <= c.len(), "c is too short");
        let (a, b, c) = (self.a.as_ptr(), self.b.as_ptr(), c.as_mut_ptr());
        Tiles { a, a_row, a_column, b, b_row, c, c_row, m, n, k, add: self.add }
    }
}

/// A vector of floats. The methods must only be called where the machine is known to have it.
trait Vector: Copy {
    const LANES: usize;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn plus(self, other: Self) -> Self;
    /// `self · factor + term`.
    unsafe fn times_plus(self, factor: Self, term: Self) -> Self;
}

macro_rules! vector {
    ($type:ty, $lanes:literal, $splat:ident, $load:ident, $store:ident, $add:ident, $fma:ident) => {
        #[cfg(target_arch = "x86_64")]
        impl Vector for $type {
            const LANES: usize = $lanes;
            #[inline(always)]
            unsafe fn splat(x: f32) -> Self {
                // SAFETY: the caller knows that the machine has this instruction.
                unsafe { $splat(x) }
            }
            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                // SAFETY: as above, and that all lanes may be read.
                unsafe { $load(from) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                // SAFETY: as above, and that all lanes may be written.
                unsafe { $store(to, self) }
            }
            #[inline(always)]
            unsafe fn plus(self, other: Self) -> Self {
                // SAFETY: as for `splat`.
                unsafe { $add(self, other) }
            }
            #[inline(always)]
            unsafe fn times_plus(self, factor: Self, term: Self) -> Self {
                // SAFETY: as for `splat`.
                unsafe { $fma(self, factor, term) }
            }
        }
    };
}

vector!(__m512, 16, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_fmadd_ps);
vector!(__m256, 8, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_fmadd_ps);

/// Any machine: four lanes, or one for the last columns.
impl<const N: usize> Vector for [f32; N] {
    const LANES: usize = N;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller knows that all lanes may be read.
        unsafe { from.cast::<Self>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller knows that all lanes may be written.
        unsafe { to.cast::<Self>().write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn plus(mut self, other: Self) -> Self {
        for (x, y) in self.iter_mut().zip(other) {
            *x += y;
        }
        self
    }
    #[inline(always)]
    unsafe fn times_plus(mut self, factor: Self, term: Self) -> Self {
        for (x, (factor, term)) in self.iter_mut().zip(factor.into_iter().zip(term)) {
            *x = *x * factor + term;
        }
        self
    }
}

#[derive(Clone, Copy)]
struct Tiles {
    a: *const f32,
    a_row: usize,
    a_column: usize,
    b: *const f32,
    b_row: usize,
    c: *mut f32,
    c_row: usize,
    m: usize,
    n: usize,
    k: usize,
    add: bool,
}

impl Tiles {
    /// # Safety
    ///
    /// The operands must have the extents stated.
    unsafe fn at_full_width(self) {
        #[cfg(target_arch = "x86_64")]
        {
            let instructions = super::pool::instructions();
            if instructions >= Instructions::Avx512 {
                // SAFETY: the path has these features, and a pool takes only paths that the processor has.
                return unsafe { self.avx512() };
            }
            if instructions >= Instructions::Avx2 {
                // SAFETY: as above.
                return unsafe { self.avx2() };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.all::<[f32; 4], 4>() }
    }

    /// # Safety
    ///
    /// As for [`Tiles::at_full_width`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
    unsafe fn avx512(self) {
        // SAFETY: this function has the instructions; the rest is its caller's promise. 16 sums, 2 vectors
        // and a splat take 19 of the 32 registers.
        unsafe { self.all::<__m512, 8>() }
    }

    /// # Safety
    ///
    /// As for [`Tiles::at_full_width`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2(self) {
        // SAFETY: as above. 8 sums, 2 vectors and a splat take 11 of the 16 registers.
        unsafe { self.all::<__m256, 4>() }
    }

    /// # Safety
    ///
    /// As for [`Tiles::at_full_width`], and the machine must have `V`.
    #[inline(always)]
    unsafe fn all<V: Vector, const ROWS: usize>(self) {
        let mut column = 0;
        // SAFETY: the columns taken stay below `n`.
        unsafe {
            while column + 2 * V::LANES <= self.n {
                self.columns::<V, ROWS, 2>(column);
                column += 2 * V::LANES;
            }
            while column + V::LANES <= self.n {
                self.columns::<V, ROWS, 1>(column);
                column += V::LANES;
            }
            while column + 4 <= self.n {
                self.columns::<[f32; 4], 4, 1>(column);
                column += 4;
            }
            while column < self.n {
                self.columns::<[f32; 1], 4, 1>(column);
                column += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn columns<V: Vector, const ROWS: usize, const WIDE: usize>(&self, column: usize) {
        let mut row = 0;
        // SAFETY: the rows taken stay below `m`.
        unsafe {
            while row + ROWS <= self.m {
                self.block::<V, ROWS, WIDE>(row, column);
                row += ROWS;
            }
            while row < self.m {
                self.block::<V, 1, WIDE>(row, column);
                row += 1;
            }
        }
    }

    /// `ROWS` rows and `WIDE` vectors of columns of `c`.
    #[inline(always)]
    unsafe fn block<V: Vector, const ROWS: usize, const WIDE: usize>(&self, row: usize, column: usize) {
        // SAFETY: the block lies inside `c`, so its rows lie in `a` and its columns in `b`.
        unsafe {
            let (a, b) = (self.a.add(row * self.a_row), self.b.add(column));
            let mut sums = [[V::splat(0.0); WIDE]; ROWS];
            for inner in 0..self.k {
                let mut vectors = [V::splat(0.0); WIDE];
                for (wide, vector) in vectors.iter_mut().enumerate() {
                    *vector = V::load(b.add(inner * self.b_row + wide * V::LANES));
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let x = V::splat(*a.add(row * self.a_row + inner * self.a_column));
                    for (sum, vector) in sums.iter_mut().zip(vectors) {
                        *sum = x.times_plus(vector, *sum);
                    }
                }
            }
            for (offset, sums) in sums.into_iter().enumerate() {
                for (wide, sum) in sums.into_iter().enumerate() {
                    let c = self.c.add((row + offset) * self.c_row + column + wide * V::LANES);
                    if self.add { V::load(c).plus(sum).store(c) } else { sum.store(c) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trial::{assert_near, numbers};

    /// The copies of the product that this machine can run.
    fn ways() -> Vec<unsafe fn(Tiles)> {
        let mut ways: Vec<unsafe fn(Tiles)> = vec![Tiles::all::<[f32; 4], 4>, Tiles::at_full_width];
        #[cfg(target_arch = "x86_64")]
        if Instructions::Avx2.is_here() {
            ways.push(|tiles| {
                // SAFETY: the processor was asked; the rest is the caller's promise.
                unsafe { tiles.avx2() }
            });
        }
        ways
    }

    fn check_product([m, n, k]: [usize; 3], transposed: bool, add: bool, way: unsafe fn(Tiles)) {
        let (b_stride, c_stride) = (n + 3, n + 1);
        let (a, b, begin) = (numbers(m * k, 1), numbers(k * b_stride, 2), numbers(m * c_stride, 3));
        let a_strides = if transposed { [1, m] } else { [k, 1] };
        let mut c = begin.clone();
        let product = Product { a: &a, a_strides, b: &b, b_stride, extents: [m, n, k], add };
        // SAFETY: `check` finds every index to lie inside its slice.
        unsafe { way(product.check(&mut c, c_stride)) };
        let mut expected: Vec<f64> = begin.iter().map(|&x| x.into()).collect();
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let term =
                |l: usize| f64::from(a[i * a_strides[0] + l * a_strides[1]]) * f64::from(b[l * b_stride + j]);
            let begin = if add { expected[i * c_stride + j] } else { 0.0 };
            expected[i * c_stride + j] = begin + (0..k).map(term).sum::<f64>();
        }
        assert_near(&c, &expected, 5e-7);
    }

    #[test]
    fn products_of_awkward_extents_are_right_with_every_instruction_set() {
        for way in ways() {
            for extents in [[1, 1, 1], [3, 5, 7], [8, 32, 4], [13, 55, 33], [64, 32, 32], [9, 16, 1]] {
                for (transposed, add) in [(false, false), (false, true), (true, false), (true, true)] {
                    check_product(extents, transposed, add, way);
                }
            }
        }
    }
}
