//! The matrix product in single precision, blocked for the caches.
//!
//! ```text
//!                     PANEL
//!                ┌────┬────────┬────┐      `b` is cut into blocks of up to DEPTH × PANEL numbers, small enough
//!              b │    │▒▒▒▒▒▒▒▒│    │ DEPTH for a core's second-level cache. As many blocks as the workspace holds
//!                ├────┼────────┼────┤      (a group) are packed by all threads together. Then threads take
//!                └────┴────────┴────┘      pieces of the result, each some rows of it: block by block, a strip
//!     DEPTH                                of `a` is packed on the stack and stays in the first-level cache
//!   ┌───┬───┐    ┌────┬────────┬────┐      while the tiles of the block pass by.
//! a │   │   │    │    │        │    │
//!   │▒▒▒│   │    │    │▒▒▒▒▒▒▒▒│    │ a strip: up to 12 rows
//!   │   │   │ m  │    │        │    │ c
//!   └───┴───┘    └────┴────────┴────┘
//!     k                   n
//! ```
//!
//! Each element of `c` is one chain of multiply-adds over `k`, in order, begun with zero, with the bias or
//! with what `c` held (see `microkernel`). Threads and workspace decide who computes a tile and when,
//! never how: the bits depend on the operands alone. Cutting a sum over rows into several calls that
//! continue each other changes no bit either.
//!
//! Absent on purpose: splitting `k` between threads, and any allocation.
#![allow(unsafe_code, reason = "threads write tiles of one result side by side")]

use std::ops::Range;

use plimsoll_plan::Workspace;

use super::blocks::Blocks;
use super::microkernel::{self, MOST_COLUMNS, MOST_ROWS, Microkernel, ROW_STEP, Tile};
use super::pack::{View, pack};
use super::pieces;

/// The most products of a block. A strip of `a` is then 12 KiB, a strip of `b` 32 KiB.
const DEPTH: usize = 256;
/// The most columns of a block: with [`DEPTH`], half a MiB.
const PANEL: usize = 512;
/// Columns of a block in the smallest workspace.
const SMALL_PANEL: usize = 64;
/// Blocks are stored in multiples of this many columns, whatever the tiles.
const PANEL_STEP: usize = 16;
/// Bytes of packed blocks beyond which fewer, larger groups bring nothing.
const ENOUGH: u64 = 2 << 20;
/// Below this many multiply-adds, waking another thread costs more than it brings.
const WORTH_SHARING: usize = 1 << 19;
/// Packing a block takes about as long as multiplying this many rows by it.
const PACKING_ROWS: usize = 8;
/// Pieces of a product per thread: more than one, because cores are not equally free.
const PIECES: usize = 4;

