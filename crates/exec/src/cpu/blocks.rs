//! An extent cut into blocks.

/// Blocks of equal size, the last one possibly smaller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    extent: usize,
    size: usize,
}

impl Blocks {
    /// Blocks of `size`.
    pub(super) fn exactly(extent: usize, size: usize) -> Blocks {
        Blocks { extent, size }
    }

    /// The fewest blocks of at most `most`, nearly equal; of a multiple of `step` unless that is more than `most`.
    pub(super) fn new(extent: usize, most: usize, step: usize) -> Blocks {
        let even = extent.div_ceil(extent.div_ceil(most));
        let rounded = even.next_multiple_of(step);
        Blocks { extent, size: if rounded <= most { rounded } else { most.min(extent) } }
    }

    /// Elements of the whole axis.
    pub(super) fn extent(self) -> usize {
        self.extent
    }

    /// Size of every block but the last.
    pub(super) fn size(self) -> usize {
        self.size
    }

    /// Number of blocks.
    pub(super) fn count(self) -> usize {
        self.extent.div_ceil(self.size)
    }

    /// Beginning and size of block `index`.
    pub(super) fn block(self, index: usize) -> (usize, usize) {
        let from = index * self.size;
        (from, self.size.min(self.extent - from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_even_and_leave_nothing_out() {
        for extent in 1..200 {
            for (most, step) in [(1, 1), (7, 1), (16, 4), (16, 24), (64, 32)] {
                let blocks = Blocks::new(extent, most, step);
                assert_eq!(blocks.count(), extent.div_ceil(most), "{blocks:?}");
                let mut next = 0;
                for (from, size) in (0..blocks.count()).map(|index| blocks.block(index)) {
                    assert!(from == next && size > 0 && size <= most, "{blocks:?}");
                    next += size;
                }
                assert_eq!(next, extent);
            }
        }
    }
}
