//! The rules of exchanges between ranks: inside one schedule, and between the schedules of all ranks.
//!
//! Inside a schedule an exchange is a run whose operands stay busy until it is awaited. Between ranks the order counts: every
//! rank must begin the same exchanges, of the same kind and size, one after the other. A rank that begins another one, or
//! none, holds the others up for ever.

use std::collections::VecDeque;
use std::fmt;

use plimsoll_graph::op::Collective;
use plimsoll_graph::{Graph, NodeId, Type};

use super::open::Judged;
use super::{Fault, Machine};
use crate::device::Direction;
use crate::program::Role;
use crate::schedule::{Action, BufferId, Schedule};

/// The number of the first busy range of an exchange; ranges of copies have lower ones, and those of the next schedule's
/// copies are counted down from the highest.
const FIRST: usize = usize::MAX / 2;
/// More ranges than any schedule has.
const MOST: usize = 1 << 40;

/// Exchanges under way, oldest first, each with the ranges that it keeps busy: their first byte and number.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    under_way: VecDeque<(NodeId, Vec<(u64, usize)>)>,
    /// Ranges so far.
    ranges: usize,
}

/// Whether a busy range of this number belongs to an exchange.
pub(super) fn is_of_exchange(number: usize) -> bool {
    (FIRST..FIRST + MOST).contains(&number)
}

impl Machine<'_> {
    /// Keeps the operands of a run busy, if it is an exchange.
    pub(super) fn begin_exchange(&mut self, node: NodeId, inputs: &[BufferId], outputs: &[BufferId]) {
        if self.graph.node(node).op.collective().is_none() {
            return;
        }
        let mut ranges = Vec::new();
        for &operand in inputs.iter().chain(outputs) {
            let number = FIRST + self.exchanges.ranges;
            self.exchanges.ranges += 1;
            let bytes = self.bytes_of(operand);
            // A range that comes in is neither read nor written.
            self.copies.in_arena.insert(bytes, number, (Direction::In, number));
            ranges.push((bytes.0, number));
        }
        self.exchanges.under_way.push_back((node, ranges));
    }

    pub(super) fn await_exchange(&mut self, node: NodeId) -> Result<(), Fault> {
        let oldest = self.exchanges.under_way.front().is_some_and(|(first, _)| *first == node);
        let Some((_, ranges)) = self.exchanges.under_way.pop_front().filter(|_| oldest) else {
            return Err(Fault::Exchange(format!("node {} is awaited out of turn", node.0)));
        };
        for (start, number) in ranges {
            self.copies.in_arena.remove(start, number);
        }
        Ok(())
    }

    pub(super) fn finish_exchanges(&self) -> Result<(), Fault> {
        match self.exchanges.under_way.front() {
            Some((node, _)) => {
                let subject = exchange(self.graph, *node).map_or_else(String::new, |of| of.to_string());
                Err(Fault::Exchange(format!("nobody awaits {subject}")))
            }
            None => Ok(()),
        }
    }
}

/// One exchange of a schedule, as all ranks must see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Its kind.
    pub collective: Collective,
    /// The value that is exchanged, in the words of the graph's text.
    pub subject: String,
    /// Shape and element type of that value.
    pub ty: Type,
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} {}", self.collective.name(), self.subject, self.ty)
    }
}

/// The exchange that a node is, if it is one.
fn exchange(graph: &Graph, node: NodeId) -> Option<Exchange> {
    let node = graph.nodes().get(node.index())?;
    let (collective, &input) = (node.op.collective()?, node.inputs.first()?);
    Some(Exchange { collective, subject: graph.value_name(input), ty: graph.ty(input) })
}

/// The exchanges of a schedule, in the order they begin.
pub fn exchanges(graph: &Graph, schedule: &Schedule) -> Vec<Exchange> {
    let runs = schedule.actions.iter().filter_map(|action| match action {
        Action::Run { node, .. } => exchange(graph, *node),
        _ => None,
    });
    runs.collect()
}

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
