//! The largest number of any range of a list, without looking at all of it.

/// The largest number in any range of a list, by a tree of maxima over it.
pub(super) struct RangeMax {
    /// The list is the second half; each number before it is the larger of its two children.
    tree: Vec<u64>,
}

impl RangeMax {
    pub(super) fn new(list: &[u64]) -> RangeMax {
        let count = list.len();
        let mut tree = vec![0; count];
        tree.extend_from_slice(list);
        for at in (1..count).rev() {
            tree[at] = tree[2 * at].max(tree[2 * at + 1]);
        }
        RangeMax { tree }
    }

    /// The largest number of `list[start..end]`; 0 where that is empty.
    pub(super) fn of(&self, start: usize, end: usize) -> u64 {
        let count = self.tree.len() / 2;
        let (mut low, mut high, mut most) = (start + count, end + count, 0);
        while low < high {
            if low % 2 == 1 {
                most = most.max(self.tree[low]);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                most = most.max(self.tree[high]);
            }
            (low, high) = (low / 2, high / 2);
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_range_has_the_maximum_that_a_scan_finds(list in prop::collection::vec(0u64..50, 0..40)) {
            let maxima = RangeMax::new(&list);
            for start in 0..=list.len() {
                for end in start..=list.len() {
                    let scanned = list[start..end].iter().copied().max().unwrap_or(0);
                    prop_assert_eq!(maxima.of(start, end), scanned);
                }
            }
        }
    }
}
