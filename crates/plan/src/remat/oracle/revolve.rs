//! The classical answer for chains of equal steps: how many extra forward steps it takes to reverse a
//! chain with a given number of checkpoints (Griewank and Walther, Revolve, ACM TOMS 2000).
//!
//! Two formulas for one quantity, each tested by the other. `β(s, r) = C(s + r, s)` steps can be reversed with `s`
//! checkpoints when no step runs more than `r` times, which gives the closed form; splitting the chain at the first
//! checkpoint gives the recurrence.
//!
//! A slot may instead hold what the reversal of one step reads, so that the step need not run again: the
//! **mixed** form (Maddison, 2024), by a recurrence of its own.
//!
//! The planner does not use these figures: tests compare its results on unit chains with them. Absent are the variants
//! with disk tiers.

/// Extra forward steps to reverse `length` unit steps with `slots` checkpoints, in closed form:
/// `r·l − β(s + 1, r − 1)` with the least `r` for which `β(s, r) ≥ l`. None without a checkpoint.
fn extra_forwards(length: u64, slots: u64) -> Option<u64> {
    if slots == 0 {
        return None;
    }
    if length <= 1 {
        return Some(0);
    }
    // β(s, r) and β(s + 1, r − 1), advanced together from r = 1: β(s + 1, r) = β(s + 1, r − 1) + β(s, r).
    let (mut repeats, mut reach, mut below) = (1u64, slots + 1, 1u64);
    while reach < length {
        below += reach;
        repeats += 1;
        reach = reach * (slots + repeats) / repeats;
    }
    Some(repeats * length - below)
}

/// The same by the recurrence `t(l, s) = min over j of j + t(l − j, s − 1) + t(j, s)`: entry `[s][l]` for
/// all `l` up to `length` and `1 ≤ s ≤ slots`; row 0 is empty.
fn extra_forwards_by_recurrence(length: usize, slots: usize) -> Vec<Vec<u64>> {
    let mut table: Vec<Vec<u64>> = vec![Vec::new()];
    for slot in 1..=slots {
        let mut row = vec![0u64; length + 1];
        // The best split never moves left as the chain grows, so each search starts where the last ended.
        let mut split = 1;
        for steps in 2..=length {
            row[steps] = if slot == 1 {
                (steps * (steps - 1) / 2) as u64
            } else {
                let value = |j: usize, row: &[u64]| j as u64 + table[slot - 1][steps - j] + row[j];
                while split + 1 < steps && value(split + 1, &row) <= value(split, &row) {
                    split += 1;
                }
                value(split, &row)
            };
        }
        table.push(row);
    }
    table
}

/// All forward steps, the first sweep included, to reverse `l` unit steps when each of `s` slots holds either the state
/// before a step or the inputs of the reversal of one step. The step to be reversed next needs no slot. Entry `[s][l]`
/// for all `l` up to `length` and `s` up to `slots`; none where nothing works.
///
/// The first step leaves its data in a slot, or the state before it goes there and the chain is split:
/// `m(l, s) = min(1 + m(l − 1, s − 1), min over j of j + m(l − j, s − 1) + m(j, s))` with `m(1, s) = 1`.
fn mixed_forwards(length: usize, slots: usize) -> Vec<Vec<Option<u64>>> {
    let one_step = |steps: usize| (steps <= 1).then_some(steps as u64);
    let mut table: Vec<Vec<Option<u64>>> = vec![(0..=length).map(one_step).collect()];
    for slot in 1..=slots {
        let fewer = &table[slot - 1];
        let mut row: Vec<Option<u64>> = (0..=length.min(1)).map(one_step).collect();
        for steps in 2..=length {
            let stored = fewer[steps - 1].map(|rest| 1 + rest);
            let split = |j: usize| Some(j as u64 + fewer[steps - j]? + row[j]?);
            row.push((1..steps).filter_map(split).chain(stored).min());
        }
        table.push(row);
    }
    table
}

