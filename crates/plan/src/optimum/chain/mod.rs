//! The optimal plan of a chain of equal layers, for every budget at once, with a proof of how good it is.
//!
//! In processing order: [`find`] finds the chain, [`options`] lists the sets of values that one layer may keep with
//! their exact peaks, [`table`] combines layers for all budgets, [`groups`] does so for long chains, [`follow`] reads
//! the decisions from a table, and [`bound`] gives a lower bound on the time of any schedule. The answer is a tree of
//! regions like any strategy's, so the later stages (order, lifetimes, layout, judge) are the same code for all.
//!
//! Absent: graphs that are no chain (see `graph`), recomputing in layers after the longest run of equal ones, and
//! persistent values across nested segments beyond what rotor's recurrence allows. Offload is decided after the table,
//! not in it: see `offload`.

mod beside;
mod bound;
mod find;
mod follow;
mod groups;
mod options;
#[cfg(test)]
mod oracle;
mod outline;
mod passage;
mod readers;
mod table;

use std::cell::OnceCell;
use std::collections::BTreeSet;

use plimsoll_graph::{Graph, NodeId, Value};

use beside::fixed_bytes;
pub(super) use find::Chain;
use follow::{Step, follow};
use groups::{Grouped, group_size};
use options::{LayerOption, Options, all_values, kept_values, options, peaks};
pub(crate) use outline::Outline;
use table::{Family, Table, Turn};

use super::ladder::Ladder;
use super::{Optimum, distinct_rungs};
use crate::bytes::TransientBytes;
use crate::device::{Facts, Link, Scratch, aligned};
use crate::recompute::{Item, Order, Regions, Strategy};

/// The ladders of budgets that are tried, without and with a tier for values that do not fit.
pub(super) const LADDER: Ladder = Ladder::new(1.005);
const COARSE_LADDER: Ladder = Ladder::new(1.1);
/// The ladders of a long chain.
const LONG_LADDER: Ladder = Ladder::new(1.02);
const LONG_COARSE_LADDER: Ladder = Ladder::new(2.5);
/// Slots of the table: sizes are exact up to here and rounded up beyond.
const MAX_SLOTS: usize = 40_000;
/// Bytes the table may take while planning.
const MAX_TABLE_BYTES: usize = 64 << 20;
/// A chain is long if a schedule that keeps nothing has more runs than this. Their number is quadratic in the length of the
/// chain; beyond this the list of runs would be larger than the memory that such a schedule saves.
const MOST_RUNS: usize = 1 << 16;

/// A chain with its table filled.
#[derive(Debug)]
pub(crate) struct ChainOptimum {
    chain: Chain,
    options: Options,
    /// Filled when it is first needed: often the bound of a micro-batch shows that it is not needed.
    table: OnceCell<Filled>,
    /// The largest transient budget that the table answers for.
    cap: TransientBytes,
    turn: Turn,
    /// A bound on the time of any schedule.
    outline: Outline,
    /// The ways of treating the nodes ahead of the layers of the table.
    ways: Vec<Way>,
    /// Time of the nodes before the first layer, forward and backward.
    outside_seconds: f64,
    /// Time of everything once.
    once_seconds: f64,
    /// Layers that are taken together where the chain is long.
    group: Option<usize>,
    /// Slower orders are not offered: for a long chain, orders that recompute more than the whole forward pass.
    most_seconds: f64,
}

/// A table, of layers or of groups of them.
#[derive(Debug)]
enum Filled {
    Layers(Table),
    Groups(Box<Grouped>),
}

/// A treatment of the nodes before the layers of the table: the lead.
#[derive(Debug)]
struct Way {
    /// Values that the lead keeps, if there is one.
    keep: Option<Vec<Value>>,
    /// Bytes that are alive while the layers of the table run: graph inputs, named outputs, values made before them and
    /// read after them, and gradients that several parts contribute to.
    fixed_bytes: u64,
    /// Bytes without which the lead does not run.
    least_bytes: u64,
    /// Time of the lead's recomputation.
    seconds: f64,
}

