//! A plan as people read it.

use std::fmt::Write as _;
use std::io::{self, Write};

use plimsoll::Precision;
use plimsoll::planning::{self, LayerReport, Link, Point, Purpose, gradients, traffic};
use plimsoll::training::memory::Size;
use plimsoll::training::memory::{Budget, BudgetOrigin};

use plimsoll::training::job::Summary;

/// Number of larger budgets to name, beside the one that keeps everything.
const GAINS: usize = 3;

/// Writes the plan table.
pub(crate) fn plan(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    memory(out, summary)?;
    let choice = &summary.planned.choice;
    let (micro, accumulation, global) = (choice.micro_batch, choice.accumulation, summary.global_batch());
    let (seq_len, ranks) = (summary.seq_len, choice.program.ranks());
    let plural = if ranks == 1 { "" } else { "s" };
    writeln!(
        out,
        "effective batch {global} = {micro} × {accumulation} × {ranks} rank{plural}, sequences of {seq_len} tokens"
    )?;
    if let Some(traffic) = traffic(choice) {
        writeln!(
            out,
            "each rank sends {} a step; exchanges take {:.1} ms, of which compute covers all but {:.1} ms",
            size(traffic.wire_bytes),
            1e3 * traffic.seconds,
            1e3 * traffic.exposed_seconds
        )?;
    }
    let gradients = gradients(choice);
    let how_many = match gradients.persist {
        _ if gradients.probes > 0 => String::new(),
        Some(_) => format!(" ({})", size(gradients.bytes)),
        None => format!(" (at most {})", size(gradients.bytes)),
    };
    writeln!(out, "{gradients}{how_many}")?;
    if choice.program.train.graph.precision() == Precision::Bf16 {
        writeln!(out, "values between nodes in bf16; statistics, losses and sums of gradients in f32")?;
    }
    if let Some(instructions) = summary.instructions {
        writeln!(out, "{instructions} instructions")?;
    }
    let share = 100.0 * summary.report.recompute_fraction;
    let tiles = if summary.report.tile_rows.is_some() { " and tiles" } else { "" };
    writeln!(out, "recompute {}{tiles}: {share:.1} % of the forward pass runs again", choice.plan.strategy)?;
    match summary.report.ignored_marks {
        0 => {}
        marks => writeln!(
            out,
            "  {marks} checkpoint marks of the model are ignored; --recompute manual follows them"
        )?,
    }
    if let Some(rows) = summary.report.tile_rows {
        writeln!(out, "feed-forward networks in tiles of {rows} rows: what they hide is built tile by tile")?;
    }
    offload(out, summary)?;
    for layer in &summary.report.layers {
        write!(out, "{}", layer_lines(layer))?;
    }
    let slack = choice.plan.arena_bytes.0 as f64 / choice.plan.liveness_bound.max(1) as f64 - 1.0;
    writeln!(out, "layout {:.1} % above the liveness bound", 100.0 * slack)?;
    time(out, summary)
}

/// Bytes that are sent out and fetched in every micro-batch, state that lives on the tier, and the speed of the link.
fn offload(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let bytes = summary.report.offload_bytes;
    let Some(link) = summary.planned.choice.program.train.facts.link else { return Ok(()) };
    let away = summary.report.state_bytes_away.iter();
    let away: Vec<String> =
        away.map(|&(purpose, bytes)| format!("{} {}", purpose.name(), size(bytes))).collect();
    let amount = match (bytes, away.is_empty()) {
        (0, true) => "nothing has to leave".to_owned(),
        (0, false) => "no values".to_owned(),
        _ => size(bytes),
    };
    let each = if summary.planned.choice.program.ranks() > 1 { "each rank offloads" } else { "offload" };
    writeln!(out, "{each} to {}: {amount}, at {}", link.tier.name(), rates(&link))?;
    if let Some((bytes, room)) = summary.waiting_bytes().filter(|(bytes, _)| *bytes > 0) {
        let of = if room == u64::MAX { String::new() } else { format!(" of {}", size(room)) };
        writeln!(out, "  {}{of} are taken there", size(bytes))?;
    }
    if away.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {} live there", away.join(", "))
}

/// Speed of a link.
pub(crate) fn rates(link: &Link) -> String {
    format!("{:.0} MB/s out and {:.0} MB/s in", link.out_rate / 1e6, link.in_rate / 1e6)
}

fn memory(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let (plan, budget) = (&summary.planned.choice.plan, &summary.planned.budget);
    let whole = size(summary.process_bytes(plan.arena_bytes).0);
    writeln!(out, "budget {}   planned peak {whole}   fits", budget.described())?;
    for (purpose, bytes) in plan.by_purpose.iter().filter(|(_, bytes)| *bytes > 0) {
        writeln!(out, "  {purpose:<18}{:>10}", size(bytes))?;
        if purpose == Purpose::Weights.name() {
            quantised(out, summary, bytes)?;
        }
    }
    writeln!(out, "  {:<18}{:>10}", "outside the arena", size(budget.outside))?;
    experts(out, summary)
}

/// Bytes of experts' weights, which are not linear layers of their own and therefore never kept in few bits.
fn expert_weights(summary: &Summary) -> u64 {
    let choice = &summary.planned.choice;
    let bytes = planning::experts(&choice.program, &choice.plan).map(|report| report.bytes);
    let of_weights = bytes.into_iter().flatten().filter(|&(purpose, _)| purpose == Purpose::Weights);
    of_weights.map(|(_, bytes)| bytes).sum()
}

