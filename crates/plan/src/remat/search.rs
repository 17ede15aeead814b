//! Best-first search over (position, resident set): better schedules, and proofs.
//!
//! A state says which once-node comes next and which forward outputs are resident; its cost so far is `g`. Two facts
//! bound the remaining cost, and together they order the search (A*, Hart et al. 1968). Once-nodes `p … q` need certain
//! outputs, and those that are missing must run before `q`. After `q` the cost is at least `W(q)` of the bound. So `f =
//! g + max over q of (missing for p … q) + W(q)`.
//!
//! **What is not tried, and why nothing is lost.** Any schedule can be brought into a lazy form that costs no more. A
//! drop waits until a run does not fit, and then only as much is dropped as that run needs. A run waits for its first
//! reader, unless waiting would keep a source that has to go. So from a state
//!
//! - the runs tried are those the next once-node lacks, and that node itself once it lacks nothing;
//! - where one of them does not fit, every smallest set of drops that makes room is tried;
//! - runs ahead of demand (a small output made while its source is still resident) are tried only where the useful
//!   outputs do not all fit at once; where they fit, waiting prevents no drop.
//!
//! When the search ends, the best schedule found is optimal; when its steps run out, the least open `f` is a lower
//! bound on the optimum. The **beam** is a narrower version of the same search, one once-node after the other. A few
//! states survive each position, and only the sets of drops that cost least per byte are tried; those that drop outputs
//! about to be read come last.
//!
//! Absent: clocks and randomness. Ties are broken by depth, then by age.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::lazy::{Action, Path};
use super::search_graph::SearchGraph;
use super::set::Set;

/// How wide the search goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Width {
    /// Runs tried between two once-nodes.
    pub(crate) runs: usize,
    /// Sets of drops tried for one run.
    pub(crate) drops: usize,
    /// States kept after each once-node.
    pub(crate) beam: usize,
}

/// A state to start from, with its path and the cost so far.
#[derive(Clone, Debug)]
pub(crate) struct Seed<const W: usize> {
    /// Runs up to the state, all of them forward.
    pub(crate) path: Path<W>,
    pub(crate) resident: Set<W>,
    pub(crate) cost: f64,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub(crate) struct Found<const W: usize> {
    /// A schedule cheaper than the limit, with the cost of its forward runs.
    pub(crate) better: Option<(Path<W>, f64)>,
    /// A lower bound on the cost of the forward runs of any schedule.
    pub(crate) lower: f64,
}

/// The search on one graph and budget.
pub(crate) struct Search<'a, const W: usize> {
    graph: &'a SearchGraph<W>,
    memory: u64,
    after: &'a [f64],
    /// Only schedules cheaper than this are of interest.
    limit: f64,
    /// Whether, at each position, all that is useful does not fit at once.
    short: Vec<bool>,
    states: Vec<State<W>>,
    /// Set operations so far; their number limits the search.
    work: Cell<u64>,
    allowed: u64,
    /// If the work exceeds this number, the search gives up even a position that it has begun.
    most: u64,
    /// Whether runs ahead of demand are tried.
    ahead: bool,
}

#[derive(Clone, Copy, Debug)]
struct State<const W: usize> {
    resident: Set<W>,
    position: u32,
    parent: u32,
    action: Action,
    cost: f64,
}

const ROOT: u32 = u32::MAX;
/// Bytes of the states of one search; the map of known sets takes about as much again.
const STATE_BYTES: usize = 256 << 20;

/// An open state, the most promising greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Open {
    total: f64,
    position: u32,
    cost: f64,
    state: u32,
}

impl Eq for Open {}

impl Ord for Open {
    fn cmp(&self, other: &Open) -> Ordering {
        let cheaper = other.total.total_cmp(&self.total);
        let deeper = self.position.cmp(&other.position).then_with(|| self.cost.total_cmp(&other.cost));
        cheaper.then(deeper).then_with(|| other.state.cmp(&self.state))
    }
}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Open) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A run and the set that is resident just before it.
type Move<const W: usize> = (Set<W>, Action);

