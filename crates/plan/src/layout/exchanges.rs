//! Exchanges between ranks in an order of runs: which run each is awaited before, and how long the order takes.
//!
//! ```text
//! runs    x · r · r · ‖ r(x's operand) · r        x: all_reduce, on the wire beside three runs
//! wire    ═══════════════╡                        awaited before the fourth, which waits for the rest
//! ```
//!
//! The operands of an exchange are in use until it is awaited. Offload asks for that place, and the search for the time.

use std::collections::VecDeque;

use plimsoll_graph::{Graph, NodeId};

use super::liveness::{Begun, Writer, is_exchange};
use super::slot::live_bytes;
use crate::device::{Facts, Scratch};
use crate::schedule::sequence::{Execution, Operand, Sequence};
use crate::schedule::{Action, BufferId};

/// Limit on the exchanges under way whose operands die with them: one on the wire and the next.
const PASSING: usize = 2;

/// An exchange of an order of runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ExchangeRun {
    /// The run that begins it.
    pub(crate) run: usize,
    /// The run before which it is awaited; the number of runs if it is awaited after the last.
    pub(crate) awaited: usize,
    /// Its time on the wire.
    pub(crate) seconds: f64,
}

/// The lane between ranks, beside the clock of a walk over an order of runs.
pub(crate) struct ExchangeClock<'a> {
    exchanges: &'a [ExchangeRun],
    /// Exchanges so far that were begun.
    begun: usize,
    /// When the lane is free.
    free: f64,
    /// When each exchange under way is done, oldest first, with the run that awaits it.
    done: VecDeque<(usize, f64)>,
}

impl<'a> ExchangeClock<'a> {
    pub(crate) fn new(exchanges: &'a [ExchangeRun]) -> ExchangeClock<'a> {
        ExchangeClock { exchanges, begun: 0, free: 0.0, done: VecDeque::new() }
    }

    /// The clock once the exchanges that end before `run` have ended.
    pub(crate) fn awaited(&mut self, run: usize, mut clock: f64) -> f64 {
        while let Some(&(_, done)) = self.done.front().filter(|(awaited, _)| *awaited <= run) {
            clock = clock.max(done);
            self.done.pop_front();
        }
        clock
    }

    /// Begins the exchange of `run`, if it is one.
    pub(crate) fn begin(&mut self, run: usize, clock: f64) {
        if let Some(exchange) = self.exchanges.get(self.begun).filter(|exchange| exchange.run == run) {
            self.free = self.free.max(clock) + exchange.seconds;
            self.done.push_back((exchange.awaited, self.free));
            self.begun += 1;
        }
    }
}

/// Bytes alive during each run of an order, and its exchanges.
pub(crate) fn live_in_runs(
    graph: &Graph,
    facts: &Facts,
    scratch: Scratch,
    sequence: &Sequence,
) -> (Vec<u64>, Vec<ExchangeRun>) {
    let mut writer = Writer::written(graph, facts, scratch, sequence);
    let live = live_bytes(&writer.slots().0);
    // Whatever is alive while an exchange is awaited was alive during the run before.
    let in_runs = writer.positions.iter().map(|&action| live.get(action).copied().unwrap_or(0)).collect();
    (in_runs, writer.exchange_runs())
}

/// Time of a run on the processor; none for an exchange, which is on the wire.
pub(crate) fn compute_seconds(graph: &Graph, facts: &Facts, scratch: Scratch, node: NodeId) -> f64 {
    if is_exchange(graph, node) { 0.0 } else { facts.nodes[node.index()].seconds_with(scratch) }
}

/// Time of an order of runs with its exchanges beside compute.
pub(crate) fn order_seconds(graph: &Graph, facts: &Facts, scratch: Scratch, sequence: &Sequence) -> f64 {
    let seconds = |run: usize| compute_seconds(graph, facts, scratch, sequence.executions[run].node);
    let runs = sequence.executions.len();
    if !sequence.executions.iter().any(|run| is_exchange(graph, run.node)) {
        return (0..runs).map(seconds).sum();
    }
    let exchanges = Writer::written(graph, facts, scratch, sequence).exchange_runs();
    let (mut wire, mut clock) = (ExchangeClock::new(&exchanges), 0.0);
    for run in 0..runs {
        clock = wire.awaited(run, clock);
        wire.begin(run, clock);
        clock += seconds(run);
    }
    wire.awaited(runs, clock)
}

impl Writer<'_> {
    /// The exchanges of the whole order.
    fn exchange_runs(&self) -> Vec<ExchangeRun> {
        let exchange = |&(run, awaited): &(usize, usize)| {
            let node = self.sequence.executions[run].node;
            ExchangeRun { run, awaited, seconds: self.facts.nodes[node.index()].seconds_with(self.scratch) }
        };
        self.awaits.iter().map(exchange).collect()
    }

    /// Awaits the exchanges whose operands are among `touched`, and all that began before them: their lane is a queue.
    pub(super) fn await_before(&mut self, touched: impl Fn(BufferId) -> bool) {
        let meets = |begun: &Begun| begun.operands.iter().any(|&id| touched(id));
        let last = self.exchanges.iter().rposition(meets);
        self.await_first(last.map_or(0, |last| last + 1));
    }

    /// Awaits the exchanges that must end before a run: those whose operands it touches, and if it begins another one, all
    /// but the last few. Without a limit, shards that wait for their turn on the wire would fill the memory that the division
    /// among ranks has freed. This comes before the transfers that the run waits for, as they may take the bytes.
    pub(super) fn end_exchanges_before(&mut self, execution: &Execution) {
        if self.exchanges.is_empty() {
            return;
        }
        let touched = self.buffer_ids(&self.sequence.operands[execution.operands()]);
        self.await_before(|id| touched.contains(&id));
        let (inputs, _) = self.sequence.operands_of(execution);
        if is_exchange(self.graph, execution.node) && self.passes(inputs) {
            let places = (0..self.exchanges.len()).filter(|&at| self.exchanges[at].passing);
            let oldest = places.rev().nth(PASSING - 1);
            self.await_first(oldest.map_or(0, |oldest| oldest + 1));
        }
    }

    /// Whether any of these inputs is gone once its exchange has ended.
    fn passes(&self, inputs: &[Operand]) -> bool {
        self.buffer_ids(inputs).into_iter().any(|id| !self.outlives(id))
    }

    /// Begins the exchange of a run.
    pub(super) fn begin_exchange(&mut self, execution: &Execution) {
        let passing = self.passes(self.sequence.operands_of(execution).0);
        let operands = self.buffer_ids(&self.sequence.operands[execution.operands()]);
        let (node, run) = (execution.node, self.positions.len());
        self.exchanges.push_back(Begun { node, run, operands, passing });
    }

    /// Awaits the oldest exchanges under way.
    pub(super) fn await_first(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        for Begun { node, run, operands, .. } in self.exchanges.drain(..count).collect::<Vec<_>>() {
            let end = self.count + 1;
            for id in operands {
                if !self.outlives(id) {
                    let buffer = &mut self.buffers[id.index()];
                    buffer.end = buffer.end.max(end);
                }
            }
            self.awaits.push((run, self.positions.len()));
            self.push(|| Action::Await { node });
        }
    }
}
