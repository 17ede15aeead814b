//! Long chains: layers in groups, so that the table stays small and is filled in a moment.
//!
//! The table of `table` takes (layers × slots) memory and (layers² × slots) time. For a thousand layers that is either
//! too much of both, or so few slots that each layer has four. So layers are grouped into groups of equal size, and the
//! same recurrence runs over groups, each with options of its own:
//!
//! ```text
//! group of 4      ┌ every layer by one option of the layer
//!                 ├ dropped in segments of 2: ‹··› ‹··›, each in some number of bytes
//!                 └ dropped as a whole:       ‹····›
//! chain           [····] [····] … [····] ·· turn        layers that are left over stand before the turn
//! ```
//!
//! Segments inside a group, and the layers left over, come from a table of single layers on the same scale, which is
//! only as long as a group. A plan of groups is a plan of layers, so its promises hold; only some plans are never
//! tried. The lower bound does not depend on groups.

use super::follow::{Step, follow};
use super::options::{LayerOption, Options};
use super::table::{Decision, Family, Scale, Table, Turn, unit};

/// Approximate number of groups of a long chain: at least half of this, at most this.
const GROUPS: usize = 64;
/// Slots of the table of a long chain.
const SLOTS: usize = 6_000;
/// Sizes of memory of one segment that become options of a group.
const SIZES: usize = 24;

/// The table of a chain whose layers are taken in groups.
#[derive(Debug)]
pub(crate) struct Grouped {
    /// Layers of a group.
    size: usize,
    /// Layers that are left over.
    rest: usize,
    single: Table,
    groups: Table,
    /// One treatment for each option of a group.
    treatments: Vec<Treatment>,
}

/// The treatment of a group.
#[derive(Clone, Copy, Debug)]
enum Treatment {
    /// Each layer of the group, treated by the option of this index.
    Layers(usize),
    /// Segments of `length` layers, each in `slot` slots.
    Segments { length: usize, slot: usize },
}

/// Layers of a group in a chain of `layers`: a power of two.
pub(crate) fn group_size(layers: usize) -> usize {
    layers.div_ceil(GROUPS).next_power_of_two()
}

impl Grouped {
    /// Fills the tables of `layers` layers in groups of `size`; keeping everything takes `most` bytes.
    pub(crate) fn fill(options: &Options, layers: usize, size: usize, turn: Turn, most: u64) -> Grouped {
        let (count, rest) = (layers / size, layers % size);
        let unit = unit(options, turn.peak, most, SLOTS);
        // Sizes of groups and of single layers may each be rounded up once.
        let slots = (most / unit) as usize + count + rest + 3;
        let single = Table::with_scale(options, size.max(rest), turn, Scale { unit, slots });
        let (list, treatments) = group_options(options, &single, size);
        let group = Options {
            list,
            forward_seconds: size as f64 * options.forward_seconds,
            passage_seconds: size as f64 * options.passage_seconds,
            pinned_bytes: size as u64 * options.pinned_bytes,
            boundary_bytes: options.boundary_bytes,
            frontiers: [vec![], vec![]],
        };
        let groups = Table::of_groups(&group, count, (&single, size, rest));
        Grouped { size, rest, single, groups, treatments }
    }

    /// The table over groups, which answers for the whole chain.
    pub(crate) fn groups(&self) -> &Table {
        &self.groups
    }

    /// The treatment of all layers in `slot` slots.
    pub(crate) fn follow(&self, slot: usize) -> Option<Vec<Step>> {
        let (mut steps, left) = self.follow_groups(Family::Turn, self.groups.layers(), slot)?;
        steps.extend(follow(&self.single, Family::Turn, self.rest, left)?);
        Some(steps)
    }

    /// The treatment of `length` groups in `slot` slots, and the slots left after them.
    fn follow_groups(&self, family: Family, length: usize, slot: usize) -> Option<(Vec<Step>, usize)> {
        let (mut steps, mut length, mut slot) = (Vec::new(), length, slot);
        while length > 0 {
            if family == Family::Inner && length == 1 {
                steps.extend(follow(&self.single, Family::Inner, self.size, slot)?);
                return Some((steps, slot));
            }
            let (decision, fewest) = self.groups.decision(family, length, slot)?;
            match decision {
                Decision::Option(option) => {
                    steps.extend(self.treated(self.treatments[option])?);
                    slot = self.groups.after_option(fewest, option);
                    length -= 1;
                }
                Decision::Drop(dropped) => {
                    let (inside, _) = self.follow_groups(Family::Inner, dropped, fewest)?;
                    steps.push(Step::Segment(inside));
                    slot = self.groups.after_dropped(fewest, dropped);
                    length -= dropped;
                }
            }
        }
        Some((steps, slot))
    }

    /// The layers of one group.
    fn treated(&self, treatment: Treatment) -> Option<Vec<Step>> {
        match treatment {
            Treatment::Layers(option) => Some(vec![Step::Layer(option); self.size]),
            Treatment::Segments { length, slot } => {
                let segment = Step::Segment(follow(&self.single, Family::Inner, length, slot)?);
                Some(vec![segment; self.size / length])
            }
        }
    }
}

