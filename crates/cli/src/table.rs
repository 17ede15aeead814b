//! A plan as people read it.

use std::io::{self, Write};

use plimsoll::Planned;
use plimsoll::training::budget::Origin;
use plimsoll::training::size::Size;

/// Writes the plan table.
pub(crate) fn plan(out: &mut impl Write, planned: &Planned, seq_len: usize) -> io::Result<()> {
    let (choice, budget) = (&planned.choice, &planned.budget);
    let plan = &choice.plan;
    let whole = plan.arena_bytes + budget.outside;
    let origin = match budget.origin {
        Origin::Stated => "",
        Origin::Free => " (free memory less a margin)",
        Origin::Device => " (all of the device)",
    };
    writeln!(out, "budget {}{origin}   planned peak {}   fits", size(budget.total), size(whole))?;
    for (purpose, bytes) in plan.by_purpose.iter().filter(|(_, bytes)| *bytes > 0) {
        writeln!(out, "  {purpose:<18}{:>10}", size(bytes))?;
    }
    writeln!(out, "  {:<18}{:>10}", "outside the arena", size(budget.outside))?;
    let (micro, accumulation) = (choice.micro_batch, choice.accumulation);
    let global = micro * accumulation;
    writeln!(out, "effective batch {global} = {micro} × {accumulation} sequences of {seq_len} tokens")?;
    let overhead = 100.0 * recompute_fraction(planned);
    writeln!(out, "recompute {}: +{overhead:.1} % of the forward pass", plan.strategy)?;
    let slack = plan.arena_bytes as f64 / plan.liveness_bound.max(1) as f64 - 1.0;
    writeln!(out, "layout {:.1} % above the liveness bound", 100.0 * slack)?;
    let seconds = plan.step_seconds(accumulation);
    let rate = (global * seq_len) as f64 / seconds;
    write!(out, "predicted {seconds:.3} s a step, {rate:.0} tokens/s (modelled, not measured)")?;
    match choice.lower_bound_seconds {
        Some(bound) => {
            let gap = 100.0 * (seconds / bound - 1.0);
            writeln!(out, "; at most {gap:.1} % from optimal")
        }
        None => writeln!(out),
    }
}

/// Extra forward time over the time of one forward pass.
fn recompute_fraction(planned: &Planned) -> f64 {
    use plimsoll::{Role, planning::Action};
    let part = &planned.choice.program.train;
    let seconds = |node: usize| part.facts.nodes[node].seconds;
    let forward: f64 = (part.graph.node_ids())
        .filter(|&id| part.graph.node(id).phase == plimsoll::planning::Phase::Forward)
        .map(|id| seconds(id.index()))
        .sum();
    let mut seen = vec![false; part.graph.nodes().len()];
    let mut again = 0.0;
    for action in planned.choice.plan.schedules.get(&Role::First).map_or(&[][..], |s| &s.actions) {
        if let Action::Run { node, .. } = action
            && std::mem::replace(&mut seen[node.index()], true)
        {
            again += seconds(node.index());
        }
    }
    again / forward.max(f64::MIN_POSITIVE)
}

/// A size as text.
pub(crate) fn size(bytes: u64) -> String {
    Size { bytes }.to_string()
}
