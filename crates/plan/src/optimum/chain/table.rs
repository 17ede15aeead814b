//! The dynamic program over a chain of equal layers: the least time for every length and every budget.
//!
//! After Beaumont et al. (rotor, 2019), with many options per layer and, because layers are equal, a state
//! of (length, bytes) instead of (first, last, bytes). Two families, both without the segment's input:
//!
//! ```text
//! T[n][m]   the last n layers and the turn behind them
//! I[n][m]   n layers inside a dropped segment, with the gradient d of its output in memory
//!
//! first layer by option k:   forward + backward_k + T[n−1][m − kept_k]
//! first j > 1 dropped:       j·forward + T[n−j][m − a − j·p] + I[j][m]        a: the boundary that is kept
//! ```
//!
//! A dropped segment of one layer runs no forward pass first: its backward pass recomputes the values it reads and
//! nothing more. One table answers every budget up to its largest.
//!
//! `p` are the bytes of a layer's pinned values, which are computed only once. Every option keeps them. In a dropped
//! segment those of all its layers exist from the beginning, each until its layer has gone backward. Inside a segment
//! the forward pass computes only what the next layer needs, and an option that keeps anything else is not offered.
//!
//! More memory is never slower, so a row falls and then stays at its least time; it is stored up to that point. Only
//! times are stored: a decision is needed a few hundred times at most and is then found by trying all candidates again,
//! while plain minima over a row are fast to compute.
//!
//! Bytes are counted in units. With the greatest common divisor of all sizes the table is exact; if that takes more
//! slots than allowed, sizes are rounded up, so that a plan never needs more than it says.

use super::options::Options;

/// The treatment of the first layer of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The layer is treated by the option of this index.
    Option(usize),
    /// This layer and the following ones, this many in all, are dropped and recomputed as a segment.
    Drop(usize),
}

/// Which family a segment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Ends at the turn.
    Turn,
    /// Inside a dropped segment.
    Inner,
}

/// The nodes between the forward and the backward pass of the last layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// The most bytes alive while these nodes run.
    pub(crate) peak: u64,
    pub(crate) seconds: f64,
}

/// The filled table.
#[derive(Debug)]
pub(crate) struct Table {
    unit: u64,
    slots: usize,
    units: Units,
    turn: Vec<Row>,
    inner: Vec<Row>,
}

/// How bytes become slots: the bytes of one, and how many there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) unit: u64,
    pub(crate) slots: usize,
}

/// Least times of one length by slot: falling, and constant from its end on.
#[derive(Clone, Debug)]
pub(crate) struct Row(Vec<f64>);

/// Sizes in units, rounded up, and times.
#[derive(Debug)]
struct Units {
    options: Vec<OptionUnits>,
    forward_seconds: f64,
    /// Seconds of a forward pass inside a dropped segment.
    again_seconds: f64,
    boundary: usize,
    /// Bytes of results that a layer makes once.
    pinned: usize,
    /// Peaks of a layer of which nothing is kept.
    passing: Passing,
}

/// The most bytes alive while a layer runs of which nothing is kept: in its first run, and when it runs again, where pinned
/// values are not counted.
#[derive(Clone, Copy, Debug)]
struct Passing {
    first: usize,
    again: usize,
}

#[derive(Debug)]
struct OptionUnits {
    kept: usize,
    forward_peak: usize,
    again_peak: usize,
    backward_peak: usize,
    backward_seconds: f64,
    on_passage: bool,
}

/// One decision as the recurrence sees it: the slots in which it is possible, and the parts of its time.
struct Candidate<'a> {
    decision: Decision,
    from: usize,
    seconds: f64,
    /// Times of the layers that follow.
    rest: &'a Row,
    /// Slots that the decision takes from the layers that follow.
    held: usize,
    /// The dropped segment, if there is one.
    segment: Option<&'a Row>,
}

impl Table {
    /// Fills the table for `layers` layers and budgets up to `cap` bytes. Units are chosen so that `most` bytes, which
    /// keep everything, take `max_slots` slots; so decisions do not depend on the cap.
    pub(crate) fn fill(
        options: &Options,
        layers: usize,
        turn: Turn,
        most: u64,
        max_slots: usize,
        cap: u64,
    ) -> Table {
        let unit = unit(options, turn.peak, most, max_slots);
        // Each size may be rounded up once.
        let slots = ((most / unit) as usize + layers + 3).min(((cap / unit) as usize).saturating_add(1));
        Table::with_scale(options, layers, turn, Scale { unit, slots })
    }