impl ChainOptimum {
    /// The optimum of a chain that was found in `graph`, for transient budgets up to `cap`.
    pub(super) fn of_chain(
        graph: &Graph,
        facts: &Facts,
        scratch: Scratch,
        (chain, cap): (Chain, TransientBytes),
    ) -> ChainOptimum {
        let layers = chain.layers.len();
        // Layers are equal, but the first reads a boundary made outside; one from the middle represents all.
        let options = options(graph, facts, scratch, &chain.layers[layers / 2]);
        let (forward, backward) =
            peaks(graph, facts, scratch, &chain.turn, &all_values(graph, &chain.turn), &[]);
        let turn_peak = forward.max(backward);
        let seconds = |nodes: &[NodeId]| -> f64 {
            nodes.iter().map(|id| facts.nodes[id.index()].seconds_with(scratch)).sum()
        };
        let turn_seconds = seconds(&chain.turn.forward) + seconds(&chain.turn.backward);
        let outline = Outline::new(graph, facts, scratch, &chain);
        let (all, forward) = (outline.once_seconds, outline.forward_seconds);
        let one = options.forward_seconds + seconds(&chain.layers[0].backward);
        let outside_seconds = all - turn_seconds - layers as f64 * one;
        let ways = ways(graph, facts, scratch, &chain);
        let long = outline.long;
        ChainOptimum {
            chain,
            options,
            table: OnceCell::new(),
            cap,
            turn: Turn { peak: turn_peak, seconds: turn_seconds },
            outline,
            ways,
            outside_seconds,
            once_seconds: all,
            group: long.then(|| group_size(layers)),
            // A hair above, because sums are rounded.
            most_seconds: if long { (all + forward) * (1.0 + 1e-9) } else { f64::INFINITY },
        }
    }

    /// The same; none when the graph is no chain of equal layers.
    #[cfg(test)]
    pub(crate) fn new(
        graph: &Graph,
        facts: &Facts,
        scratch: Scratch,
        cap: TransientBytes,
    ) -> Option<ChainOptimum> {
        Some(ChainOptimum::of_chain(graph, facts, scratch, (Chain::find(graph)?, cap)))
    }

    fn filled(&self) -> &Filled {
        let layers = self.chain.layers.len();
        let most = self.keep_all_bytes().0;
        self.table.get_or_init(|| {
            if let Some(size) = self.group {
                let grouped = Grouped::fill(&self.options, layers, size, self.turn, most);
                return Filled::Groups(Box::new(grouped));
            }
            let max_slots = MAX_SLOTS.min(MAX_TABLE_BYTES / (16 * (layers + 1)));
            Filled::Layers(Table::fill(&self.options, layers, self.turn, most, max_slots, self.cap.0))
        })
    }

    /// The table that answers for the whole chain.
    fn table(&self) -> &Table {
        match self.filled() {
            Filled::Layers(table) => table,
            Filled::Groups(grouped) => grouped.groups(),
        }
    }

    /// Time of recomputation in a layer that keeps nothing.
    fn again_seconds(&self) -> f64 {
        let seconds = self.options.list.iter().map(|option| option.backward_seconds);
        let least = seconds.clone().fold(f64::INFINITY, f64::min);
        seconds.take(1).map(|nothing_kept| (nothing_kept - least) * (1.0 - 1e-9)).sum()
    }

    /// The treatment of each layer in `slot` slots.
    fn steps(&self, slot: usize) -> Option<Vec<Step>> {
        match self.filled() {
            Filled::Layers(table) => follow(table, Family::Turn, self.chain.layers.len(), slot),
            Filled::Groups(grouped) => grouped.follow(slot),
        }
    }

    /// The least transient budget at which nothing is recomputed; none when it is larger than the planner's.
    fn most_bytes(&self) -> Option<u64> {
        let fastest = self.outside_seconds + self.table().seconds(u64::MAX);
        let everything_kept = self.ways.iter().filter(|way| way.seconds == 0.0);
        let least = everything_kept.map(|way| way.fixed_bytes + self.table().enough_bytes()).min();
        // The tolerance covers the rounding of sums; recomputing even one node costs far more.
        least.filter(|_| fastest <= self.once_seconds * (1.0 + 1e-9))
    }

