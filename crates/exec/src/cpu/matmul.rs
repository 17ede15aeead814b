//! The matrix product in single precision, blocked for the caches.
//!
//! ```text
//!                          n                     A block of `b`, DEPTH × up to PANEL columns, is packed into
//!                ┌────┬────────┬────┐            the workspace by all threads together and stays in each
//!              b │    │▒▒▒▒▒▒▒▒│    │ DEPTH      core's second-level cache. Then threads take strips of
//!                ├────┼────────┼────┤ k          rows: a strip of `a` is packed on the stack and stays in
//!                └────┴────────┴────┘            the first-level cache while the tiles of the block pass by.
//!      DEPTH
//!   ┌───┬───┐    ┌────┬────────┬────┐
//! a │   │   │    │    │        │    │
//!   │▒▒▒│   │    │    │▒▒▒▒▒▒▒▒│    │ a strip: up to 12 rows
//!   │   │   │ m  │    │        │    │ c
//!   └───┴───┘    └────┴────────┴────┘
//! ```
//!
//! Each element of `c` is one chain of multiply-adds over `k`, in order, begun with zero, with the bias or
//! with what `c` held (see `microkernel`). Threads and workspace decide who computes a tile and when,
//! never how: the bits depend on the operands alone. Cutting a sum over rows into several calls that
//! continue each other changes no bit either.
//!
//! Absent on purpose: splitting `k` between threads, and any allocation.
#![allow(unsafe_code, reason = "threads write tiles of one result side by side")]

use plimsoll_plan::Workspace;

use super::microkernel::{self, MOST_COLUMNS, MOST_ROWS, Microkernel, ROW_STEP, Tile};
use super::pack::{View, pack};
use super::pieces;

/// The most products packed at once. A strip of `a` is then 12 KiB, a strip of `b` 32 KiB.
const DEPTH: usize = 256;
/// The most columns packed at once where the workspace allows: with [`DEPTH`], half a MiB.
const PANEL: usize = 512;
/// Columns packed at once in the smallest workspace.
const SMALL_PANEL: usize = 64;
/// Workspace is counted in panels of a multiple of this many columns, whatever the tiles.
const PANEL_STEP: usize = 16;
/// Below this many multiply-adds, waking another thread costs more than it brings.
const WORTH_SHARING: usize = 64 * 64 * 64;

/// What the sums begin with.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    /// Zero: `c = a·b`.
    Zero,
    /// What is there: `c += a·b`.
    Kept,
    /// The same row for every row: `c = bias + a·b`.
    Bias(&'a [f32]),
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
    let depth = extents.k.min(DEPTH);
    let columns = extents.n.next_multiple_of(PANEL_STEP);
    let bytes = |panel: usize| (4 * depth * columns.min(panel)) as u64;
    Workspace { least: bytes(SMALL_PANEL), best: bytes(PANEL) }
}

/// `c = start + a·b`. The lines of `a` are its rows, those of `b` its columns; `c` is row-major.
pub(super) fn product(extents: Extents, a: View, b: View, start: Start, c: &mut [f32], scratch: &mut [f32]) {
    product_with(microkernel::choose(), extents, a, b, start, c, scratch);
}

fn product_with(
    kernel: &Microkernel,
    extents: Extents,
    a: View,
    b: View,
    start: Start,
    c: &mut [f32],
    scratch: &mut [f32],
) {
    let Extents { m, n, k } = extents;
    assert_eq!(c.len(), m * n, "the result of a product");
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        return begin(start, c, n);
    }
    let depth_blocks = Blocks::new(k, DEPTH, 1);
    let room = scratch.len() / depth_blocks.size / PANEL_STEP * PANEL_STEP;
    assert!(room > 0, "the workspace of a product is too small");
    let panels = Blocks::new(n, room.min(PANEL), kernel.columns);
    let c = c.as_mut_ptr();
    for (column, columns) in panels.iter() {
        for (from, depth) in depth_blocks.iter() {
            let block = Block {
                kernel,
                a: a.from(0, from),
                panel: scratch.as_mut_ptr(),
                base: Base::new(if from == 0 { start } else { Start::Kept }, c, n).at_column(column),
                c: c.wrapping_add(column),
                rows: m,
                stride: n,
                columns,
                depth,
            };
            block.pack_panel(b.from(column, from));
            block.multiply();
        }
    }
}

/// The result of a product without products.
fn begin(start: Start, c: &mut [f32], n: usize) {
    match start {
        Start::Zero => c.fill(0.0),
        Start::Kept => {}
        Start::Bias(bias) => c.chunks_exact_mut(n).for_each(|row| row.copy_from_slice(bias)),
    }
}

/// An extent cut into blocks of nearly equal size.
#[derive(Clone, Copy)]
struct Blocks {
    extent: usize,
    size: usize,
}

