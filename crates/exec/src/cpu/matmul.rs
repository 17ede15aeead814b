//! The matrix product with f32 sums, blocked for the caches.
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
//! Each element of `c` is one chain of multiply-adds over `k`, in order, started with zero, with the bias or with the
//! old `c` (see `microkernel`). Threads and workspace decide which thread computes a tile and when, never how: the bits
//! depend on the operands alone. Cutting a sum over rows into several calls that continue each other changes no bit
//! either. If both factors are bf16 and the instructions can multiply that, a packed word holds two steps of depth (see
//! `pairs`) and everything else is the same.
//!
//! Absent on purpose: splitting `k` between threads, and any allocation.
#![allow(unsafe_code, reason = "threads write tiles of one result side by side")]

use std::ops::Range;

use plimsoll_plan::Workspace;

use super::blocks::Blocks;
use super::microkernel::{self, MOST_COLUMNS, MOST_ROWS, Microkernel, ROW_STEP, Tile};
use super::pack::{View, pack};
use super::pairs::pack_pairs;
use super::{pieces, pool};

/// The most steps of depth in a block, or pairs of steps if both factors are bf16: a step or a pair is one word. A
/// strip of `a` is then 12 KiB, a strip of `b` 32 KiB.
const DEPTH: usize = 256;
/// The most columns of a block: with [`DEPTH`], half a MiB.
const PANEL: usize = 512;
/// Columns of a block in the smallest workspace.
const SMALL_PANEL: usize = 64;
/// Blocks are stored in multiples of this many columns, whatever the tiles.
const PANEL_STEP: usize = 16;
/// Beyond this many bytes of packed blocks, fewer and larger groups gain nothing.
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
    Factors { extents, a, b }.product(start, c, scratch);
}

/// The factors of a product: lines of `a` are rows of the result, lines of `b` its columns.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    pub(super) extents: Extents,
    pub(super) a: View<'a>,
    pub(super) b: View<'a>,
}

impl Factors<'_> {
    /// `c = start + a·b`.
    pub(super) fn product(self, start: Start, c: &mut [f32], scratch: &mut [f32]) {
        self.product_again(start, c, scratch, false);
    }

    /// The same; returns whether `scratch` then holds all of `b` packed. If it does, a product by the same `b` in the
    /// same scratch may pass that as `packed`, and need not pack it again.
    pub(super) fn product_again(
        self,
        start: Start,
        c: &mut [f32],
        scratch: &mut [f32],
        packed: bool,
    ) -> bool {
        let kernel = microkernel::choose(pool::instructions(), self.a.is_half() && self.b.is_half());
        product_with(kernel, self, start, c, scratch, packed)
    }
}

/// As [`Factors::product_again`].
fn product_with(
    kernel: &Microkernel,
    Factors { extents: Extents { m, n, k }, a, b }: Factors,
    start: Start,
    c: &mut [f32],
    scratch: &mut [f32],
    packed: bool,
) -> bool {
    assert_eq!(c.len(), m * n, "the result of a product");
    if m == 0 || n == 0 {
        return false;
    }
    if k == 0 {
        begin(start, c, n);
        return false;
    }
    let depths = Blocks::new(k.div_ceil(kernel.steps), DEPTH, 1);
    let room = scratch.len() / depths.size() / PANEL_STEP * PANEL_STEP;
    assert!(room > 0, "the workspace of a product is too small");
    let panels = Blocks::new(n, room.min(PANEL), kernel.columns);
    let block_columns = panels.size().next_multiple_of(PANEL_STEP);
    let c = c.as_mut_ptr();
    let work = Work {
        kernel,
        k,
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
    let holds_all = deep == depths.count() && wide >= panels.count();
    for first_panel in (0..panels.count()).step_by(wide) {
        for first_depth in (0..depths.count()).step_by(deep) {
            let group = Group {
                panels: first_panel..panels.count().min(first_panel + wide),
                depths: first_depth..depths.count().min(first_depth + deep),
            };
            if !(packed && holds_all) {
                work.pack(&group);
            }
            work.multiply(&group);
        }
    }
    holds_all
}

/// Writes what the sums start from. It is the whole result of a product over no terms.
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
    k: usize,
    a: View<'a>,
    b: View<'a>,
    start: Base,
    c: *mut f32,
    /// Distance between rows of `c`.
    stride: usize,
    /// Strips of rows.
    rows: Blocks,
    /// Columns of the blocks of `b`, and their depths in words.
    panels: Blocks,
    depths: Blocks,
    /// Where the blocks of a group are packed, `block_len` words each.
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
    /// First step of depth.
    from: usize,
    /// Steps of depth, and the words they take.
    steps: usize,
    depth: usize,
    packed: *mut f32,
}

/// A strip of `a`, aligned so that the tile's reads cross few cache lines.
#[repr(align(64))]
struct LeftStrip([f32; MOST_ROWS * DEPTH]);

impl Work<'_> {
    fn block(&self, group: &Group, panel: usize, depth: usize) -> Block {
        let (column, columns) = self.panels.block(panel);
        let (first_word, words) = self.depths.block(depth);
        let from = first_word * self.kernel.steps;
        let index = (panel - group.panels.start) * group.depths.len() + (depth - group.depths.start);
        Block {
            column,
            strips: Blocks::exactly(columns, self.kernel.columns),
            from,
            steps: (words * self.kernel.steps).min(self.k - from),
            depth: words,
            packed: self.packed.wrapping_add(index * self.block_len),
        }
    }

    /// Number of pieces into which a step over `group` is cut. The work on each block of the group is that of a product with
    /// `rows` rows.
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
                // SAFETY: the strips before this one hold `column` columns of `depth` words; `block_len` is
                // room for all of them, rounded up to whole vectors, and `product_with` counted the blocks.
                unsafe {
                    let to = block.packed.add(column * block.depth);
                    self.pack_strip(from, columns, width, block.steps, to);
                }
            }
        };
        if wanted == 1 {
            (0..blocks).for_each(pack_share);
        } else {
            pieces::for_each(blocks * shares, pack_share);
        }
    }

    /// Packs `lines` lines of `steps` numbers, or pairs of them, into groups of `width`.
    ///
    /// # Safety
    ///
    /// `to` must have room for the groups and be written by this thread alone.
    unsafe fn pack_strip(&self, from: View, lines: usize, width: usize, steps: usize, to: *mut f32) {
        let pack = if self.kernel.steps == 2 { pack_pairs } else { pack };
        // SAFETY: the caller's promise.
        unsafe { pack(from, lines, width, steps, to) }
    }

    /// Cuts the rows, and if there are few rows the columns too, into pieces for the threads.
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
        unsafe {
            self.pack_strip(self.a.from(row, block.from), rows, height, block.steps, left.0.as_mut_ptr());
        };
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
mod tests;
