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
//! first j layers dropped:    j·forward + T[n−j][m − a] + I[j][m]        a: the boundary that is kept
//! ```
//!
//! A dropped segment of one layer runs no forward pass first: its backward pass rebuilds what it reads and
//! stops there. One table answers every budget up to its largest.
//!
//! Bytes are counted in units. With the greatest common divisor of all sizes the table is exact; where
//! that takes more slots than allowed, sizes are rounded up, so that a plan never needs more than it says.

use crate::chain::options::Options;

/// What the first layer of a segment does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It is treated by this option.
    Option(usize),
    /// It and the layers behind it, so many in all, are dropped and come back as a segment.
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

/// The filled table.
#[derive(Debug)]
pub(crate) struct Table {
    unit: u64,
    slots: usize,
    /// Bytes of the boundary, in units.
    boundary: usize,
    kept: Vec<usize>,
    turn: Rows,
    inner: Rows,
}

/// Least times and decisions by length, each row over all slots.
#[derive(Debug)]
struct Rows {
    seconds: Vec<Vec<f64>>,
    decision: Vec<Vec<u16>>,
}

/// Decisions from this on mean a dropped segment of `decision − DROP` layers.
const DROP: u16 = 1 << 15;

/// Sizes in units, rounded up.
struct Units {
    kept: Vec<usize>,
    forward_peak: Vec<usize>,
    backward_peak: Vec<usize>,
    boundary: usize,
    turn_peak: usize,
}

impl Table {
    /// Fills the table for `layers` layers and budgets up to `most` bytes, in at most `max_slots` slots.
    pub(crate) fn fill(
        options: &Options,
        layers: usize,
        turn_peak: u64,
        turn_seconds: f64,
        most: u64,
        max_slots: usize,
    ) -> Table {
        let unit = unit(options, turn_peak, most, max_slots);
        let slots = (most / unit) as usize + 1;
        let units = Units::new(options, turn_peak, unit);
        let mut table = Table {
            unit,
            slots,
            boundary: units.boundary,
            kept: units.kept.clone(),
            turn: Rows::new(slots),
            inner: Rows::new(slots),
        };
        table.turn.push(turn_seconds, units.turn_peak, slots);
        table.inner.push(f64::INFINITY, 0, slots);
        for length in 1..=layers {
            let row = table.row(Family::Inner, length, options, &units);
            table.inner.extend(row);
            let row = table.row(Family::Turn, length, options, &units);
            table.turn.extend(row);
        }
        table
    }

    /// Least time of the whole chain in `bytes`; infinite when it does not fit.
    pub(crate) fn seconds(&self, bytes: u64) -> f64 {
        let length = self.turn.seconds.len() - 1;
        self.turn.seconds[length][self.slot(bytes)]
    }

    /// The slot of a budget.
    pub(crate) fn slot(&self, bytes: u64) -> usize {
        ((bytes / self.unit) as usize).min(self.slots - 1)
    }

    /// What the first layer of a segment does with `slot` slots; none when it does not fit.
    pub(crate) fn decision(&self, family: Family, length: usize, slot: usize) -> Option<Decision> {
        let rows = self.rows(family);
        if rows.seconds[length][slot].is_infinite() {
            return None;
        }
        let code = rows.decision[length][slot];
        Some(if code >= DROP {
            Decision::Drop((code - DROP) as usize)
        } else {
            Decision::Option(code as usize)
        })
    }

    /// Slots left behind a layer treated by option `option`.
    pub(crate) fn after_option(&self, slot: usize, option: usize) -> usize {
        slot - self.kept[option]
    }

    /// Slots left behind a kept boundary.
    pub(crate) fn after_boundary(&self, slot: usize) -> usize {
        slot - self.boundary
    }

    fn rows(&self, family: Family) -> &Rows {
        match family {
            Family::Turn => &self.turn,
            Family::Inner => &self.inner,
        }
    }

