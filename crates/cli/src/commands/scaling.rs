//! `plimsoll plan --rank-link …`: compares the same step on 1 to 1024 ranks.

use std::fmt::Write as _;

use plimsoll::training::job::{ScalingFigures, ScalingRow};
use serde_json::{Value, json};

use crate::table::size;

/// The rows as a table; a step of one rank has `tokens` tokens.
pub(crate) fn table(rows: &[ScalingRow], tokens: usize) -> String {
    let mut text =
        "ranks        least       memory   sent a step        step     exposed  efficiency      tokens/s\n"
            .to_owned();
    for ScalingRow { ranks, least_bytes, figures } in rows {
        let _ = write!(text, "{ranks:>5}{:>13}", size(least_bytes.0));
        let _ = match figures {
            Some(figures) => line(&mut text, *ranks, figures, tokens),
            None => writeln!(text, "   does not fit"),
        };
    }
    text.push_str(
        "memory and bytes sent are those of each rank; least: memory of the smallest plan, which recomputes; exposed: time\n\
         of exchanges that compute does not cover, where they run beside it;\n\
         efficiency: time of one rank in memory without a limit, as a part of the step's\n",
    );
    text
}

fn line(text: &mut String, ranks: usize, figures: &ScalingFigures, tokens: usize) -> std::fmt::Result {
    let ScalingFigures { process_bytes, step_seconds, traffic, efficiency } = figures;
    let (sent, exposed) = traffic.map_or((0, 0.0), |traffic| (traffic.wire_bytes, traffic.exposed_seconds));
    let rate = (tokens * ranks) as f64 / step_seconds;
    writeln!(
        text,
        "{:>13}{:>14}{step_seconds:>10.3} s{exposed:>10.3} s{:>10.1} %{rate:>14.0}",
        size(process_bytes.0),
        size(sent),
        100.0 * efficiency
    )
}

/// One row, by the names that scripts rely on.
pub(crate) fn json(row: &ScalingRow) -> Value {
    let Some(figures) = &row.figures else {
        return json!({ "ranks": row.ranks, "fits": false, "least_memory_bytes": row.least_bytes.0 });
    };
    let traffic = figures.traffic;
    json!({
        "ranks": row.ranks,
        "fits": true,
        "least_memory_bytes": row.least_bytes.0,
        "memory_bytes": figures.process_bytes.0,
        "step_seconds": figures.step_seconds,
        "wire_bytes_per_step": traffic.map_or(0, |traffic| traffic.wire_bytes),
        "exchange_seconds": traffic.map_or(0.0, |traffic| traffic.seconds),
        "exposed_seconds": traffic.map_or(0.0, |traffic| traffic.exposed_seconds),
        "efficiency": figures.efficiency,
    })
}
