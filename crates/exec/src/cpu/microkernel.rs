//! The innermost loop of a matrix product: one tile of the result, kept in registers.
//!
//! ```text
//!            VECTORS · lanes columns
//!           ┌───────────────┐
//!         b │ depth         │        per step of depth: load VECTORS vectors of `b`, spread one
//!           └───────────────┘        number of `a` after the other over a vector, and multiply-add
//!   ┌─────┐ ┌───────────────┐        each pair into its register of the tile. `a` and `b` lie packed
//! a │     │ │ tile          │ ROWS   in the order in which this loop reads them.
//!   └─────┘ └───────────────┘
//! ```
//!
//! The sum of an element begins with its entry in `base` and takes the products in the order of depth. So cutting the
//! depth into blocks, each continuing the last, changes no bit: a product is the same for any blocking, any number of
//! threads and any tile. The fused multiply-adds of AVX-512 and AVX2 round alike; only the portable tile rounds twice.
//!
//! AVX512-BF16 multiplies bf16 by bf16: a 32-bit word holds the numbers of two steps, and `vdpbf16ps` adds the product
//! of the upper halves to the sum, rounds, adds that of the lower ones, and rounds again. Packing puts the earlier step
//! into the upper half, so the sum is bit for bit the chain that AVX-512 computes from the widened numbers, and twice
//! as fast. One thing differs: the instruction ignores the control register. It takes numbers below 2⁻¹²⁶, read or
//! summed, as zeros, and rounds to nearest even.
//!
//! The tile sizes: AVX-512 has 32 registers, 12×2 sums leave room for 2 of `b` and the spread `a`; AVX2
//! has 16, taken by 4×3 sums, 3 of `b` and one of `a`.
#![allow(unsafe_code, reason = "vector instructions on packed panels")]

use super::Instructions;

/// Tile heights are multiples of this.
pub(super) const ROW_STEP: usize = 4;
/// The most rows of a tile on any instruction set.
pub(super) const MOST_ROWS: usize = 12;
/// The most columns of a tile on any instruction set.
pub(super) const MOST_COLUMNS: usize = 32;

/// One tile to compute: `c = base + a·b`.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Products per element, or pairs of them; see [`Microkernel::steps`].
    pub(super) depth: usize,
    /// `depth` groups of as many numbers, or pairs of bf16, as the tile has rows.
    pub(super) a: *const f32,
    /// `depth` groups of as many numbers, or pairs of bf16, as the tile has columns.
    pub(super) b: *const f32,
    /// First value of the sums; null for zero.
    pub(super) base: *const f32,
    /// Distance between rows of `base`.
    pub(super) base_stride: usize,
    /// Where the result goes. May be `base`.
    pub(super) c: *mut f32,
    /// Distance between rows of `c`.
    pub(super) c_stride: usize,
    /// Rows that exist in `base` and `c`; the rest of the tile's rows are padding.
    pub(super) rows: usize,
}

type TileFunction = unsafe fn(&Tile);

/// The tiles of one instruction set.
pub(super) struct Microkernel {
    /// Steps of depth in a 32-bit word: one f32, or two bf16.
    pub(super) steps: usize,
    /// Words in a vector.
    pub(super) lanes: usize,
    /// The most columns of a tile.
    pub(super) columns: usize,
    /// The most rows of a tile.
    pub(super) rows: usize,
    /// `tiles[rows / ROW_STEP - 1][columns / lanes - 1]`.
    tiles: &'static [&'static [TileFunction]],
}

impl Microkernel {
    /// Computes a tile of `rows` (a multiple of [`ROW_STEP`]) and `columns` (a multiple of `lanes`).
    ///
    /// # Safety
    ///
    /// `a` and `b` must hold `depth` groups of `rows` and `columns` words; `tile.rows` rows of `columns`
    /// numbers must be readable at `base` unless it is null, and writable at `c` by this thread alone.
    pub(super) unsafe fn run(&self, rows: usize, columns: usize, tile: &Tile) {
        let function = self.tiles[rows / ROW_STEP - 1][columns / self.lanes - 1];
        // SAFETY: promised by the caller; `choose` returned these tiles only if their instructions exist.
        unsafe { function(tile) }
    }
}

/// The fastest tiles of these instructions, which the processor must have. `halves` says that both factors are bf16.
pub(super) fn choose(instructions: Instructions, halves: bool) -> &'static Microkernel {
    assert!(instructions.is_here(), "the processor has no {instructions}");
    #[cfg(target_arch = "x86_64")]
    match instructions {
        Instructions::Avx512Bf16 if halves => return &AVX512_BF16,
        Instructions::Avx512 | Instructions::Avx512Bf16 => return &AVX512,
        Instructions::Avx2 => return &AVX2,
        Instructions::Portable => {}
    }
    let _ = halves;
    &PORTABLE
}