    fn row(&self, family: Family, length: usize, options: &Options, units: &Units) -> (Vec<f64>, Vec<u16>) {
        let mut seconds = vec![f64::INFINITY; self.slots];
        let mut decision = vec![0; self.slots];
        let rows = self.rows(family);
        // Inside a segment the gradient of its output waits while its forward pass runs.
        let waiting = if family == Family::Inner { units.boundary } else { 0 };
        if family == Family::Inner && length == 1 {
            let lazy = &options.list[0];
            let from = units.backward_peak[0];
            lower(&mut seconds, &mut decision, from, 0, &[], lazy.backward_seconds, 0);
            return (seconds, decision);
        }
        for (index, option) in options.list.iter().enumerate() {
            let (kept, peak) = (units.kept[index], units.forward_peak[index]);
            let from = (waiting + kept.max(peak)).max(units.backward_peak[index]);
            let cost = options.forward_seconds + option.backward_seconds;
            lower(&mut seconds, &mut decision, from, kept, &rows.seconds[length - 1], cost, index as u16);
        }
        let longest = if family == Family::Inner { length - 1 } else { length };
        for dropped in 1..=longest {
            let from = waiting + units.boundary + units.forward_peak[0];
            let forward = dropped as f64 * options.forward_seconds;
            let rest = &rows.seconds[length - dropped];
            let segment = if dropped < self.inner.seconds.len() {
                &self.inner.seconds[dropped]
            } else {
                continue;
            };
            let code = DROP + dropped as u16;
            for slot in from..self.slots {
                let time = forward + rest[slot - units.boundary] + segment[slot];
                if time < seconds[slot] {
                    (seconds[slot], decision[slot]) = (time, code);
                }
            }
        }
        (seconds, decision)
    }
}

/// Lowers each slot from `from` on to `cost` plus what the rest takes in `kept` slots less.
fn lower(
    seconds: &mut [f64],
    decision: &mut [u16],
    from: usize,
    kept: usize,
    rest: &[f64],
    cost: f64,
    code: u16,
) {
    for slot in from.max(kept)..seconds.len() {
        let time = cost + rest.get(slot - kept).copied().unwrap_or(0.0);
        if time < seconds[slot] {
            (seconds[slot], decision[slot]) = (time, code);
        }
    }
}

impl Rows {
    fn new(_slots: usize) -> Rows {
        Rows { seconds: Vec::new(), decision: Vec::new() }
    }

    /// The row of an empty segment: `seconds` from slot `from` on.
    fn push(&mut self, seconds: f64, from: usize, slots: usize) {
        let row = (0..slots).map(|slot| if slot >= from { seconds } else { f64::INFINITY }).collect();
        self.seconds.push(row);
        self.decision.push(vec![0; slots]);
    }

    fn extend(&mut self, (seconds, decision): (Vec<f64>, Vec<u16>)) {
        self.seconds.push(seconds);
        self.decision.push(decision);
    }
}

impl Units {
    fn new(options: &Options, turn_peak: u64, unit: u64) -> Units {
        let up = |bytes: u64| bytes.div_ceil(unit) as usize;
        let each = |bytes: fn(&crate::chain::options::LayerOption) -> u64| {
            options.list.iter().map(|option| up(bytes(option))).collect()
        };
        Units {
            kept: each(|option| option.kept_bytes),
            forward_peak: each(|option| option.forward_peak),
            backward_peak: each(|option| option.backward_peak),
            boundary: up(options.boundary_bytes),
            turn_peak: up(turn_peak),
        }
    }
}

/// The largest unit that divides all sizes, or a rounder one when that takes too many slots.
fn unit(options: &Options, turn_peak: u64, most: u64, max_slots: usize) -> u64 {
    let sizes = options.list.iter().flat_map(|o| [o.kept_bytes, o.forward_peak, o.backward_peak]);
    let divisor = sizes.chain([options.boundary_bytes, turn_peak]).fold(0, gcd).max(1);
    let needed = most / divisor + 1;
    divisor * needed.div_ceil(max_slots as u64)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