    /// Fills the table for `layers` layers on a given scale.
    pub(crate) fn with_scale(options: &Options, layers: usize, turn: Turn, scale: Scale) -> Table {
        let Scale { unit, slots } = scale;
        let turn = Row::step(turn.peak.div_ceil(unit) as usize, turn.seconds, slots);
        Table::from_rows(Units::new(options, unit), layers, scale, (vec![turn], Vec::new()))
    }

    /// Fills a table whose layers are groups of `size` layers of `fine`, with the options in `groups`. Its turn is that
    /// of `fine` with the last `rest` layers, and a segment of one group is a segment of `size` layers in `fine`.
    pub(crate) fn of_groups(
        groups: &Options,
        count: usize,
        (fine, size, rest): (&Table, usize, usize),
    ) -> Table {
        let scale = Scale { unit: fine.unit, slots: fine.slots };
        let units = Units { passing: fine.units.passing, ..Units::new(groups, fine.unit) };
        let inner = vec![fine.inner[0].clone(), fine.inner[size].clone()];
        Table::from_rows(units, count, scale, (vec![fine.turn[rest].clone()], inner))
    }

    fn from_rows(
        units: Units,
        layers: usize,
        Scale { unit, slots }: Scale,
        (turn, inner): (Vec<Row>, Vec<Row>),
    ) -> Table {
        let mut table = Table { unit, slots, units, turn, inner };
        if table.inner.is_empty() {
            table.inner.push(Row::step(0, 0.0, slots));
        }
        for length in 1..=layers {
            if table.inner.len() == length {
                let row = table.row(Family::Inner, length);
                table.inner.push(row);
            }
            let row = table.row(Family::Turn, length);
            table.turn.push(row);
        }
        table
    }

    /// Slots in which a segment of `length` layers gets faster, rising, with its time there.
    pub(crate) fn steps(&self, length: usize) -> Vec<(usize, f64)> {
        let row = &self.inner[length].0;
        let falls = |&slot: &usize| row[slot].is_finite() && (slot == 0 || row[slot] < row[slot - 1]);
        (0..row.len()).filter(falls).map(|slot| (slot, row[slot])).collect()
    }

    /// Bytes of this many slots.
    pub(crate) fn bytes(&self, slots: usize) -> u64 {
        slots as u64 * self.unit
    }

