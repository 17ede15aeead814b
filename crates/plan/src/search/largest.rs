//! The largest number that works, by doubling and then halving the gap.

/// The largest `n` in `1..=most` for which `probe` gives something, with its result; `None` if not even 1 works. A
/// number below one that works is assumed to work too; `n` itself was probed, and so was `n + 1` unless `n` is `most`.
///
/// # Errors
///
/// The first error of a probe.
pub fn largest<T, E>(
    most: usize,
    mut probe: impl FnMut(usize) -> Result<Option<T>, E>,
) -> Result<Option<(usize, T)>, E> {
    let mut found = None;
    let (mut works, mut fails) = (0, most.saturating_add(1));
    let mut next = 1;
    while works + 1 < fails {
        match probe(next)? {
            Some(answer) => {
                works = next;
                found = Some((next, answer));
            }
            None => fails = next,
        }
        let doubling = fails > most;
        next = if doubling { works.saturating_mul(2).min(most) } else { works.midpoint(fails) };
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probed(most: usize, limit: usize) -> (Option<usize>, Vec<usize>) {
        let mut asked = Vec::new();
        let found = largest(most, |n| {
            asked.push(n);
            Ok::<_, ()>((n <= limit).then_some(n * 10))
        });
        let found = found.unwrap();
        assert!(found.is_none_or(|(n, answer)| answer == n * 10), "the answer belongs to the number");
        (found.map(|(n, _)| n), asked)
    }

    #[test]
    fn every_limit_is_found_and_its_successor_was_asked() {
        for limit in 0..70 {
            let (found, asked) = probed(1000, limit);
            assert_eq!(found, (limit > 0).then_some(limit));
            assert!(asked.contains(&(limit + 1)), "{limit}: {asked:?}");
            assert!(asked.len() < 16, "{limit}: {asked:?}");
        }
    }

    #[test]
    fn nothing_beyond_the_most_is_asked() {
        for (most, limit) in [(1, 5), (7, 7), (100, 1000), (100, 100), (0, 5)] {
            let (found, asked) = probed(most, limit);
            assert_eq!(found, (most > 0).then_some(most));
            assert!(asked.iter().all(|&n| n <= most));
        }
    }

    #[test]
    fn an_error_ends_it() {
        assert_eq!(largest(10, |n| if n < 4 { Ok(Some(())) } else { Err("broken") }), Err("broken"));
    }
}
