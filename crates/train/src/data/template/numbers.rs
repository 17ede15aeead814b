//! Places of one text in another that equals it but for numbers.
//!
//! Some templates count the turns, so a few turns by themselves have other numbers than in the whole:
//!
//! ```text
//! window   …[Round 2] q: And now? a: Seven.…
//! whole    …[Round 1002] q: And now? a: Seven.…        every run of digits may be another one
//! ```

/// Finds in `other` the places that correspond to `places` of `text`, which ascend. Up to the last place both texts must
/// be equal except for numbers. A number with a place inside it must be equal too.
pub(super) fn places_but_for_numbers(text: &str, other: &str, places: &[usize]) -> Option<Vec<usize>> {
    let (text, other) = (text.as_bytes(), other.as_bytes());
    let (mut here, mut there) = (0, 0);
    let mut found = Vec::with_capacity(places.len());
    for &place in places {
        while here < place {
            let (a, b) = (digits(&text[here..]), digits(other.get(there..)?));
            if a == 0 || text[here..here + a] == other[there..there + b] {
                let same = a.clamp(1, place - here);
                if text[here..here + same] != *other.get(there..there + same)? {
                    return None;
                }
                (here, there) = (here + same, there + same);
            } else if b == 0 || here + a > place {
                return None;
            } else {
                (here, there) = (here + a, there + b);
            }
        }
        (here == place).then(|| found.push(there))?;
    }
    Some(found)
}

/// Bytes of the number that a text begins with.
fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_behind_numbers_of_any_length() {
        let (window, whole) = ("[2] é: Seven 7.[3]", "[1002] é: Seven 7.[1003] more");
        assert_eq!(places_but_for_numbers(window, whole, &[0, 3, 6, 16, 19]), Some(vec![0, 6, 9, 19, 25]));
        assert_eq!(places_but_for_numbers(window, "[1002] é: Six 7.", &[3]), Some(vec![6]));
        assert_eq!(places_but_for_numbers(window, "[1002] é: Six 7.", &[19]), None);
        assert_eq!(places_but_for_numbers(window, "[]", &[3]), None);
        assert_eq!(places_but_for_numbers("abc", "ab", &[3]), None);
        assert_eq!(places_but_for_numbers("12", "34", &[]), Some(Vec::new()));
    }

    #[test]
    fn a_place_inside_a_number_is_known_only_where_the_number_is_the_same() {
        assert_eq!(places_but_for_numbers("a12b", "a12b", &[2, 2, 4]), Some(vec![2, 2, 4]));
        assert_eq!(places_but_for_numbers("a12b", "a112b", &[2]), None);
        assert_eq!(places_but_for_numbers("a12b", "a112b", &[1, 3]), Some(vec![1, 4]));
    }
}