/// Fewest checkpoints with which `length` unit steps reverse at one extra run of each at most.
fn least_slots_for_one_extra(length: u64) -> u64 {
    (0..length).find(|slots| (slots + 1) * (slots + 2) / 2 >= length).unwrap_or(length)
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::{BTreeSet, BinaryHeap};

    use super::*;

    #[test]
    fn closed_form_and_recurrence_agree_everywhere() {
        let table = extra_forwards_by_recurrence(1000, 60);
        for (slots, row) in table.iter().enumerate().skip(1) {
            for (length, &steps) in row.iter().enumerate().skip(1) {
                let closed = extra_forwards(length as u64, slots as u64);
                assert_eq!(closed, Some(steps), "l = {length}, s = {slots}");
            }
        }
    }

    #[test]
    fn the_recurrence_takes_the_best_split() {
        let table = extra_forwards_by_recurrence(60, 8);
        for slots in 2..=8 {
            for length in 2..=60 {
                let best =
                    (1..length).map(|j| j as u64 + table[slots - 1][length - j] + table[slots][j]).min();
                assert_eq!(Some(table[slots][length]), best, "l = {length}, s = {slots}");
            }
        }
    }

    #[test]
    fn published_values_hold() {
        let row = |length: u64, slots: &[u64]| -> Vec<u64> {
            slots.iter().map(|&s| extra_forwards(length, s).unwrap()).collect()
        };
        assert_eq!(row(10, &[1, 2, 3, 4, 5, 6]), [45, 20, 15, 14, 13, 12]);
        assert_eq!(row(32, &[2, 3, 4, 5, 6]), [140, 93, 75, 68, 60]);
        assert_eq!(row(100, &[2, 3, 4, 5, 6, 8, 10]), [845, 490, 374, 316, 280, 245, 222]);
        assert_eq!(row(128, &[2, 3, 4, 5, 6, 8, 10]), [1240, 694, 516, 430, 392, 329, 306]);
        assert_eq!(row(1000, &[2, 3, 4, 5, 6, 8, 10]), [28820, 12155, 7998, 6284, 5284, 4285, 3636]);
        assert_eq!(extra_forwards(5, 0), None);
    }

    #[test]
    fn published_totals_of_the_mixed_form_hold() {
        let table = mixed_forwards(100, 10);
        let row = |length: usize| [1, 2, 3, 4, 5, 6, 8, 10].map(|slots| table[slots][length].unwrap());
        assert_eq!(row(10), [54, 26, 19, 17, 15, 14, 12, 10]);
        assert_eq!(row(32), [527, 164, 110, 87, 77, 68, 59, 56]);
        assert_eq!(row(100), [5049, 931, 554, 421, 352, 311, 263, 237]);
        assert_eq!((table[0][1], table[0][2]), (Some(1), None));
    }

    /// Where a mixed reversal stands.
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
    struct Reversal {
        /// The steps for which a slot holds the state before the step.
        states: BTreeSet<usize>,
        /// The steps for which a slot holds what reversing the step reads.
        stored: BTreeSet<usize>,
        /// Step before which the forward solution stands.
        at: Option<usize>,
        /// The step whose inputs are held outside the slots.
        hand: Option<usize>,
        /// Steps still to be reversed.
        left: usize,
    }

    impl Reversal {
        /// All that can be done next, with the forward steps it takes.
        fn moves(&self, slots: usize) -> Vec<(u64, Reversal)> {
            let mut moves = Vec::new();
            let free = self.states.len() + self.stored.len() < slots;
            for &step in &self.states {
                let mut without = self.clone();
                without.states.remove(&step);
                moves.push((0, Reversal { at: Some(step), ..without.clone() }));
                moves.push((0, Reversal { at: Some(step), ..self.clone() }));
                moves.push((0, without));
            }
            if let Some(step) = self.at.filter(|&step| step < self.left) {
                let ahead = Reversal { at: Some(step + 1), ..self.clone() };
                moves.push((1, Reversal { hand: Some(step), ..ahead.clone() }));
                if free {
                    let (mut state, mut stored) = (self.clone(), ahead.clone());
                    state.states.insert(step);
                    stored.stored.insert(step);
                    moves.extend([(0, state), (1, stored)]);
                }
                moves.push((1, ahead));
            }
            let last = self.left - 1;
            if self.hand == Some(last) || self.stored.contains(&last) {
                let at = self.at.filter(|&step| step < last);
                let mut reversed = Reversal { at, left: last, ..self.clone() };
                reversed.hand = self.hand.filter(|&step| step != last);
                reversed.stored.remove(&last);
                moves.push((0, reversed));
            }
            moves
        }
    }

    /// Fewest forward steps of any order of moves: the shortest path through everything that can be stored.
    fn mixed_by_brute_force(length: usize, slots: usize) -> Option<u64> {
        let none = BTreeSet::new();
        let start = Reversal { states: none.clone(), stored: none, at: Some(0), hand: None, left: length };
        let mut open = BinaryHeap::from([Reverse((0, start))]);
        let mut done = BTreeSet::new();
        while let Some(Reverse((steps, reversal))) = open.pop() {
            if reversal.left == 0 {
                return Some(steps);
            }
            if done.insert(reversal.clone()) {
                let moves = reversal.moves(slots).into_iter().filter(|(_, next)| !done.contains(next));
                open.extend(moves.map(|(cost, next)| Reverse((steps + cost, next))));
            }
        }
        None
    }

    #[test]
    fn the_mixed_form_is_what_trying_everything_finds() {
        let table = mixed_forwards(6, 5);
        for (slots, row) in table.iter().enumerate() {
            for (length, &steps) in row.iter().enumerate().skip(1) {
                assert_eq!(mixed_by_brute_force(length, slots), steps, "l = {length}, s = {slots}");
            }
        }
    }

    #[test]
    fn one_extra_forward_needs_about_the_root_of_twice_the_length() {
        assert_eq!(least_slots_for_one_extra(100), 13);
        assert_eq!(least_slots_for_one_extra(1000), 44);
        // A chain with its checkpoints at best distances: with one more step or slot it is the sum of two.
        let reach = |slots: u64, runs: u64| -> u64 {
            let mut row = vec![1; slots as usize + 1];
            (0..runs).for_each(|_| (1..row.len()).for_each(|slot| row[slot] += row[slot - 1]));
            row[slots as usize]
        };
        for length in 2..400 {
            let slots = least_slots_for_one_extra(length);
            // Each step runs twice at most, the first sweep included, and not so with a slot less.
            assert!(reach(slots, 2) >= length, "{length} steps in {slots} slots");
            assert!(slots == 0 || reach(slots - 1, 2) < length, "{length} steps in {} slots", slots - 1);
            if slots > 0 {
                assert!(extra_forwards(length, slots).unwrap() <= 2 * length - slots - 2);
            }
        }
    }
}
