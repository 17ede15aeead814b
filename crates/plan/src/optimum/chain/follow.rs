//! From a table to the treatment of each layer: the option of each layer, and the segments that are dropped together.

use super::table::{Decision, Family, Table};

/// The treatment of the next layer, or of the next layers together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// One layer, treated by the option of this index.
    Layer(usize),
    /// Layers that are dropped and come back together.
    Segment(Vec<Step>),
}

/// Follows `table` from the first of `length` layers in `slot` slots; none when they do not fit.
pub(crate) fn follow(table: &Table, family: Family, mut length: usize, mut slot: usize) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    while length > 0 {
        let (decision, fewest) = table.decision(family, length, slot)?;
        match decision {
            Decision::Option(option) => {
                // Nothing of the last layer inside a segment is kept.
                let last = family == Family::Inner && length == 1;
                slot = if last { fewest } else { table.after_option(fewest, option) };
                steps.push(Step::Layer(option));
                length -= 1;
            }
            Decision::Drop(dropped) => {
                steps.push(Step::Segment(follow(table, Family::Inner, dropped, fewest)?));
                slot = table.after_dropped(fewest, dropped);
                length -= dropped;
            }
        }
    }
    Some(steps)
}