    /// The number of times that the table holds.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.turn.iter().chain(&self.inner).map(|row| row.0.len()).sum()
    }

    /// The work of filling it: slots in which candidates were compared, each slot once for each candidate.
    #[cfg(test)]
    pub(crate) fn compared(&self) -> usize {
        let row = |family, length| {
            let mut compared = 0;
            let (mut seconds, mut ceilings) = self.blank();
            self.each_candidate(family, length, |candidate| {
                compared += candidate.lower(&mut seconds, &mut ceilings);
            });
            compared
        };
        (1..=self.layers()).map(|length| row(Family::Turn, length) + row(Family::Inner, length)).sum()
    }

    /// The number of layers that the table was filled for.
    pub(crate) fn layers(&self) -> usize {
        self.turn.len() - 1
    }

    /// Least time of the whole chain in `bytes`; infinite when it does not fit.
    pub(crate) fn seconds(&self, bytes: u64) -> f64 {
        self.turn.last().map_or(f64::INFINITY, |row| row.at(self.slot(bytes)))
    }

    /// The fewest bytes in which the whole chain reaches its least time.
    pub(crate) fn enough_bytes(&self) -> u64 {
        self.turn.last().map_or(0, |row| (row.0.len() as u64 - 1) * self.unit)
    }

    /// The slot of a budget.
    pub(crate) fn slot(&self, bytes: u64) -> usize {
        ((bytes / self.unit) as usize).min(self.slots - 1)
    }

    /// The treatment of the first layer of a segment in `slot` slots, and the fewest slots in which it is as fast;
    /// `None` if it does not fit.
    pub(crate) fn decision(&self, family: Family, length: usize, slot: usize) -> Option<(Decision, usize)> {
        let row = &self.rows(family)[length];
        let least = row.at(slot);
        if least.is_infinite() {
            return None;
        }
        let fewest = row.0.partition_point(|&seconds| seconds > least);
        let mut best: Option<(f64, Decision)> = None;
        self.each_candidate(family, length, |candidate| {
            let seconds = candidate.at(fewest);
            if seconds < best.map_or(f64::INFINITY, |(best, _)| best) {
                best = Some((seconds, candidate.decision));
            }
        });
        best.map(|(_, decision)| (decision, fewest))
    }

    /// Slots left after a layer treated by option `option`.
    pub(crate) fn after_option(&self, slot: usize, option: usize) -> usize {
        slot - self.units.options[option].kept
    }

    /// Slots left after `dropped` layers of which only the boundary and the pinned values are kept.
    pub(crate) fn after_dropped(&self, slot: usize, dropped: usize) -> usize {
        slot - self.units.boundary - dropped * self.units.pinned
    }

    fn rows(&self, family: Family) -> &[Row] {
        match family {
            Family::Turn => &self.turn,
            Family::Inner => &self.inner,
        }
    }

    fn row(&self, family: Family, length: usize) -> Row {
        let (mut seconds, mut ceilings) = self.blank();
        self.each_candidate(family, length, |candidate| {
            candidate.lower(&mut seconds, &mut ceilings);
        });
        Row::new(seconds)
    }

    /// A row before its first candidate, and the ceilings of its stretches: no slot of a stretch will end above its ceiling.
    fn blank(&self) -> (Vec<f64>, Vec<f64>) {
        (vec![f64::INFINITY; self.slots], vec![f64::INFINITY; self.slots.div_ceil(STRETCH)])
    }

    /// The recurrence: all ways to treat the first layer of `length` layers.
    fn each_candidate<'a>(&'a self, family: Family, length: usize, mut each: impl FnMut(Candidate<'a>)) {
        let rows = self.rows(family);
        let Units { options, forward_seconds, again_seconds, boundary, pinned, passing } = &self.units;
        if family == Family::Inner && length == 1 {
            each(Candidate {
                decision: Decision::Option(0),
                from: options[0].backward_peak,
                seconds: options[0].backward_seconds,
                rest: &rows[0],
                held: 0,
                segment: None,
            });
            return;
        }
        // Inside a segment the gradient of its output is alive while its forward pass runs, and so are the pinned
        // values of the layers after it.
        let inner = family == Family::Inner;
        let waiting = if inner { *boundary + (length - 1) * pinned } else { 0 };
        let pass_seconds = *if inner { again_seconds } else { forward_seconds };
        for (index, option) in options.iter().enumerate().filter(|(_, option)| !inner || option.on_passage) {
            let pass_peak = if inner { option.again_peak + pinned } else { option.forward_peak };
            each(Candidate {
                decision: Decision::Option(index),
                from: (waiting + option.kept.max(pass_peak)).max(option.backward_peak),
                seconds: pass_seconds + option.backward_seconds,
                rest: &rows[length - 1],
                held: option.kept,
                segment: None,
            });
        }
        let longest = if inner { length - 1 } else { length };
        // Dropping one layer is the first option.
        for dropped in 2..=longest {
            // The last dropped layer runs while the pinned values of those before it are held.
            let pass_peak =
                if inner { passing.again + pinned } else { passing.first + (dropped - 1) * pinned };
            each(Candidate {
                decision: Decision::Drop(dropped),
                from: waiting + boundary + pass_peak,
                seconds: dropped as f64 * pass_seconds,
                rest: &rows[length - dropped],
                held: boundary + dropped * pinned,
                segment: Some(&self.inner[dropped]),
            });
        }
    }
}