/// First value of the sums.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    /// Zero: `c = a·b`.
    Zero,
    /// The numbers in place: `c += a·b`.
    Kept,
    /// The same row for every row: `c = bias + a·b`.
    Bias(&'a [f32]),
    /// A matrix of the result's extents: `c = d + a·b`.
    Matrix(&'a [f32]),
}

/// `(m, k) · (k, n)`.
#[derive(Clone, Copy)]
pub(super) struct Extents {
    /// Rows of the result.
    pub(super) m: usize,
    /// Columns of the result.
    pub(super) n: usize,
    /// Products per element.
    pub(super) k: usize,
}

/// Scratch of a product with these extents.
pub(super) fn workspace(extents: Extents) -> Workspace {
    let bytes = |depth: usize, columns: usize| (4 * depth * columns) as u64;
    let columns = extents.n.next_multiple_of(PANEL_STEP);
    let least = bytes(extents.k.min(DEPTH), columns.min(SMALL_PANEL));
    let everything = bytes(extents.k.next_multiple_of(DEPTH.min(extents.k).max(1)), columns);
    Workspace { least, best: everything.clamp(least, ENOUGH.max(least)) }
}

/// Whether a product is over before sharing it between threads would pay.
pub(super) fn is_small(Extents { m, n, k }: Extents) -> bool {
    m * n * k < 8 * WORTH_SHARING
}

/// `c = start + a·b`. The lines of `a` are its rows, those of `b` its columns; `c` is row-major.
pub(super) fn product(extents: Extents, a: View, b: View, start: Start, c: &mut [f32], scratch: &mut [f32]) {
    product_with(microkernel::choose(), extents, a, b, start, c, scratch);
}

fn product_with(
    kernel: &Microkernel,
    Extents { m, n, k }: Extents,
    a: View,
    b: View,
    start: Start,
    c: &mut [f32],
    scratch: &mut [f32],
) {
    assert_eq!(c.len(), m * n, "the result of a product");
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        return begin(start, c, n);
    }
    let depths = Blocks::new(k, DEPTH, 1);
    let room = scratch.len() / depths.size() / PANEL_STEP * PANEL_STEP;
    assert!(room > 0, "the workspace of a product is too small");
    let panels = Blocks::new(n, room.min(PANEL), kernel.columns);
    let block_columns = panels.size().next_multiple_of(PANEL_STEP);
    let c = c.as_mut_ptr();
    let work = Work {
        kernel,
        a,
        b,
        start: Base::new(start, c, n),
        rows: Blocks::exactly(m, kernel.rows),
        c,
        stride: n,
        panels,
        depths,
        packed: scratch.as_mut_ptr(),
        block_len: block_columns * depths.size(),
    };
    // A group is several blocks along k, or all of them for several panels.
    let blocks = room / block_columns;
    let deep = blocks.min(depths.count());
    let wide = blocks / deep;
    for first_panel in (0..panels.count()).step_by(wide) {
        for first_depth in (0..depths.count()).step_by(deep) {
            let group = Group {
                panels: first_panel..panels.count().min(first_panel + wide),
                depths: first_depth..depths.count().min(first_depth + deep),
            };
            work.pack(&group);
            work.multiply(&group);
        }
    }
}

/// The result of a product without products.
fn begin(start: Start, c: &mut [f32], n: usize) {
    match start {
        Start::Zero => c.fill(0.0),
        Start::Kept => {}
        Start::Bias(bias) => c.chunks_exact_mut(n).for_each(|row| row.copy_from_slice(bias)),
        Start::Matrix(matrix) => c.copy_from_slice(matrix),
    }
}

/// Where sums begin: an address, null for zero, and the distance between rows.
#[derive(Clone, Copy)]
struct Base {
    pointer: *const f32,
    stride: usize,
}

impl Base {
    fn new(start: Start, c: *const f32, n: usize) -> Base {
        match start {
            Start::Zero => Base { pointer: std::ptr::null(), stride: 0 },
            Start::Kept => Base { pointer: c, stride: n },
            Start::Bias(bias) => {
                assert_eq!(bias.len(), n, "the bias of a product");
                Base { pointer: bias.as_ptr(), stride: 0 }
            }
            Start::Matrix(matrix) => Base { pointer: matrix.as_ptr(), stride: n },
        }
    }

    /// The address for an element; null stays null.
    fn at(self, row: usize, column: usize) -> *const f32 {
        if self.pointer.is_null() {
            self.pointer
        } else {
            self.pointer.wrapping_add(row * self.stride + column)
        }
    }
}

/// A product and how it is cut.
struct Work<'a> {
    kernel: &'a Microkernel,
    a: View<'a>,
    b: View<'a>,
    start: Base,
    c: *mut f32,
    /// Distance between rows of `c`.
    stride: usize,
    /// Strips of rows.
    rows: Blocks,
    /// Columns and depths of the blocks of `b`.
    panels: Blocks,
    depths: Blocks,
    /// Where the blocks of a group are packed, `block_len` numbers each.
    packed: *mut f32,
    block_len: usize,
}

// SAFETY: threads write distinct strips of `packed` in `pack` and distinct elements of `c` in `multiply`; in
// between, one waits for all. Everything else is only read.
unsafe impl Sync for Work<'_> {}

/// Blocks of `b` that are packed at the same time, by index into [`Work::panels`] and [`Work::depths`].
struct Group {
    panels: Range<usize>,
    depths: Range<usize>,
}