    /// The fastest way in `bytes` of transient memory, with its time and that of the layers of the table.
    fn best_way(&self, bytes: u64) -> Option<(&Way, f64)> {
        let fits = self.ways.iter().filter(|way| way.least_bytes.max(way.fixed_bytes) <= bytes);
        let timed = fits.map(|way| (way, way.seconds + self.table().seconds(bytes - way.fixed_bytes)));
        let fastest =
            timed.filter(|(_, seconds)| seconds.is_finite()).min_by(|(_, a), (_, b)| a.total_cmp(b));
        fastest.filter(|(_, seconds)| self.outside_seconds + seconds <= self.most_seconds)
    }

    /// The regions of the optimal plan in `bytes` of transient memory.
    fn regions(&self, graph: &Graph, bytes: u64) -> Option<Regions> {
        let (way, _) = self.best_way(bytes)?;
        let slot = self.table().slot(bytes - way.fixed_bytes);
        let lead = way.keep.clone().map(|keep| Item::Layer { layers: 0..self.chain.first, keep });
        let items = self.items(graph, &self.steps(slot)?, &mut 0);
        let items: Vec<Item> = lead.into_iter().chain(items).collect();
        Some(Regions::from_items(graph, &items))
    }

    /// The treatment of layers from `first` on, as items; `first` is advanced past them.
    fn items(&self, graph: &Graph, steps: &[Step], first: &mut usize) -> Vec<Item> {
        let mut items = Vec::new();
        for step in steps {
            items.push(match step {
                Step::Layer(option) => {
                    *first += 1;
                    self.layer(graph, *first - 1, *option)
                }
                Step::Segment(inside) => Item::Segment(self.items(graph, inside, first)),
            });
        }
        items
    }

    fn layer(&self, graph: &Graph, layer: usize, option: usize) -> Item {
        let start = self.chain.first + layer * self.chain.period;
        let keep = &self.options.list[option].keep;
        let keep = kept_values(graph, &self.chain.layers[layer], keep);
        Item::Layer { layers: start..start + self.chain.period, keep }
    }
}

impl Optimum for ChainOptimum {
    fn is_table(&self) -> bool {
        true
    }

    fn ladder(&self) -> Ladder {
        if self.is_long() { LONG_LADDER } else { LADDER }
    }

