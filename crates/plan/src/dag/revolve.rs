//! The classical answer for chains of equal steps: how many extra forward steps it takes to reverse a
//! chain with a given number of checkpoints (Griewank and Walther, Revolve, ACM TOMS 2000).
//!
//! Two statements of one quantity, each the other's test. `β(s, r) = C(s + r, s)` steps can be reversed
//! with `s` checkpoints when no step runs more than `r` times, which gives the closed form; splitting the
//! chain at the first checkpoint gives the recurrence.
//!
//! The planner does not use them: they are the yardstick for what it finds on unit chains. Absent are the
//! variants with disk tiers and with stored adjoint data.

/// Extra forward steps to reverse `length` unit steps with `slots` checkpoints, in closed form:
/// `r·l − β(s + 1, r − 1)` with the least `r` for which `β(s, r) ≥ l`. None without a checkpoint.
pub fn extra_forwards(length: u64, slots: u64) -> Option<u64> {
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
pub fn extra_forwards_by_recurrence(length: usize, slots: usize) -> Vec<Vec<u64>> {
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

/// Fewest checkpoints with which `length` unit steps reverse at one extra run of each at most.
pub fn least_slots_for_one_extra(length: u64) -> u64 {
    (0..length).find(|slots| (slots + 1) * (slots + 2) / 2 >= length).unwrap_or(length)
}

#[cfg(test)]
mod tests {
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
    fn one_extra_forward_needs_about_the_root_of_twice_the_length() {
        assert_eq!(least_slots_for_one_extra(100), 13);
        assert_eq!(least_slots_for_one_extra(1000), 44);
        for length in 2..400 {
            let slots = least_slots_for_one_extra(length);
            // `β(s, 2) ≥ l`: each step runs at most twice in all, the first sweep included.
            assert!(extra_forwards(length, slots).is_none_or(|extra| extra < 2 * length));
        }
    }
}