/// Bytes of experts, and the parameters that work on one token.
fn experts(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let choice = &summary.planned.choice;
    let Some(report) = planning::experts(&choice.program, &choice.plan) else { return Ok(()) };
    let parts: Vec<String> = report
        .bytes
        .iter()
        .map(|&(purpose, bytes)| format!("{} of {}", size(bytes), purpose.name()))
        .collect();
    writeln!(out, "experts: {}", parts.join(", "))?;
    let (active, all) = (millions(report.active), millions(report.parameters));
    let offered = choice.program.train.facts.link.is_some();
    let fetched = if offered { "; of a layer that waits elsewhere, all experts are fetched" } else { "" };
    writeln!(out, "  {active} of {all} million parameters work on a token{fetched}")
}

fn millions(count: u64) -> String {
    format!("{:.1}", count as f64 / 1e6)
}

/// Lists the bytes of the weights that are kept in few bits, apart from those of other weights.
fn quantised(out: &mut impl Write, summary: &Summary, weights: u64) -> io::Result<()> {
    let graph = &summary.planned.choice.program.train.graph;
    let Some(coded) = graph.quantised_bytes() else { return Ok(()) };
    let (form, whole, words) = (coded.form, size(coded.whole_bytes), graph.vocabulary_bytes());
    writeln!(out, "    linear layers {:>12}   {form}; {whole} as f32", size(coded.bytes))?;
    let shared = if words.tied { "   and head: one table" } else { "" };
    writeln!(out, "    embedding     {:>12}{shared}", size(words.embedding))?;
    if words.head > 0 {
        writeln!(out, "    head          {:>12}", size(words.head))?;
    }
    let (experts, mut adapters) = (expert_weights(summary), "adapters");
    if experts > 0 {
        writeln!(out, "    experts       {:>12}   not in few bits, with their adapters", size(experts))?;
        adapters = "other adapters";
    }
    let others = weights.saturating_sub(coded.bytes + words.embedding + words.head + experts);
    writeln!(out, "    others        {:>12}   norms and {adapters}", size(others))
}

/// The origin of a budget that was not stated.
pub(crate) fn origin(budget: &Budget) -> &'static str {
    match budget.origin {
        BudgetOrigin::Stated => "",
        BudgetOrigin::Free => " (automatic: free memory less a margin)",
        BudgetOrigin::Device => " (all of the device)",
    }
}

/// Values that a group of layers keeps, recomputes and offloads.
fn layer_lines(layer: &LayerReport) -> String {
    let LayerReport { kind, keep, recompute, offload, .. } = layer;
    if recompute.is_empty() && offload.is_empty() {
        return format!("  {kind}: keep everything that is read again\n");
    }
    let mut text = format!("  {kind}\n");
    for (verb, names) in [("keep", keep), ("recompute", recompute), ("offload", offload)] {
        if !names.is_empty() {
            let _ = writeln!(text, "    {verb:<10} {}", names.join(", "));
        }
    }
    text
}

fn time(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let seconds = summary.step_seconds();
    let rate = (summary.global_batch() * summary.seq_len) as f64 / seconds;
    writeln!(out, "predicted {seconds:.3} s a step, {rate:.0} tokens/s")?;
    let extra = 100.0 * (seconds / summary.unbudgeted.step_seconds - 1.0).max(0.0);
    let gap = 100.0 * summary.gap();
    writeln!(out, "  +{extra:.1} % against no budget, at most {gap:.1} % from optimal")?;
    if let Some((last, others)) = summary.faster.split_last() {
        let shown = others.iter().take(GAINS).chain([last]);
        let gains: Vec<String> = shown.map(|point| gain(summary, point)).collect();
        writeln!(out, "  faster with more memory: {}", gains.join(", "))?;
    }
    if let (Some(steps), Some(seconds)) = (summary.steps, summary.run_seconds()) {
        writeln!(out, "{steps} steps take about {}", duration(seconds))?;
    }
    Ok(())
}

/// `46MiB 2.1 %`: a budget that can be typed, and the time it saves.
fn gain(summary: &Summary, point: &Point) -> String {
    let saved = 100.0 * (1.0 - point.step_seconds / summary.step_seconds());
    format!("{}MiB −{saved:.1} %", whole_mebibytes(summary.process_bytes(point.arena_bytes).0))
}

/// Whole MiB, rounded up so that a user who types the figure as a budget has enough.
pub(crate) fn whole_mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// A time with two units at most.
pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// A size as text.
pub(crate) fn size(bytes: u64) -> String {
    Size { bytes }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_units_that_suit_them() {
        assert_eq!(duration(4.26), "4.3 s");
        assert_eq!(duration(125.0), "2 min 5 s");
        assert_eq!(duration(7384.0), "2 h 3 min");
        assert_eq!(duration(180_000.0), "2 d 2 h");
    }

    #[test]
    fn a_layer_says_what_it_keeps_and_what_it_does_not() {
        let words = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let layer = LayerReport {
            kind: "layers.0-4".into(),
            count: 5,
            keep: words(&["q", "k"]),
            recompute: words(&["swiglu"]),
            offload: Vec::new(),
        };
        assert_eq!(layer_lines(&layer), "  layers.0-4\n    keep       q, k\n    recompute  swiglu\n");
        let all = LayerReport { recompute: Vec::new(), ..layer };
        assert_eq!(layer_lines(&all), "  layers.0-4: keep everything that is read again\n");
    }
}