impl<'a, const W: usize> Search<'a, W> {
    /// A search for schedules whose forward runs cost less than `limit`, within this much work; `after` comes from the
    /// bound.
    pub(crate) fn new(
        graph: &'a SearchGraph<W>,
        memory: u64,
        after: &'a [f64],
        limit: f64,
        allowed: u64,
    ) -> Search<'a, W> {
        let beside =
            graph.running.iter().zip(&graph.bytes).map(|(running, bytes)| running.saturating_sub(*bytes));
        let beside = beside.max().unwrap_or(0);
        let whole =
            |at: usize| graph.held[at] + graph.size(&graph.useful[at]) + graph.once_running[at].max(beside);
        let short = (0..graph.once_ids.len()).map(|at| whole(at) > memory).collect();
        let (states, work) = (Vec::new(), Cell::new(0));
        let most = u64::MAX;
        Search { graph, memory, after, limit, short, states, work, allowed, most, ahead: false }
    }

    /// The same, which also gives up a position that has begun when this work is done.
    pub(crate) fn at_most(self, most: u64) -> Search<'a, W> {
        Search { most, ..self }
    }

    /// The search over every set of drops, and the work it took. Only with runs `ahead` of demand is the search complete and
    /// its bound valid; without them good schedules are found sooner.
    pub(crate) fn exact(mut self, ahead: bool) -> (Found<W>, u64) {
        self.ahead = ahead;
        let mut best: HashMap<(u32, Set<W>), f64> = HashMap::new();
        let mut heap = BinaryHeap::new();
        let root =
            State { resident: Set::EMPTY, position: 0, parent: ROOT, action: Action::Once(0), cost: 0.0 };
        self.push(root, &mut heap, &mut best);
        let mut moves = Vec::new();
        while let Some(open) = heap.pop() {
            let state = self.states[open.state as usize];
            if best[&(state.position, state.resident)] < state.cost {
                continue;
            }
            if state.position as usize == self.graph.once_ids.len() {
                let better = Some((self.path(open.state, &[]), state.cost));
                return (Found { better, lower: state.cost }, self.work.get());
            }
            moves.clear();
            self.moves(&state, None, &mut moves);
            if self.exhausted() {
                return (Found { better: None, lower: open.total }, self.work.get());
            }
            for &next in &moves {
                let child = self.child(open.state, next);
                self.push(child, &mut heap, &mut best);
            }
        }
        (Found { better: None, lower: self.limit }, self.work.get())
    }

    /// The search with a beam from `seeds`, which are states before the first once-node; from the start if there are
    /// none. Returns a cheaper schedule if it finds one, and the work it took.
    pub(crate) fn beam(mut self, seeds: &[Seed<W>], width: Width) -> (Option<(Path<W>, f64)>, u64) {
        let start =
            State { resident: Set::EMPTY, position: 0, parent: ROOT, action: Action::Once(0), cost: 0.0 };
        // The first states are the start and the seeds, so that the root of a path identifies its seed.
        self.states.push(start);
        let seed_state = |seed: &Seed<W>| State { resident: seed.resident, cost: seed.cost, ..start };
        self.states.extend(seeds.iter().map(seed_state));
        // The way from the start is long, and would use up the steps of the first position.
        let first = u32::from(!seeds.is_empty());
        let mut level: Vec<u32> = (first..self.states.len() as u32).collect();
        for position in 0..self.graph.once_ids.len() {
            level = self.advance(position as u32, level, width);
        }
        let cheapest =
            |a: &&u32, b: &&u32| self.states[**a as usize].cost.total_cmp(&self.states[**b as usize].cost);
        let last = level.iter().min_by(cheapest);
        let better = last.map(|&last| (self.path(last, seeds), self.states[last as usize].cost));
        (better, self.work.get())
    }

    /// Brings the states of a beam past the once-node at `position`. Each round adds one run to every state that is
    /// not past it yet.
    fn advance(&mut self, position: u32, level: Vec<u32>, width: Width) -> Vec<u32> {
        let mut best: HashMap<(u32, Set<W>), f64> = HashMap::new();
        let (mut here, mut past) = (level, Vec::new());
        let mut moves = Vec::new();
        for _ in 0..width.runs {
            let mut next = BinaryHeap::new();
            for index in here {
                if self.is_beyond() {
                    break;
                }
                let state = self.states[index as usize];
                moves.clear();
                self.moves(&state, Some(width.drops), &mut moves);
                for &run in &moves {
                    let child = self.child(index, run);
                    self.push(child, &mut next, &mut best);
                }
            }
            here = Vec::new();
            while let Some(open) = next.pop() {
                if open.position > position {
                    past.push(open);
                } else if here.len() < width.beam {
                    here.push(open.state);
                }
            }
            if here.is_empty() || self.exhausted() {
                break;
            }
        }
        past.sort_by(|a, b| b.cmp(a));
        past.truncate(width.beam);
        past.into_iter().map(|open| open.state).collect()
    }

    fn push(&mut self, state: State<W>, heap: &mut BinaryHeap<Open>, best: &mut HashMap<(u32, Set<W>), f64>) {
        let known = best.entry((state.position, state.resident)).or_insert(f64::INFINITY);
        if state.cost >= *known {
            return;
        }
        let index = self.states.len() as u32;
        if let Some(open) = self.open(&state, index) {
            *known = state.cost;
            self.states.push(state);
            heap.push(open);
        }
    }

    /// The state as an open one, unless it cannot lead below the limit.
    fn open(&self, state: &State<W>, index: u32) -> Option<Open> {
        let total = state.cost + self.to_pay(state.position as usize, &state.resident);
        let open = Open { total, position: state.position, cost: state.cost, state: index };
        (total < self.limit).then_some(open)
    }

    /// A lower bound on the cost of forward runs from here on.
    fn to_pay(&self, position: usize, resident: &Set<W>) -> f64 {
        let graph = self.graph;
        let (mut done, mut cost, mut most) = (*resident, 0.0f64, 0.0f64);
        let mut work = 1;
        for at in position..graph.once_ids.len() {
            work += 1;
            // If nothing more can be missing, the bound only falls from here on.
            if graph.later[at].is_subset(&done) {
                most = most.max(cost + self.after[at]);
                break;
            }
            let mut open = graph.needs[at].minus(&done);
            while let Some(node) = open.first() {
                work += 1;
                done.insert(node);
                cost += graph.cost[node];
                open = open.union(&graph.sources[node]).minus(&done);
            }
            most = most.max(cost + self.after[at]);
        }
        self.work.set(self.work.get() + work);
        most
    }

    fn exhausted(&self) -> bool {
        self.work.get() > self.allowed || self.states.len() * size_of::<State<W>>() > STATE_BYTES
    }

    fn is_beyond(&self) -> bool {
        self.work.get() > self.most
    }

    fn child(&self, parent: u32, (resident, action): Move<W>) -> State<W> {
        let before = self.states[parent as usize];
        let (resident, position, cost) = match action {
            Action::Forward(node) => {
                (resident.with(node), before.position, before.cost + self.graph.cost[node])
            }
            Action::Once(position) => {
                let next = position + 1;
                (resident.intersection(&self.graph.useful[next]), next as u32, before.cost)
            }
        };
        State { resident, position, parent, action, cost }
    }

    /// The moves worth trying from a state; `drops` limits the sets of drops for each run.
    fn moves(&self, state: &State<W>, drops: Option<usize>, moves: &mut Vec<Move<W>>) {
        let graph = self.graph;
        let position = state.position as usize;
        let resident = &state.resident;
        let lacking = graph.missing(&graph.needs[position], resident);
        let ready = |node: &usize| graph.sources[*node].is_subset(resident);
        if lacking.is_empty() {
            self.make_room(state, Action::Once(position), drops, moves);
        }
        for node in lacking.iter().filter(ready).take_while(|_| !self.is_beyond()) {
            self.make_room(state, Action::Forward(node), drops, moves);
        }
        if self.short[position] && self.ahead {
            let ahead = graph.useful[position].minus(resident).minus(&lacking);
            for node in ahead.iter().filter(ready).take_while(|_| !self.is_beyond()) {
                self.make_room(state, Action::Forward(node), drops, moves);
            }
        }
    }

    /// Adds the run with every smallest set of drops that lets it fit.
    fn make_room(&self, state: &State<W>, action: Action, drops: Option<usize>, moves: &mut Vec<Move<W>>) {
        let graph = self.graph;
        let position = state.position as usize;
        let (own, reads) = match action {
            Action::Forward(node) => (graph.running[node], &graph.sources[node]),
            Action::Once(position) => (graph.once_running[position], &graph.needs[position]),
        };
        let taken = graph.held[position] + graph.size(&state.resident) + own;
        let Some(excess) = taken.checked_sub(self.memory).filter(|&excess| excess > 0) else {
            moves.push((state.resident, action));
            return;
        };
        let mut candidates: Vec<usize> =
            state.resident.minus(reads).iter().filter(|&node| graph.bytes[node] > 0).collect();
        if drops.is_some() {
            candidates = self.cheapest_first(state, &candidates);
        } else {
            // The largest outputs come first: then no set that the last drop completes contains a needless drop.
            candidates.sort_by_key(|&node| (std::cmp::Reverse(graph.bytes[node]), node));
        }
        let mut room = Room {
            search: self,
            state,
            action,
            excess,
            candidates: &candidates,
            left: drops.unwrap_or(usize::MAX),
            patience: drops.map_or(usize::MAX, |drops| 16 * drops),
            moves,
        };
        room.drop_from(0, state.resident, 0, candidates.iter().map(|&node| graph.bytes[node]).sum());
    }

    /// Outputs that may be dropped, by the cost of getting a byte of them back; those about to be read come last.
    fn cheapest_first(&self, state: &State<W>, candidates: &[usize]) -> Vec<usize> {
        let position = state.position as usize;
        let free = self.to_pay(position, &state.resident);
        let price = |node: usize| self.to_pay(position, &state.resident.without(node));
        let urgent = self.urgent(state);
        let mut priced: Vec<(bool, f64, usize)> = (candidates.iter())
            .take_while(|_| !self.is_beyond())
            .map(|&node| (price(node), node))
            .filter(|&(price, _)| state.cost + price < self.limit)
            .map(|(price, node)| {
                (urgent.contains(node), (price - free) / self.graph.bytes[node] as f64, node)
            })
            .collect();
        priced.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(b.2.cmp(&a.2)));
        priced.into_iter().map(|(_, _, node)| node).collect()
    }

    /// Outputs that the next once-node reads, and outputs needed to recompute these. A beam search that drops such an output
    /// because it is cheap must recompute it soon, drops another one for that, and so makes no progress.
    fn urgent(&self, state: &State<W>) -> Set<W> {
        let needs = &self.graph.needs[state.position as usize];
        let lacking = self.graph.missing(needs, &state.resident);
        lacking.iter().fold(*needs, |urgent, node| urgent.union(&self.graph.sources[node]))
    }

    /// The runs that lead to a state.
    fn path(&self, mut index: u32, seeds: &[Seed<W>]) -> Path<W> {
        let mut path = Vec::new();
        loop {
            let state = &self.states[index as usize];
            if state.parent == ROOT {
                break;
            }
            let before = match state.action {
                Action::Forward(node) => state.resident.without(node),
                // The run's inputs were still resident; every other value that is gone could have been dropped before
                // it.
                Action::Once(position) => state.resident.union(&self.graph.needs[position]),
            };
            path.push((before, state.action));
            index = state.parent;
        }
        let seed = (index as usize).checked_sub(1).and_then(|seed| seeds.get(seed));
        path.extend(seed.iter().flat_map(|seed| seed.path.iter().rev().copied()));
        path.reverse();
        path
    }
}

/// The recursion over sets of drops for one run.
struct Room<'a, 'b, const W: usize> {
    search: &'a Search<'b, W>,
    state: &'a State<W>,
    action: Action,
    excess: u64,
    candidates: &'a [usize],
    /// Sets still wanted.
    left: usize,
    /// Number of branches still to be tried.
    patience: usize,
    moves: &'a mut Vec<Move<W>>,
}

impl<const W: usize> Room<'_, '_, W> {
    fn drop_from(&mut self, from: usize, resident: Set<W>, freed: u64, rest: u64) {
        if freed >= self.excess {
            self.moves.push((resident, self.action));
            self.left -= 1;
            return;
        }
        if from == self.candidates.len() || freed + rest < self.excess {
            return;
        }
        if self.left == 0 || self.patience == 0 || self.search.exhausted() {
            return;
        }
        self.patience -= 1;
        let node = self.candidates[from];
        let bytes = self.search.graph.bytes[node];
        let without = resident.without(node);
        let position = self.state.position as usize;
        if self.state.cost + self.search.to_pay(position, &without) < self.search.limit {
            self.drop_from(from + 1, without, freed + bytes, rest - bytes);
        }
        self.drop_from(from + 1, resident, freed, rest - bytes);
    }
}