/// One packed block: strips of `kernel.columns` columns, one after the other, the last one narrower.
struct Block {
    column: usize,
    strips: Blocks,
    from: usize,
    depth: usize,
    packed: *mut f32,
}

/// A strip of `a`, aligned so that the tile's reads cross few cache lines.
#[repr(align(64))]
struct LeftStrip([f32; MOST_ROWS * DEPTH]);

impl Work<'_> {
    fn block(&self, group: &Group, panel: usize, depth: usize) -> Block {
        let (column, columns) = self.panels.block(panel);
        let (from, depth_len) = self.depths.block(depth);
        let index = (panel - group.panels.start) * group.depths.len() + (depth - group.depths.start);
        Block {
            column,
            strips: Blocks::exactly(columns, self.kernel.columns),
            from,
            depth: depth_len,
            packed: self.packed.wrapping_add(index * self.block_len),
        }
    }

    /// Pieces a step of a group is cut into, if each of its blocks were worth `rows` rows of multiplying.
    fn pieces(&self, group: &Group, rows: usize) -> usize {
        let columns = group.panels.len() * self.panels.size();
        let depth = group.depths.len() * self.depths.size();
        let alone = pieces::threads() == 1 || rows * columns * depth < WORTH_SHARING;
        if alone { 1 } else { PIECES * pieces::threads() }
    }

    fn pack(&self, group: &Group) {
        let depths = group.depths.len();
        let blocks = group.panels.len() * depths;
        let most_strips = self.panels.size().div_ceil(self.kernel.columns);
        let wanted = self.pieces(group, self.rows.extent() + PACKING_ROWS);
        let shares = if wanted == 1 { 1 } else { wanted.div_ceil(blocks).min(most_strips) };
        let pack_share = |piece: usize| {
            let (index, share) = (piece / shares, piece % shares);
            let block =
                self.block(group, group.panels.start + index / depths, group.depths.start + index % depths);
            for strip in (share..block.strips.count()).step_by(shares) {
                let (column, columns) = block.strips.block(strip);
                let width = columns.next_multiple_of(self.kernel.lanes);
                let from = self.b.from(block.column + column, block.from);
                // SAFETY: the strips before this one hold `column` columns of `depth` numbers; `block_len` is
                // room for all of them, rounded up to whole vectors, and `product_with` counted the blocks.
                unsafe {
                    pack(from, columns, width, block.depth, block.packed.add(column * block.depth));
                }
            }
        };
        if wanted == 1 {
            (0..blocks).for_each(pack_share);
        } else {
            pieces::for_each(blocks * shares, pack_share);
        }
    }

    /// Cuts the rows, and where those are few the columns too, into pieces for the threads.
    fn multiply(&self, group: &Group) {
        let wanted = self.pieces(group, self.rows.extent() + PACKING_ROWS);
        let down = Blocks::new(self.rows.count(), self.rows.count().div_ceil(wanted), 1);
        let across = wanted.div_ceil(down.count()).min(self.panels.size().div_ceil(self.kernel.columns));
        pieces::for_each(down.count() * across, |piece| {
            let (first, count) = down.block(piece / across);
            let mut left = LeftStrip([0.0; MOST_ROWS * DEPTH]);
            for panel in group.panels.clone() {
                for depth in group.depths.clone() {
                    let block = self.block(group, panel, depth);
                    let share = block.strips.count().div_ceil(across);
                    let from = share * (piece % across);
                    let strips = from..block.strips.count().min(from + share);
                    if strips.is_empty() {
                        continue;
                    }
                    for row_strip in first..first + count {
                        self.multiply_strip(&block, self.rows.block(row_strip), strips.clone(), &mut left);
                    }
                }
            }
        });
    }

    fn multiply_strip(
        &self,
        block: &Block,
        (row, rows): (usize, usize),
        strips: Range<usize>,
        left: &mut LeftStrip,
    ) {
        let height = rows.next_multiple_of(ROW_STEP);
        let base = if block.from == 0 { self.start } else { Base { pointer: self.c, stride: self.stride } };
        // SAFETY: the strip has room for the tallest tile and the deepest block.
        unsafe { pack(self.a.from(row, block.from), rows, height, block.depth, left.0.as_mut_ptr()) };
        for strip in strips {
            let (offset, columns) = block.strips.block(strip);
            let column = block.column + offset;
            let tile = Tile {
                depth: block.depth,
                a: left.0.as_ptr(),
                b: block.packed.wrapping_add(offset * block.depth),
                base: base.at(row, column),
                base_stride: base.stride,
                c: self.c.wrapping_add(row * self.stride + column),
                c_stride: self.stride,
                rows,
            };
            // SAFETY: both strips are packed as the tile wants them, and this piece alone owns these rows and
            // columns of the result. Where the tile is wider than the result, it works on a copy.
            unsafe {
                if columns.is_multiple_of(self.kernel.lanes) {
                    self.kernel.run(height, columns, &tile);
                } else {
                    self.run_narrow(height, columns, &tile);
                }
            }
        }
    }

    /// A tile at the right edge, by way of a copy that is as wide as whole vectors.
    ///
    /// # Safety
    ///
    /// As for [`Microkernel::run`], with `columns` numbers in the rows of `base` and `c`.
    unsafe fn run_narrow(&self, height: usize, columns: usize, tile: &Tile) {
        let width = columns.next_multiple_of(self.kernel.lanes);
        let mut copy = [0.0; MOST_ROWS * MOST_COLUMNS];
        let at = copy.as_mut_ptr();
        // SAFETY: promised by the caller; the copy has room for the largest tile.
        unsafe {
            if !tile.base.is_null() {
                for row in 0..tile.rows {
                    std::ptr::copy_nonoverlapping(
                        tile.base.add(row * tile.base_stride),
                        at.add(row * width),
                        columns,
                    );
                }
            }
            let inner = Tile { base: at, base_stride: width, c: at, c_stride: width, ..*tile };
            self.kernel.run(height, width, &inner);
            for row in 0..tile.rows {
                std::ptr::copy_nonoverlapping(at.add(row * width), tile.c.add(row * tile.c_stride), columns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Pool;
    use crate::random::Stream;

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let stream = Stream::new(seed, 1, 0);
        (0..count as u32).map(|i| stream.uniform(0, i) - 0.5).collect()
    }

    fn in_pool<T>(threads: usize, body: impl FnOnce() -> T) -> T {
        Pool::new(threads).unwrap().enter(body)
    }

    /// A product of random matrices stored as asked, with the result it should have.
    struct Trial {
        extents: Extents,
        a: Vec<f32>,
        b: Vec<f32>,
        bias: Vec<f32>,
        before: Vec<f32>,
        transposes: (bool, bool),
    }

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Beginning {
        Zero,
        Kept,
        Bias,
    }

    impl Trial {
        fn new(m: usize, n: usize, k: usize, transposes: (bool, bool)) -> Trial {
            Trial {
                extents: Extents { m, n, k },
                a: numbers(m * k, 1),
                b: numbers(k * n, 2),
                bias: numbers(n, 3),
                before: numbers(m * n, 4),
                transposes,
            }
        }

        fn strides(&self) -> [usize; 4] {
            let Extents { m, n, k } = self.extents;
            let (row, depth) = if self.transposes.0 { (1, m) } else { (k, 1) };
            let (column, depth_b) = if self.transposes.1 { (k, 1) } else { (1, n) };
            [row, depth, column, depth_b]
        }

        fn run(&self, kernel: &Microkernel, beginning: Beginning, bytes: u64) -> Vec<f32> {
            let Extents { m, n, k } = self.extents;
            let [row, depth, column, depth_b] = self.strides();
            let mut c =
                if beginning == Beginning::Kept { self.before.clone() } else { vec![f32::NAN; m * n] };
            let mut scratch = vec![f32::NAN; bytes as usize / 4];
            let start = match beginning {
                Beginning::Zero => Start::Zero,
                Beginning::Kept => Start::Kept,
                Beginning::Bias => Start::Bias(&self.bias),
            };
            let a = View::new(&self.a, m, k, row, depth);
            let b = View::new(&self.b, n, k, column, depth_b);
            product_with(kernel, self.extents, a, b, start, &mut c, &mut scratch);
            c
        }

        fn check(&self, beginning: Beginning, got: &[f32]) {
            let Extents { m, n, k } = self.extents;
            let [row, depth, column, depth_b] = self.strides();
            for i in 0..m {
                for j in 0..n {
                    let start = match beginning {
                        Beginning::Zero => 0.0,
                        Beginning::Kept => f64::from(self.before[i * n + j]),
                        Beginning::Bias => f64::from(self.bias[j]),
                    };
                    let want = (0..k).fold(start, |sum, p| {
                        let (a, b) = (self.a[i * row + p * depth], self.b[j * column + p * depth_b]);
                        sum + f64::from(a) * f64::from(b)
                    });
                    let error = (f64::from(got[i * n + j]) - want).abs();
                    // Sums of k numbers below ¼ with a random walk of roundings.
                    let bound = 1e-6 * (1.0 + k as f64).sqrt();
                    assert!(error <= bound, "({m},{n},{k}) {:?} at ({i},{j}): {error}", self.transposes);
                }
            }
        }
    }

    const SHAPES: [(usize, usize, usize); 14] = [
        (1, 1, 1),
        (1, 5, 3),
        (2, 31, 7),
        (3, 33, 64),
        (4, 16, 16),
        (5, 48, 257),
        (8, 200, 19),
        (11, 13, 17),
        (12, 32, 256),
        (13, 65, 31),
        (25, 47, 300),
        (97, 101, 103),
        (64, 128, 96),
        (130, 530, 70),
    ];

    #[test]
    fn products_of_awkward_shapes_match_a_triple_loop_on_every_instruction_set() {
        for kernel in microkernel::all() {
            for (m, n, k) in SHAPES {
                for transposes in [(false, false), (false, true), (true, false), (true, true)] {
                    let trial = Trial::new(m, n, k, transposes);
                    for beginning in [Beginning::Zero, Beginning::Kept, Beginning::Bias] {
                        let got = trial.run(kernel, beginning, workspace(trial.extents).best);
                        trial.check(beginning, &got);
                    }
                }
            }
        }
    }

    #[test]
    fn threads_and_workspace_change_no_bit() {
        for (m, n, k) in [(97, 101, 103), (130, 1100, 600), (5, 700, 300), (700, 9, 300)] {
            let trial = Trial::new(m, n, k, (false, true));
            let Workspace { least, best } = workspace(trial.extents);
            let one = in_pool(1, || trial.run(microkernel::choose(), Beginning::Bias, best));
            for bytes in [least, least.midpoint(best) / 4 * 4, best] {
                for threads in [1, 2, 3] {
                    let other = in_pool(threads, || trial.run(microkernel::choose(), Beginning::Bias, bytes));
                    assert!(one == other, "({m},{n},{k}) with {bytes} bytes on {threads} threads");
                }
            }
        }
    }

    #[test]
    fn a_sum_continued_in_a_second_call_has_the_bits_of_one_call() {
        let (m, n, k, cut) = (30, 50, 400, 130);
        let trial = Trial::new(m, n, k, (true, false));
        let whole = trial.run(microkernel::choose(), Beginning::Zero, workspace(trial.extents).best);
        let mut parts = vec![0.0; m * n];
        let mut scratch = vec![0.0; workspace(trial.extents).best as usize / 4];
        for (from, depth, start) in [(0, cut, Start::Zero), (cut, k - cut, Start::Kept)] {
            let a = View::new(&trial.a, m, k, 1, m).from(0, from);
            let b = View::new(&trial.b, n, k, 1, n).from(0, from);
            product(Extents { m, n, k: depth }, a, b, start, &mut parts, &mut scratch);
        }
        assert!(whole == parts);
    }

    #[test]
    fn a_product_without_products_is_its_beginning() {
        let mut c = [7.0; 6];
        let extents = Extents { m: 2, n: 3, k: 0 };
        let nothing = View::new(&[], 0, 0, 1, 1);
        product(extents, nothing, nothing, Start::Bias(&[1.0, 2.0, 3.0]), &mut c, &mut []);
        assert_eq!(c.map(|x| x as i32), [1, 2, 3, 1, 2, 3]);
    }
}
