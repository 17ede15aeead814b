//! The known name that a misspelled one was most likely meant to be.

/// The name among `known` that takes the fewest edits to reach: at most one, or two of a name of eight characters or more.
pub fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.replace('-', "_").to_lowercase();
    let by_distance = known.into_iter().map(|name| (distance(&written, name), name));
    let (edits, name) = by_distance.min_by_key(|(edits, _)| *edits)?;
    // In a short word only one edit is allowed, because two would make another word.
    (edits <= if name.chars().count() < 8 { 1 } else { 2 }).then_some(name)
}

/// Characters to insert, remove, replace or swap with their neighbour: three rows of the classic table.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted_once_each() {
        assert_eq!(distance("memroy", "memory"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn only_a_near_name_is_offered() {
        let known = ["learning_rate", "warmup_steps", "warmup_ratio", "seed"];
        assert_eq!(nearest("learing_rate", known), Some("learning_rate"));
        assert_eq!(nearest("Warmup-Step", known), Some("warmup_steps"));
        assert_eq!(nearest("banana", known), None);
    }
}
