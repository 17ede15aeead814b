//! Moves values and state to another tier while no run reads them, so that the rest fits into fewer bytes.
//!
//! Every value and every range of state has *gaps*: stretches of runs between two of its users. In a gap other data can
//! use its bytes:
//!
//! ```text
//!            written        last forward reader          first backward reader
//! value        w───r────────r · · · · · · · · · · · · · · · · r────r
//! out            start───────────wait                                      bytes busy until the wait
//! in                                             start────────wait         bytes busy from the start
//!
//! state · · · · · · r────r · · · · · · · · · · · · · · · · r────w · · · ·  away before its first user and behind its
//! in        start───wait                         start─────wait            last; out only what was written since it
//! out                                                           start──wait  came in
//! ```
//!
//! *Which gaps are used*: state that is away always uses the gap before its first user and the gap after its last. For
//! everything else Belady's rule decides. Go through the runs in order; wherever more bytes are alive than allowed, send
//! away the value whose next read comes last. In training the first layers made that value, so it was also made first.
//! The link out is therefore in use from the beginning of the forward pass, and the link in from the turn on, each for as
//! long as compute takes. A quota of transfers for every layer would hide no more traffic behind compute, and would need
//! room for the transfers of two layers. The rule chooses among all values of the model, so it has no need to send a part
//! of one.
//!
//! *When* a transfer begins is decided in `timing`. Decided elsewhere: what is recomputed (by the order of runs), and which
//! state is away (by the residency).

mod live;
mod stays;
mod timing;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use plimsoll_graph::{Graph, Value};

use crate::device::{Facts, Link, Scratch, aligned};
use crate::layout::{ExchangeClock, ExchangeRun, compute_seconds, live_in_runs};
use crate::schedule::sequence::{Operand, Sequence};
pub(crate) use stays::ResidentRuns;
use timing::{Placing, Record};

/// An order of runs whose values may be sent away.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Transfers {
    link: Link,
    /// Numbers of its runs and of its instances, and the bytes of the tier that hold state.
    runs: usize,
    instances: usize,
    taken: u64,
    /// Bytes alive during each run when only the fixed gaps are used.
    live: Vec<u64>,
    /// Time of each run on the processor, and of all before it if compute never waits; the last entry is the time of all.
    seconds: Arc<[f64]>,
    until: Arc<[f64]>,
    /// Runs that are exchanges between ranks, whose time is on the wire.
    exchanges: Arc<[ExchangeRun]>,
    /// Gaps that may be used, the one that ends last first.
    gaps: Vec<Gap>,
    /// The first run of each of them with its index, in the order of runs.
    begin: Vec<(u32, u32)>,
    /// Gaps of state before its first user and after its last: state lives on the tier, so these are always used.
    fixed: Vec<Gap>,
    /// The last instances are state. The index of the first of them, and the place of each in the tier.
    homes: Vec<u64>,
    first_home: usize,
    /// Bytes of state that are fetched before each run, and bytes that go out after it because it or a later run writes
    /// them.
    inward: Vec<u64>,
    outward: Vec<u64>,
    /// The most bytes alive during one run when every gap is used.
    least: u64,
}

/// A stretch of runs in which an instance is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    instance: usize,
    bytes: u64,
    /// The last run before the gap that writes the instance, if one does.
    written: Option<usize>,
    /// The first run of the gap, 0 before the first user of state.
    from: usize,
    /// The user that ends the gap; one past the last run for the gap after the last user of state.
    before: usize,
}

