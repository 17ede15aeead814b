//! Byte ranges with a number each: the largest number among those that meet a range, without a look at all of them.
//!
//! A schedule of a thousand layers has a hundred thousand buffers and may start thousands of transfers early. The ends of all
//! ranges cut the bytes into cells: one cell for each end, and one for the bytes between two ends. A tree over the cells keeps
//! the largest numbers:
//!
//! ```text
//! coordinates   0      16            64
//! cells         ·──────·─────────────·
//! tree          a number at a node counts for all cells below it
//! ```

/// Ranges of bytes, each with a number above 0.
pub(super) struct MeetingRanges {
    coordinates: Vec<u64>,
    /// Cells of the tree, a power of two.
    cells: usize,
    /// The largest number of ranges that cover a node whole.
    cover: Vec<u64>,
    /// The largest number of ranges that meet a node.
    most: Vec<u64>,
}

impl MeetingRanges {
    pub(super) fn new(ranges: &[((u64, u64), u64)]) -> MeetingRanges {
        let mut coordinates: Vec<u64> = ranges.iter().flat_map(|&((from, to), _)| [from, to]).collect();
        coordinates.sort_unstable();
        coordinates.dedup();
        let cells = (2 * coordinates.len()).next_power_of_two();
        let mut all =
            MeetingRanges { coordinates, cells, cover: vec![0; 2 * cells], most: vec![0; 2 * cells] };
        for &((from, to), number) in ranges {
            let first = all.coordinates.partition_point(|&at| at < from);
            let last = all.coordinates.partition_point(|&at| at < to);
            // A range without bytes meets only ranges that have bytes on both sides of it.
            let (low, high) = if from == to { (2 * first, 2 * first + 1) } else { (2 * first + 1, 2 * last) };
            all.raise(low, high, number);
        }
        all
    }

    /// The largest number among the ranges that meet `range`, which is not empty; 0 where there is none.
    pub(super) fn most(&self, (from, to): (u64, u64)) -> u64 {
        let first = self.coordinates.partition_point(|&at| at < from);
        let begins = self.coordinates.get(first) == Some(&from);
        let low = if begins { 2 * first + 1 } else { (2 * first).saturating_sub(1) };
        let high = 2 * self.coordinates.partition_point(|&at| at < to);
        if low >= high {
            return 0;
        }
        let (mut left, mut right, mut most) = (low + self.cells, high + self.cells, 0);
        while left < right {
            if left % 2 == 1 {
                most = most.max(self.most[left]);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                most = most.max(self.most[right]);
            }
            (left, right) = (left / 2, right / 2);
        }
        let above = |cell: usize| std::iter::successors(Some(cell + self.cells), |&node| Some(node / 2));
        let covers =
            |cell: usize| above(cell).take_while(|&node| node > 0).map(|node| self.cover[node]).max();
        most.max(covers(low).unwrap_or(0)).max(covers(high - 1).unwrap_or(0))
    }

    /// Raises the cells from `low` to `high` to a number.
    fn raise(&mut self, low: usize, high: usize, number: u64) {
        let (mut left, mut right) = (low + self.cells, high + self.cells);
        let ends = [left, right - 1];
        while left < right {
            if left % 2 == 1 {
                self.cover_node(left, number);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                self.cover_node(right, number);
            }
            (left, right) = (left / 2, right / 2);
        }
        for mut node in ends {
            while node > 1 {
                node /= 2;
                let below = self.most[2 * node].max(self.most[2 * node + 1]);
                self.most[node] = below.max(self.cover[node]);
            }
        }
    }

    fn cover_node(&mut self, node: usize, number: u64) {
        self.cover[node] = self.cover[node].max(number);
        self.most[node] = self.most[node].max(number);
    }
}

#[cfg(test)]
mod tests {
    use super::super::overlap::meet;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_largest_number_is_that_of_a_look_at_every_range(
            ranges in prop::collection::vec((0u64..40, 0u64..12, 1u64..100), 0..40),
            asked in prop::collection::vec((0u64..50, 1u64..20), 1..20),
        ) {
            let ranges: Vec<((u64, u64), u64)> =
                ranges.into_iter().map(|(from, bytes, number)| ((from, from + bytes), number)).collect();
            let all = MeetingRanges::new(&ranges);
            for range in asked.into_iter().map(|(from, bytes)| (from, from + bytes)) {
                let slow = ranges.iter().filter(|(other, _)| meet(*other, range)).map(|(_, number)| *number);
                prop_assert_eq!(all.most(range), slow.max().unwrap_or(0));
            }
        }
    }
}