impl Candidate<'_> {
    /// The candidate's time in `slot` slots.
    fn at(&self, slot: usize) -> f64 {
        if slot < self.from.max(self.held) {
            return f64::INFINITY;
        }
        self.seconds + self.rest.at(slot - self.held) + self.segment.map_or(0.0, |segment| segment.at(slot))
    }

    /// Lowers `seconds` to this candidate's times, wherever these are lower. The candidate's least time in a stretch is
    /// at its end. If that is above the other candidates' time at the beginning, the stretch can be skipped; most
    /// candidates skip almost all stretches. Returns the slots that were compared.
    fn lower(&self, seconds: &mut [f64], ceilings: &mut [f64]) -> usize {
        let mut compared = 0;
        let from = self.from.max(self.held);
        let falls = (self.rest.0.len() + self.held).max(self.segment.map_or(0, |segment| segment.0.len()));
        let end = falls.max(from + 1).min(seconds.len());
        for (stretch, ceiling) in ceilings.iter_mut().enumerate().skip(from / STRETCH) {
            let (first, behind) = (stretch * STRETCH, (stretch + 1) * STRETCH);
            if self.at(behind - 1) >= *ceiling {
                continue;
            }
            *ceiling = smaller(self.at(first), *ceiling);
            let (first, behind) = (first.max(from), behind.min(end));
            if first < behind {
                self.lower_stretch(&mut seconds[first..behind], first);
                compared += behind - first;
            }
        }
        compared
    }

    /// Lowers the slots from `first` on.
    fn lower_stretch(&self, seconds: &mut [f64], first: usize) {
        let rest = self.rest.stretch(first - self.held, seconds.len());
        let segment = self.segment.map_or(Stretch::Constant(0.0), |row| row.stretch(first, seconds.len()));
        match (rest, segment) {
            (Stretch::Falling(rest), Stretch::Falling(segment)) => {
                for ((least, rest), segment) in seconds.iter_mut().zip(rest).zip(segment) {
                    *least = smaller(self.seconds + rest + segment, *least);
                }
            }
            // Always added in the same order, so that a time does not depend on where rows end.
            (Stretch::Falling(rest), Stretch::Constant(segment)) => {
                for (least, rest) in seconds.iter_mut().zip(rest) {
                    *least = smaller(self.seconds + rest + segment, *least);
                }
            }
            (Stretch::Constant(rest), Stretch::Falling(segment)) => {
                for (least, segment) in seconds.iter_mut().zip(segment) {
                    *least = smaller(self.seconds + rest + segment, *least);
                }
            }
            _ => {
                for (offset, least) in seconds.iter_mut().enumerate() {
                    *least = smaller(self.at(first + offset), *least);
                }
            }
        }
    }
}

/// Slots that are processed or skipped together.
const STRETCH: usize = 256;

/// The times in one stretch of a row.
enum Stretch<'a> {
    Falling(&'a [f64]),
    Constant(f64),
    /// The falling part of the row ends inside this stretch.
    Mixed,
}

/// The smaller of two numbers, in the form that is one instruction.
fn smaller(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

impl Row {
    /// `seconds` from slot `from` on, never before.
    fn step(from: usize, seconds: f64, slots: usize) -> Row {
        Row::new((0..slots).map(|slot| if slot >= from { seconds } else { f64::INFINITY }).collect())
    }

    /// A time that was possible with less is possible with more; the constant end is cut off.
    fn new(mut seconds: Vec<f64>) -> Row {
        let mut least = f64::INFINITY;
        for slot in &mut seconds {
            least = smaller(*slot, least);
            *slot = least;
        }
        seconds.truncate(seconds.partition_point(|&slot| slot > least) + 1);
        seconds.shrink_to_fit();
        Row(seconds)
    }

    fn at(&self, slot: usize) -> f64 {
        self.0[slot.min(self.0.len() - 1)]
    }

    fn stretch(&self, first: usize, slots: usize) -> Stretch<'_> {
        match self.0.get(first..first + slots) {
            Some(falling) => Stretch::Falling(falling),
            None if first + 1 >= self.0.len() => Stretch::Constant(self.at(first)),
            None => Stretch::Mixed,
        }
    }
}

impl Units {
    fn new(options: &Options, unit: u64) -> Units {
        let up = |bytes: u64| bytes.div_ceil(unit) as usize;
        let nothing_kept = options.list.first();
        let each = options.list.iter().map(|option| OptionUnits {
            kept: up(option.kept_bytes),
            forward_peak: up(option.forward_peak),
            again_peak: up(option.again_peak),
            backward_peak: up(option.backward_peak),
            backward_seconds: option.backward_seconds,
            on_passage: option.on_passage,
        });
        Units {
            options: each.collect(),
            forward_seconds: options.forward_seconds,
            again_seconds: options.passage_seconds,
            boundary: up(options.boundary_bytes),
            pinned: up(options.pinned_bytes),
            passing: Passing {
                first: nothing_kept.map_or(0, |option| up(option.forward_peak)),
                again: nothing_kept.map_or(0, |option| up(option.again_peak)),
            },
        }
    }
}

/// The largest unit that divides all sizes, or a rounder one when that takes too many slots.
pub(crate) fn unit(options: &Options, turn_peak: u64, most: u64, max_slots: usize) -> u64 {
    let sizes =
        options.list.iter().flat_map(|o| [o.kept_bytes, o.forward_peak, o.again_peak, o.backward_peak]);
    let divisor = sizes.chain([options.boundary_bytes, options.pinned_bytes, turn_peak]).fold(0, gcd).max(1);
    let needed = most / divisor + 1;
    divisor * needed.div_ceil(max_slots as u64)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