/// The options of a group of `size` layers, each with its treatment; options that another option beats are left out.
fn group_options(options: &Options, single: &Table, size: usize) -> (Vec<LayerOption>, Vec<Treatment>) {
    let mut all: Vec<(LayerOption, Treatment)> = Vec::new();
    for (index, option) in options.list.iter().enumerate() {
        all.push((in_turn(option, size, options.pinned_bytes), Treatment::Layers(index)));
    }
    let lengths =
        std::iter::successors(Some(2), |length| Some(length * 2)).take_while(|&length| length <= size);
    for length in lengths {
        for (slot, seconds) in spread(&single.steps(length)) {
            let option = in_segments(options, single, (size, length), (slot, seconds));
            all.push((option, Treatment::Segments { length, slot }));
        }
    }
    all.sort_by(|(a, _), (b, _)| {
        a.kept_bytes.cmp(&b.kept_bytes).then(a.backward_seconds.total_cmp(&b.backward_seconds))
    });
    let mut list: Vec<(LayerOption, Treatment)> = Vec::new();
    for (option, treatment) in all {
        if !list.iter().any(|(other, _)| other.beats(&option)) {
            list.push((option, treatment));
        }
    }
    list.into_iter().unzip()
}

/// Consecutive layers, each with the same option: later layers run beside the values that earlier ones keep. When they
/// run again, the `pinned` bytes of each already exist and are not counted.
fn in_turn(option: &LayerOption, size: usize, pinned: u64) -> LayerOption {
    let others = size as u64 - 1;
    let before = others * option.kept_bytes;
    LayerOption {
        keep: Vec::new(),
        kept_bytes: before + option.kept_bytes,
        forward_peak: before + option.forward_peak.max(option.kept_bytes),
        again_peak: before - others * pinned + option.again_peak.max(option.kept_bytes - pinned),
        backward_peak: before + option.backward_peak,
        backward_seconds: size as f64 * option.backward_seconds,
        on_passage: option.on_passage,
    }
}

/// A group that is dropped in segments, each of which takes `slot` slots and this many seconds to be recomputed.
fn in_segments(
    options: &Options,
    single: &Table,
    (size, length): (usize, usize),
    (slot, seconds): (usize, f64),
) -> LayerOption {
    let (segments, boundary) = ((size / length) as u64, options.boundary_bytes);
    let pinned = |layers: usize| layers as u64 * options.pinned_bytes;
    let [first, again] =
        options.list.first().map_or([0, 0], |option| [option.forward_peak, option.again_peak]);
    LayerOption {
        keep: Vec::new(),
        kept_bytes: segments * boundary + pinned(size),
        // The last layer of the group runs while the pinned values of the layers before it are held.
        forward_peak: segments * boundary + first + pinned(size - 1),
        again_peak: segments * boundary + again,
        backward_peak: (segments - 1) * boundary + single.bytes(slot) + pinned(size - length),
        backward_seconds: segments as f64 * seconds,
        on_passage: true,
    }
}

/// Some of many, the first and the last always among them.
fn spread(steps: &[(usize, f64)]) -> Vec<(usize, f64)> {
    let (count, most) = (steps.len(), steps.len().min(SIZES));
    (0..most).map(|index| steps[index * (count - 1) / (most - 1).max(1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Turn = Turn { peak: 40, seconds: 3.0 };
    const PINNED: u64 = 5;

    /// A layer that may keep nothing, a little, or everything.
    fn options() -> Options {
        let option = |kept_bytes, backward_peak, backward_seconds| LayerOption {
            keep: Vec::new(),
            kept_bytes: kept_bytes + PINNED,
            forward_peak: kept_bytes + PINNED + 10,
            again_peak: kept_bytes + 10,
            backward_peak: backward_peak + PINNED,
            backward_seconds,
            on_passage: true,
        };
        Options {
            list: vec![option(10, 60, 5.0), option(20, 50, 3.5), option(40, 45, 2.0)],
            forward_seconds: 2.0,
            passage_seconds: 1.5,
            pinned_bytes: PINNED,
            boundary_bytes: 10,
            frontiers: [vec![], vec![]],
        }
    }

    /// Layers that steps treat.
    fn treated(steps: &[Step]) -> usize {
        let layers = |step: &Step| match step {
            Step::Layer(_) => 1,
            Step::Segment(inside) => treated(inside),
        };
        steps.iter().map(layers).sum()
    }

    #[test]
    fn groups_are_never_faster_than_single_layers_and_as_fast_where_all_is_kept() {
        let options = options();
        for (layers, size) in [(12, 2), (13, 2), (24, 4), (27, 4), (40, 8)] {
            let most = options.keep_all_bytes(layers, TURN.peak);
            let exact = Table::fill(&options, layers, TURN, most, 40_000, u64::MAX);
            let grouped = Grouped::fill(&options, layers, size, TURN, most);
            let mut slower = 0;
            for bytes in (0..=most).step_by(5) {
                let (best, found) = (exact.seconds(bytes), grouped.groups().seconds(bytes));
                assert!(
                    found >= best - 1e-9,
                    "{layers} in {size}: {found} s in {bytes} bytes, {best} s at best"
                );
                slower += usize::from(found > best + 1e-9);
                if found.is_finite() {
                    let steps = grouped.follow(grouped.groups().slot(bytes)).unwrap();
                    assert_eq!(treated(&steps), layers, "every layer is treated once");
                }
            }
            assert!((grouped.groups().seconds(most) - exact.seconds(most)).abs() < 1e-9);
            assert!(slower > 0, "the case says nothing: groups lose nothing");
        }
    }

    #[test]
    fn the_tables_of_a_thousand_layers_hold_as_many_times_as_those_of_a_hundred() {
        let entries = |layers: usize| {
            let options = options();
            let most = options.keep_all_bytes(layers, TURN.peak);
            let Grouped { single, groups, .. } =
                Grouped::fill(&options, layers, group_size(layers), TURN, most);
            single.entries() + groups.entries()
        };
        let most = 2 * (2 * GROUPS + 1) * SLOTS;
        for layers in [100, 300, 1000] {
            assert!(entries(layers) <= most, "{} times for {layers} layers", entries(layers));
        }
    }
}