impl Transfers {
    /// Finds the gaps of `sequence`; none when the device has no other tier.
    pub(crate) fn new(
        graph: &Graph,
        facts: &Facts,
        scratch: Scratch,
        sequence: &Sequence,
    ) -> Option<Transfers> {
        let link = facts.link?;
        let named: BTreeSet<Value> = graph.outputs().iter().map(|(_, value)| graph.storage(*value)).collect();
        let size = |value: Value| aligned(graph.ty(value).bytes() as u64, facts.alignment);
        let worth = |value: Value| size(value) >= link.block && !named.contains(&value);
        let (first_home, homes) = homes(graph, sequence);
        let runs = sequence.executions.len();
        let (mut live, exchanges) = live_in_runs(graph, facts, scratch, sequence);
        let mut gaps = gaps(sequence, first_home, &exchanges);
        for gap in &mut gaps {
            gap.bytes = size(sequence.instances[gap.instance]);
        }
        let (mut fixed, mut gaps): (Vec<Gap>, Vec<Gap>) =
            gaps.into_iter().partition(|gap| gap.from == 0 || gap.before == runs);
        gaps.retain(|gap| worth(sequence.instances[gap.instance]));
        gaps.shrink_to_fit();
        gaps.sort_by(order_of);
        fixed.shrink_to_fit();
        spare_before(&mut live, fixed.iter().filter(|gap| gap.from == 0));
        let seconds = sequence.executions.iter().map(|run| compute_seconds(graph, facts, scratch, run.node));
        let seconds: Arc<[f64]> = seconds.collect();
        let (inward, outward) = certain(&fixed, runs);
        Some(Transfers {
            link,
            runs,
            instances: sequence.instances.len(),
            taken: sequence.taken,
            until: prefix_sums(&seconds),
            seconds,
            exchanges: exchanges.into(),
            begin: begin(&gaps, runs),
            least: least_bytes(&live, &gaps),
            live,
            gaps,
            fixed,
            homes,
            first_home,
            inward,
            outward,
        })
    }

    /// Number of runs.
    pub(crate) fn runs(&self) -> usize {
        self.runs
    }

    /// Place in the tier of an instance, if it is state.
    fn home(&self, instance: usize) -> Option<u64> {
        self.homes.get(instance.checked_sub(self.first_home)?).copied()
    }

    /// The most bytes alive during one run when everything possible is sent away; no lower limit can be met.
    pub(crate) fn least_bytes(&self) -> u64 {
        self.least
    }

    /// Time of all runs when none stands still.
    pub(crate) fn busy_seconds(&self) -> f64 {
        self.until.last().copied().unwrap_or(0.0)
    }

    /// The most bytes alive during one run when only state that is away is sent.
    pub(crate) fn most_bytes(&self) -> u64 {
        self.live.iter().copied().max().unwrap_or(0)
    }

    /// A lower bound on the time of any schedule that keeps at most `limit` bytes alive. Values that do not fit beside
    /// a run have gone out before it and come in after it; state that is away comes in before its first user and goes
    /// out after its last writer. So the part of the schedule up to any run takes at least as long as its transfers,
    /// and so does the part from that run on.
    pub(crate) fn lower_bound(&self, limit: u64) -> f64 {
        let Link { out_rate, in_rate, toll, .. } = self.link;
        let (limit, busy) = (limit.max(self.least), self.busy_seconds());
        let come = self.inward.last().copied().unwrap_or(0);
        let mut most: f64 = 0.0;
        for (run, &live) in self.live.iter().enumerate() {
            let (there, home) = (self.inward[run], self.outward[run]);
            let back = live.saturating_sub(limit);
            // State that was not written needs no transfer out.
            let out = back.saturating_sub(come);
            let until = self.until[run];
            let before =
                (until + toll * (out + there) as f64).max(out as f64 / out_rate).max(there as f64 / in_rate);
            let behind = (busy - until + toll * (back + home) as f64)
                .max(self.seconds[run] + back as f64 / in_rate)
                .max(home as f64 / out_rate);
            most = most.max(before + behind);
        }
        most.max(come as f64 / in_rate).max(busy)
    }

    /// Time of the order with transfers that keep at most `limit` bytes alive, or as few as can be; none when the tier
    /// has no room for the buffers that must go.
    pub(crate) fn seconds_within(&self, limit: u64) -> Option<f64> {
        self.seconds_below(limit, f64::INFINITY)
    }

    /// The same, except that the walk ends early once the time is known to be at least `enough`, and returns some such
    /// time.
    pub(crate) fn seconds_below(&self, limit: u64, enough: f64) -> Option<f64> {
        self.walk(limit, enough, Record::Time, |placing, left| placing.clock + left)
    }

