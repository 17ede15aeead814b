//! The rules of exchanges between the schedules of all ranks. The order counts: every rank must begin the same exchanges,
//! of the same kind and size, one after the other. A rank that begins another one, or none, holds the others up for ever.

use std::fmt;

use super::exchange::{Exchange, exchanges};
use super::open::Judged;
use crate::program::Role;

/// Why schedules must not run together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RanksDiffer {
    /// The rank whose schedule differs from that of rank 0.
    pub rank: usize,
    /// The role of the schedule; none where a rank lacks one.
    pub role: Option<Role>,
    /// The difference.
    pub why: String,
}

impl fmt::Display for RanksDiffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = self.role.map_or_else(String::new, |role| format!(", schedule `{}`", role.name()));
        write!(f, "rank {}{role}: {}", self.rank, self.why)
    }
}

impl std::error::Error for RanksDiffer {}

/// Checks that the schedules of all ranks, one list for each rank, exchange the same values in the same order. Each
/// schedule by itself is judged by [`replay_all`](super::replay_all).
///
/// # Errors
///
/// The first difference from rank 0, or an exchange that expects another number of ranks.
pub fn replay_ranks(ranks: &[&[Judged]]) -> Result<(), RanksDiffer> {
    let roles = |of: &[Judged]| of.iter().map(|judged| judged.role).collect::<Vec<_>>();
    let Some((first, _)) = ranks.split_first() else { return Ok(()) };
    for (rank, own) in ranks.iter().enumerate() {
        let differ = |role, why: String| Err(RanksDiffer { rank, role, why });
        if roles(own) != roles(first) {
            return differ(None, "it has other schedules than rank 0".into());
        }
        for (expected, own) in first.iter().zip(own.iter()) {
            let role = Some(own.role);
            let expected = exchanges(expected.graph, expected.schedule);
            let found = exchanges(own.graph, own.schedule);
            if let Some(other) = found.iter().find(|of| of.collective.ranks() != ranks.len()) {
                let (wanted, there) = (other.collective.ranks(), ranks.len());
                return differ(role, format!("{other} expects {wanted} ranks, and there are {there}"));
            }
            if let Some(why) = difference(&expected, &found) {
                return differ(role, why);
            }
        }
    }
    Ok(())
}

/// The first place where two lists of exchanges differ.
fn difference(expected: &[Exchange], found: &[Exchange]) -> Option<String> {
    let place = (0..expected.len().max(found.len())).find(|&at| expected.get(at) != found.get(at))?;
    let said = |of: Option<&Exchange>| of.map_or_else(|| "none".to_owned(), Exchange::to_string);
    let (found, expected) = (said(found.get(place)), said(expected.get(place)));
    Some(format!("exchange {place} is {found}, and rank 0 has {expected}"))
}
