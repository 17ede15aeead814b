//! The rules of exchanges between ranks inside one schedule: an exchange is a run whose operands stay busy until it is
//! awaited.

use std::collections::VecDeque;
use std::fmt;

use plimsoll_graph::op::Collective;
use plimsoll_graph::{Graph, NodeId, Type};

use super::{Fault, Machine};
use crate::device::Direction;
use crate::schedule::{Action, BufferId, Schedule};

/// The number of the first busy range of an exchange. Ranges of copies have lower numbers; ranges of the next schedule's
/// copies are numbered downwards from the highest.
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
            // Each operand counts as a range that is being received, which is neither read nor written.
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
    /// Kind of the exchange.
    pub collective: Collective,
    /// The value that is exchanged, in the words of the graph's text.
    pub subject: String,
    /// Shape and element type of the exchanged value.
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
