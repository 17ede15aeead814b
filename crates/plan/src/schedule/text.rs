//! The text form of a schedule, for `plimsoll plan --show schedule`.

use std::fmt;

use plimsoll_graph::Graph;

use super::{Action, BufferId, Contents, Copy, End, Schedule};

/// A schedule with the graph whose names its text uses.
pub(super) struct ScheduleText<'a> {
    pub(super) schedule: &'a Schedule,
    pub(super) graph: &'a Graph,
}

impl ScheduleText<'_> {
    fn operands(&self, buffers: &[BufferId]) -> String {
        let text = |&id: &BufferId| {
            let buffer = self.schedule.buffer(id);
            let name = match buffer.contents {
                Contents::Value(value) => value.to_string(),
                Contents::State(state) => self.graph.state(state).name.clone(),
                Contents::Scratch => "scratch".to_owned(),
            };
            format!("{name}@{}+{}", buffer.offset, buffer.bytes)
        };
        buffers.iter().map(text).collect::<Vec<_>>().join(", ")
    }

    fn end(&self, end: End) -> String {
        match end {
            End::Buffer(buffer) => self.operands(&[buffer]),
            End::Tier { tier, offset } => format!("{}@{offset}", tier.name()),
        }
    }
}

impl fmt::Display for ScheduleText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "schedule {}: {} actions, peak {}",
            self.schedule.name,
            self.schedule.actions.len(),
            self.schedule.peak()
        )?;
        let mut seen = vec![false; self.graph.nodes().len()];
        for (index, action) in self.schedule.actions.iter().enumerate() {
            match action {
                Action::Run { node, inputs, outputs, workspace, accumulate } => {
                    let again = std::mem::replace(&mut seen[node.index()], true);
                    let op = self.graph.node(*node).op.name();
                    let (sign, mark) =
                        (if *accumulate == 0 { "=" } else { "+=" }, if again { " again" } else { "" });
                    let (outputs, inputs) = (self.operands(outputs), self.operands(inputs));
                    write!(f, "{index:5} {outputs} {sign} {op}({inputs}){mark}")?;
                    match workspace {
                        Some(id) => writeln!(f, " with {}", self.operands(&[*id]))?,
                        None => writeln!(f)?,
                    }
                }
                Action::Await { node } => {
                    let node = self.graph.node(*node);
                    let output = node.outputs.first().map(|&value| self.graph.value_name(value));
                    writeln!(f, "{index:5} await {} {}", node.op.name(), output.unwrap_or_default())?;
                }
                Action::Start { copy } => {
                    let Copy { source, destination, lane } = self.schedule.copies[*copy];
                    let (from, to) = (self.end(source), self.end(destination));
                    writeln!(f, "{index:5} start {copy} {from} -> {to} by {}", lane.name())?;
                }
                Action::Wait { copy } => writeln!(f, "{index:5} wait {copy}")?,
                Action::Settle { lane, left } => writeln!(f, "{index:5} settle {} to {left}", lane.name())?,
                Action::StartNext { role, copy } => {
                    writeln!(f, "{index:5} start {copy} of {} if it is next", role.name())?;
                }
            }
        }
        Ok(())
    }
}