impl Blocks {
    /// Blocks of at most `most`, of a multiple of `step` if several such fit into `most`.
    fn new(extent: usize, most: usize, step: usize) -> Blocks {
        let even = extent.div_ceil(extent.div_ceil(most));
        let rounded = even.next_multiple_of(step);
        Blocks { extent, size: if rounded <= most { rounded } else { most.min(extent) } }
    }

    fn count(self) -> usize {
        self.extent.div_ceil(self.size)
    }

    /// Beginning and size of block `index`.
    fn block(self, index: usize) -> (usize, usize) {
        let from = index * self.size;
        (from, self.size.min(self.extent - from))
    }

    fn iter(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.count()).map(move |index| self.block(index))
    }
}

/// Where sums begin: an address that may be null, and the distance between rows.
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
        }
    }

    fn at_column(self, column: usize) -> Base {
        // Wrapping, because null stands for zero wherever one looks.
        if self.pointer.is_null() {
            self
        } else {
            Base { pointer: self.pointer.wrapping_add(column), ..self }
        }
    }
}

/// One panel of `b` and the part of `c` that it contributes to.
struct Block<'a> {
    kernel: &'a Microkernel,
    /// All rows of `a`, from the first product of this block on.
    a: View<'a>,
    /// The packed columns: strips of `kernel.columns`, one after the other, the last one narrower.
    panel: *mut f32,
    base: Base,
    c: *mut f32,
    rows: usize,
    /// Distance between rows of `c`.
    stride: usize,
    columns: usize,
    depth: usize,
}

// SAFETY: threads write distinct strips of `panel` while packing and distinct tiles of `c` while multiplying;
// everything else is only read.
unsafe impl Sync for Block<'_> {}

/// A strip of `a`, aligned so that the tile's reads cross few cache lines.
#[repr(align(64))]
struct LeftStrip([f32; MOST_ROWS * DEPTH]);

impl Block<'_> {
    fn strips(&self) -> Blocks {
        Blocks { extent: self.columns, size: self.kernel.columns }
    }

    fn worth_sharing(&self) -> bool {
        self.rows * self.columns * self.depth >= WORTH_SHARING
    }

    fn pack_panel(&self, b: View) {
        let strips = self.strips();
        let shares = if self.worth_sharing() { pieces::threads().min(strips.count()) } else { 1 };
        let shares = Blocks::new(strips.count(), strips.count().div_ceil(shares), 1);
        pieces::for_each(shares.count(), |share| {
            let (first, count) = shares.block(share);
            for strip in first..first + count {
                let (column, columns) = strips.block(strip);
                let width = columns.next_multiple_of(self.kernel.lanes);
                // SAFETY: strips before this one hold `column` columns of `depth` numbers, so it begins here;
                // `room` in `product_with` left space for all of them.
                unsafe {
                    pack(b.from(column, 0), columns, width, self.depth, self.panel.add(column * self.depth));
                }
            }
        });
    }

    /// Cuts the rows, and where those are few the columns too, into pieces for the threads.
    fn multiply(&self) {
        let rows = Blocks { extent: self.rows, size: self.kernel.rows };
        let strips = self.strips();
        let wanted = if self.worth_sharing() && pieces::threads() > 1 { 4 * pieces::threads() } else { 1 };
        let down = Blocks::new(rows.count(), rows.count().div_ceil(wanted), 1);
        let across = wanted.div_ceil(down.count()).min(strips.count());
        let across = Blocks::new(strips.count(), strips.count().div_ceil(across), 1);
        pieces::for_each(down.count() * across.count(), |piece| {
            let (first_row, row_strips) = down.block(piece / across.count());
            let (first_strip, column_strips) = across.block(piece % across.count());
            let mut left = LeftStrip([0.0; MOST_ROWS * DEPTH]);
            for strip in first_row..first_row + row_strips {
                self.multiply_strip(rows.block(strip), first_strip..first_strip + column_strips, &mut left);
            }
        });
    }

    fn multiply_strip(
        &self,
        (row, rows): (usize, usize),
        strips: std::ops::Range<usize>,
        left: &mut LeftStrip,
    ) {
        let height = rows.next_multiple_of(ROW_STEP);
        // SAFETY: the strip has room for the tallest tile and the deepest block.
        unsafe { pack(self.a.from(row, 0), rows, height, self.depth, left.0.as_mut_ptr()) };
        for strip in strips {
            let (column, columns) = self.strips().block(strip);
            let tile = Tile {
                depth: self.depth,
                a: left.0.as_ptr(),
                // SAFETY: where `pack_panel` wrote this strip.
                b: unsafe { self.panel.add(column * self.depth) },
                base: self.base.at_column(column).pointer.wrapping_add(row * self.base.stride),
                base_stride: self.base.stride,
                // SAFETY: row and column lie inside the result.
                c: unsafe { self.c.add(row * self.stride + column) },
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
    use crate::random::Stream;

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let stream = Stream::new(seed, 1, 0);
        (0..count as u32).map(|i| stream.uniform(0, i) - 0.5).collect()
    }

    fn in_pool<T: Send>(threads: usize, body: impl FnOnce() -> T + Send) -> T {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(body)
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