    /// The order with transfers that keep at most `limit` bytes alive. Its runs are those of `sequence`.
    pub(crate) fn within(&self, limit: u64, sequence: &Sequence) -> Option<Sequence> {
        self.walk(limit, f64::INFINITY, Record::Transfers, |placing, _| placing.apply(sequence))
    }

    /// Walks over the runs, and passes the result to `end`. Stops once the time so far plus the remaining runs reaches
    /// `enough`.
    fn walk<T>(
        &self,
        limit: u64,
        enough: f64,
        record: Record,
        end: impl FnOnce(Placing, f64) -> T,
    ) -> Option<T> {
        let (chosen, live) = self.choose(limit);
        let mut placing = Placing::new(self, &chosen, live, limit, record)?;
        let busy = self.busy_seconds();
        let mut wire = ExchangeClock::new(&self.exchanges);
        for (run, seconds) in self.seconds.iter().enumerate() {
            placing.clock = wire.awaited(run, placing.clock);
            placing.before(run);
            let left = busy - self.until[run];
            if placing.clock + left >= enough {
                return Some(end(placing, left));
            }
            wire.begin(run, placing.clock);
            placing.clock += seconds;
        }
        placing.clock = wire.awaited(self.runs, placing.clock);
        placing.close();
        Some(end(placing, 0.0))
    }

    /// Belady's rule: the gaps to use, and the bytes alive during each run outside them.
    fn choose(&self, limit: u64) -> (Vec<Gap>, Vec<u64>) {
        let runs = self.runs;
        let mut chosen = self.fixed.clone();
        // Bytes that chosen gaps spare from a run on, and bytes that they spare no longer.
        let (mut spared, mut regained) = (vec![0; runs + 1], vec![0; runs + 1]);
        let mut sparing = 0;
        // Gaps that have begun, the one that ends last first.
        let mut open = BinaryHeap::new();
        let mut beginning = self.begin.iter().copied().peekable();
        for run in 0..runs {
            sparing -= regained[run];
            while let Some((_, index)) = beginning.next_if(|&(from, _)| from as usize <= run) {
                open.push(Reverse(index as usize));
            }
            while self.live[run] - sparing > limit {
                let Some(gap) = open.pop().map(|Reverse(index)| self.gaps[index]) else { break };
                if gap.before <= run {
                    // The same holds for every other gap that has begun.
                    open.clear();
                    break;
                }
                spared[gap.from] += gap.bytes;
                regained[gap.before] += gap.bytes;
                sparing += gap.bytes;
                chosen.push(gap);
            }
        }
        let mut live = self.live.clone();
        sparing = 0;
        for (run, bytes) in live.iter_mut().enumerate() {
            sparing = sparing + spared[run] - regained[run];
            *bytes -= sparing;
        }
        (chosen, live)
    }
}

/// Subtracts the bytes of gaps that begin with the first run, up to the end of each gap.
fn spare_before<'a>(live: &mut [u64], gaps: impl Iterator<Item = &'a Gap>) {
    let mut ends = vec![0; live.len() + 1];
    gaps.for_each(|gap| ends[gap.before] += gap.bytes);
    let mut spared = ends[live.len()];
    for run in (0..live.len()).rev() {
        live[run] -= spared;
        spared += ends[run];
    }
}

/// The first of the instances that are state, which follow all others, and their places in the tier.
fn homes(graph: &Graph, sequence: &Sequence) -> (usize, Vec<u64>) {
    let mut away: Vec<Option<u64>> = vec![None; graph.states().len()];
    for range in &sequence.away {
        away[range.state.index()] = Some(range.tier_offset);
    }
    let home = |value: &Value| away[graph.value(*value).state?.0.index()];
    let mut homes: Vec<u64> = sequence.instances.iter().rev().map_while(home).collect();
    homes.reverse();
    (sequence.instances.len() - homes.len(), homes)
}

/// The order of gaps: the one that ends last first, and among equals the largest.
fn order_of(a: &Gap, b: &Gap) -> Ordering {
    (b.before, b.bytes, a.instance).cmp(&(a.before, a.bytes, b.instance))
}

/// The first run of each gap with its index, in the order of runs, and of indices for each run.
fn begin(gaps: &[Gap], runs: usize) -> Vec<(u32, u32)> {
    let listed: Vec<(u32, u32)> = (0..).zip(gaps).map(|(index, gap)| (gap.from as u32, index)).collect();
    sorted(&listed, runs)
}