macro_rules! tile_function {
    ($(#[$attribute:meta])* $name:ident, $lanes:literal, $zero:path, $load:path, $spread:path, $fused:path, $store:path) => {
        $(#[$attribute])*
        #[allow(clippy::needless_range_loop, reason = "constant bounds keep `sums` in registers")]
        unsafe fn $name<const ROWS: usize, const VECTORS: usize>(tile: &Tile) {
            // SAFETY: the caller of `Microkernel::run` promised the extents that these loops walk.
            unsafe {
                let mut sums = [[$zero(); VECTORS]; ROWS];
                if !tile.base.is_null() {
                    for row in 0..ROWS {
                        for vector in 0..VECTORS {
                            if row < tile.rows {
                                sums[row][vector] = $load(tile.base.add(row * tile.base_stride + vector * $lanes));
                            }
                        }
                    }
                }
                let (mut a, mut b) = (tile.a, tile.b);
                for _ in 0..tile.depth {
                    let mut right = [$zero(); VECTORS];
                    for vector in 0..VECTORS {
                        right[vector] = $load(b.add(vector * $lanes));
                    }
                    for row in 0..ROWS {
                        let left = $spread(*a.add(row));
                        for vector in 0..VECTORS {
                            sums[row][vector] = $fused(left, right[vector], sums[row][vector]);
                        }
                    }
                    a = a.add(ROWS);
                    b = b.add(VECTORS * $lanes);
                }
                for row in 0..ROWS {
                    for vector in 0..VECTORS {
                        if row < tile.rows {
                            $store(tile.c.add(row * tile.c_stride + vector * $lanes), sums[row][vector]);
                        }
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
use x86::{AVX2, AVX512, AVX512_BF16};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m512, __m512bh, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps,
        _mm256_storeu_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps,
        _mm512_setzero_ps, _mm512_storeu_ps,
    };

    use super::{Microkernel, Tile};

    tile_function!(
        #[target_feature(enable = "avx512f")]
        avx512,
        16,
        _mm512_setzero_ps,
        _mm512_loadu_ps,
        _mm512_set1_ps,
        _mm512_fmadd_ps,
        _mm512_storeu_ps
    );
    tile_function!(
        #[target_feature(enable = "avx2,fma")]
        avx2,
        8,
        _mm256_setzero_ps,
        _mm256_loadu_ps,
        _mm256_set1_ps,
        _mm256_fmadd_ps,
        _mm256_storeu_ps
    );

    tile_function!(
        #[target_feature(enable = "avx512f,avx512bf16")]
        avx512_bf16,
        16,
        _mm512_setzero_ps,
        _mm512_loadu_ps,
        _mm512_set1_ps,
        paired,
        _mm512_storeu_ps
    );

    /// `sum` with the products of the upper halves of each word, then with those of the lower ones.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn paired(left: __m512, right: __m512, sum: __m512) -> __m512 {
        // SAFETY: 16 words are 32 halves in the same 64 bytes, and every pattern of bits is one of both.
        let halves = |words: __m512| unsafe { std::mem::transmute::<__m512, __m512bh>(words) };
        _mm512_dpbf16_ps(sum, halves(left), halves(right))
    }

    pub(super) static AVX512_BF16: Microkernel = Microkernel {
        steps: 2,
        lanes: 16,
        columns: 32,
        rows: 12,
        tiles: &[
            &[avx512_bf16::<4, 1>, avx512_bf16::<4, 2>],
            &[avx512_bf16::<8, 1>, avx512_bf16::<8, 2>],
            &[avx512_bf16::<12, 1>, avx512_bf16::<12, 2>],
        ],
    };

    pub(super) static AVX512: Microkernel = Microkernel {
        steps: 1,
        lanes: 16,
        columns: 32,
        rows: 12,
        tiles: &[
            &[avx512::<4, 1>, avx512::<4, 2>],
            &[avx512::<8, 1>, avx512::<8, 2>],
            &[avx512::<12, 1>, avx512::<12, 2>],
        ],
    };

    pub(super) static AVX2: Microkernel = Microkernel {
        steps: 1,
        lanes: 8,
        columns: 24,
        rows: 4,
        tiles: &[&[avx2::<4, 1>, avx2::<4, 2>, avx2::<4, 3>]],
    };
}

/// Four floats as an array: every compiler makes one register of it.
type Quad = [f32; 4];

fn zero() -> Quad {
    [0.0; 4]
}

fn spread(x: f32) -> Quad {
    [x; 4]
}

fn fused(a: Quad, b: Quad, c: Quad) -> Quad {
    std::array::from_fn(|i| a[i] * b[i] + c[i])
}

unsafe fn load(from: *const f32) -> Quad {
    // SAFETY: the tile function stays inside the extents it was promised.
    unsafe { from.cast::<Quad>().read_unaligned() }
}

unsafe fn store(to: *mut f32, quad: Quad) {
    // SAFETY: as for `load`.
    unsafe { to.cast::<Quad>().write_unaligned(quad) }
}

tile_function!(portable, 4, zero, load, spread, fused, store);

static PORTABLE: Microkernel =
    Microkernel { steps: 1, lanes: 4, columns: 8, rows: 4, tiles: &[&[portable::<4, 1>, portable::<4, 2>]] };