    fn budgets(&self, room: TransientBytes) -> Box<dyn Iterator<Item = TransientBytes> + '_> {
        let most = self.most_bytes().unwrap_or(u64::MAX);
        Box::new(self.ladder().within(room.0, most).map(TransientBytes))
    }

    fn smallest_budgets(&self) -> Vec<TransientBytes> {
        if !self.is_long() {
            return Vec::new();
        }
        let offered = |bytes: &TransientBytes| self.seconds(*bytes).is_finite();
        let mut budgets: Vec<TransientBytes> =
            self.budgets(TransientBytes(u64::MAX)).take_while(offered).collect();
        budgets.reverse();
        budgets
    }

    fn budgets_with_tier(&self) -> Vec<TransientBytes> {
        let ladder = if self.is_long() { LONG_COARSE_LADDER } else { COARSE_LADDER };
        distinct_rungs(self, ladder, self.most_bytes().unwrap_or(u64::MAX), 1)
    }

    fn keep_all_bytes(&self) -> TransientBytes {
        TransientBytes(self.options.keep_all_bytes(self.chain.layers.len(), self.turn.peak))
    }

    fn seconds(&self, bytes: TransientBytes) -> f64 {
        self.best_way(bytes.0).map_or(f64::INFINITY, |(_, seconds)| self.outside_seconds + seconds)
    }

    fn floor_seconds(&self, bytes: TransientBytes) -> f64 {
        self.seconds(bytes)
    }

    fn order(&self, graph: &Graph, bytes: TransientBytes) -> Option<Order> {
        self.regions(graph, bytes.0).map(Order::Regions)
    }

    fn lower_bound(&self, bytes: TransientBytes, link: Option<&Link>) -> f64 {
        self.outline.lower_bound(bytes, link)
    }

    /// With the strategy `minimal`, the backward pass of each layer begins with the forward passes of all layers
    /// before it, as far as its input depends on them.
    fn strategy_seconds(&self, strategy: Strategy) -> f64 {
        // Slightly less, because sums are rounded.
        let once = self.once_seconds * (1.0 - 1e-9);
        let layers = self.chain.layers.len();
        match strategy {
            Strategy::Minimal if self.is_long() => f64::INFINITY,
            Strategy::Minimal => self.once_seconds + self.options.passage_seconds * passages(layers) as f64,
            // A lower bound: each layer recomputes at least the values that its backward pass reads, and in groups more.
            Strategy::Full | Strategy::Sqrt | Strategy::Every(_) => {
                once + layers as f64 * self.again_seconds()
            }
            Strategy::None | Strategy::Selective => once,
            Strategy::Manual | Strategy::Auto => 0.0,
        }
    }

    /// At the turn, all layers but the last hold the values that their backward passes read. A layer's output is not
    /// counted, because the next layer need not read it again.
    fn strategy_bytes(&self, strategy: Strategy) -> u64 {
        let waiting = self.chain.layers.len() as u64 - 1;
        let whole = self.options.frontiers[0].iter().min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        match strategy {
            Strategy::None => {
                waiting * whole.map_or(0, |&(bytes, _)| bytes.saturating_sub(self.options.boundary_bytes))
            }
            _ => 0,
        }
    }

    fn is_long(&self) -> bool {
        self.group.is_some()
    }
}

/// How often layers run forward again only to reach later layers, if nothing is kept.
fn passages(layers: usize) -> usize {
    (layers - 1) * layers.saturating_sub(2) / 2
}

/// Whether a graph is best planned as a chain: equal layers are most of it, and nothing after them reads the values
/// that they passed to each other. All other parts of a chain keep everything they need.
pub(super) fn is_chain(graph: &Graph, chain: &Chain) -> bool {
    let inside = chain.layers.iter().map(|layer| layer.forward.len()).sum::<usize>();
    let outside = chain.before.forward.len() + chain.turn.forward.len();
    let passed: BTreeSet<Value> = chain.layers.iter().rev().skip(1).map(|layer| layer.output).collect();
    let skips = |id: &NodeId| {
        let mut inputs = graph.node(*id).inputs.iter();
        inputs.any(|&value| passed.contains(&graph.storage(value)))
    };
    inside >= outside && !chain.turn.forward.iter().any(skips)
}

/// Treatments of the lead: its options, or keeping everything.
fn ways(graph: &Graph, facts: &Facts, scratch: Scratch, chain: &Chain) -> Vec<Way> {
    let (forward, backward) =
        peaks(graph, facts, scratch, &chain.before, &all_values(graph, &chain.before), &[]);
    let boundary = aligned(graph.ty(chain.before.output).bytes() as u64, facts.alignment);
    let (before, fixed) = (forward.max(backward) + boundary, fixed_bytes(graph, facts, chain));
    let Some(lead) = &chain.lead else {
        return vec![Way { keep: None, fixed_bytes: fixed, least_bytes: before, seconds: 0.0 }];
    };
    let options = options(graph, facts, scratch, lead);
    let fastest = options.list.iter().map(|option| option.backward_seconds).fold(f64::INFINITY, f64::min);
    let way = |option: &LayerOption| Way {
        keep: Some(kept_values(graph, lead, &option.keep)),
        fixed_bytes: fixed + option.kept_bytes,
        least_bytes: before.max(fixed + option.forward_peak.max(option.backward_peak)),
        seconds: option.backward_seconds - fastest,
    };
    options.list.iter().map(way).collect()
}