/// Pairs by their first number, which is `most` at the most; pairs with equal numbers keep their order. Linear, because a
/// search sorts lists of this kind for every combination that it times.
fn sorted(pairs: &[(u32, u32)], most: usize) -> Vec<(u32, u32)> {
    let mut next = vec![0u32; most + 1];
    for &(number, _) in pairs {
        next[number as usize] += 1;
    }
    let mut before = 0;
    for count in &mut next {
        before += std::mem::replace(count, before);
    }
    let mut sorted = vec![(0, 0); pairs.len()];
    for &pair in pairs {
        let place = &mut next[pair.0 as usize];
        sorted[*place as usize] = pair;
        *place += 1;
    }
    sorted
}

/// The most bytes alive during one run when every gap is used.
fn least_bytes(live: &[u64], gaps: &[Gap]) -> u64 {
    let mut change = vec![0i64; live.len() + 1];
    for gap in gaps {
        change[gap.from] += gap.bytes as i64;
        change[gap.before] -= gap.bytes as i64;
    }
    let mut spared = 0;
    let alive = live.iter().zip(&change).map(|(&live, change)| {
        spared += change;
        live - spared as u64
    });
    alive.max().unwrap_or(0)
}

/// The gaps of all instances that a run writes, and of state, whose instances begin with `first_home`. Operands of an
/// exchange are in use until it is awaited. Sizes are filled in by the caller.
fn gaps(sequence: &Sequence, first_home: usize, exchanges: &[ExchangeRun]) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let mut exchanges = exchanges.iter().peekable();
    // The last write of each instance, and the run after its last use; 0 for state that no run has used yet.
    let mut known: Vec<Option<(Option<usize>, usize)>> = vec![None; sequence.instances.len()];
    known[first_home..].fill(Some((None, 0)));
    for (run, execution) in sequence.executions.iter().enumerate() {
        let exchange = exchanges.next_if(|exchange| exchange.run == run);
        // The run from which its operands are out of use.
        let end = exchange.map_or(run + 1, |exchange| exchange.awaited);
        let (inputs, outputs) = sequence.operands_of(execution);
        let inputs = inputs.iter().map(|place| (place, false));
        for (place, writes) in inputs.chain(outputs.iter().map(|place| (place, true))) {
            let Operand::Instance(instance) = *place else { continue };
            let instance = instance as usize;
            let mut written = None;
            if let Some((before, from)) = known[instance] {
                if from < run || from == 0 {
                    gaps.push(Gap { instance, bytes: 0, written: before, from, before: run });
                }
                written = before;
            } else if !writes {
                // An input of the graph stays where the caller wrote it.
                continue;
            }
            known[instance] = Some((if writes { Some(end - 1) } else { written }, end));
        }
    }
    for (instance, known) in known.into_iter().enumerate().skip(first_home) {
        if let Some((written, from)) = known.filter(|&(_, from)| from > 0) {
            gaps.push(Gap { instance, bytes: 0, written, from, before: sequence.executions.len() });
        }
    }
    gaps
}

/// The sum of all numbers before each, and of all.
fn prefix_sums(numbers: &[f64]) -> Arc<[f64]> {
    let sums = numbers.iter().scan(0.0, |sum, number| {
        *sum += number;
        Some(*sum)
    });
    std::iter::once(0.0).chain(sums).collect()
}

/// Bytes that fixed gaps fetch before each run and after the last, and bytes that they send out after each.
fn certain(fixed: &[Gap], runs: usize) -> (Vec<u64>, Vec<u64>) {
    let (mut inward, mut outward) = (vec![0; runs + 1], vec![0; runs + 1]);
    for gap in fixed {
        match gap.written {
            _ if gap.from == 0 => inward[gap.before] += gap.bytes,
            Some(run) => outward[run] += gap.bytes,
            None => {}
        }
    }
    (1..=runs).for_each(|run| inward[run] += inward[run - 1]);
    (0..runs).rev().for_each(|run| outward[run] += outward[run + 1]);
    (inward, outward)
}

#[cfg(test)]
mod tests;
