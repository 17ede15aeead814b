//! `plimsoll plan --methods`: compares ways to train the model.

use std::fmt::Write as _;

use plimsoll::planning::ProcessBytes;
use plimsoll::training::job::{MethodFigures, MethodPlan, MethodRow};
use serde_json::{Value, json};

use crate::table::size;

/// The rows as a table, the reported quality below it.
pub(crate) fn table(rows: &[MethodRow], budget: ProcessBytes, tokens: usize) -> String {
    let mut text = format!("methods in {}\n", size(budget.0));
    text.push_str("method                 trained        least      planned        step    tokens/s\n");
    for MethodRow { method, figures, .. } in rows {
        let _ = write!(text, "{:<20}", method.name);
        match figures {
            Ok(figures) => row(&mut text, figures, tokens),
            Err(why) => {
                let _ = writeln!(text, "  refused: {why}");
            }
        }
    }
    text.push_str(
        "\nleast: memory of the smallest plan; planned: of the fastest one that fits. Quality as reported:\n",
    );
    for MethodRow { method, flags, .. } in rows {
        let flags = if flags.is_empty() { String::new() } else { format!(" ({flags})") };
        let _ = writeln!(text, "  {}{flags}: {}", method.name, method.quality);
    }
    text
}

fn row(text: &mut String, figures: &MethodFigures, tokens: usize) {
    let MethodFigures { trained, least_bytes, plan, .. } = *figures;
    let _ = write!(text, "{:>10}{:>13}", parameters(trained), size(least_bytes.0));
    let _ = match plan {
        Some(MethodPlan { process_bytes, step_seconds, passes }) => {
            let passes = if passes > 2 { format!("   {passes} forward passes") } else { String::new() };
            let rate = tokens as f64 / step_seconds;
            writeln!(text, "{:>13}{step_seconds:>10.3} s{rate:>12.0}{passes}", size(process_bytes.0))
        }
        None => writeln!(text, "   does not fit"),
    };
}

/// A count of parameters in three digits.
fn parameters(count: u64) -> String {
    let count = count as f64;
    let (number, unit) = match count {
        count if count >= 1e9 => (count / 1e9, "B"),
        count if count >= 1e6 => (count / 1e6, "M"),
        count => (count / 1e3, "k"),
    };
    format!("{number:.1}{unit}")
}

/// One row, by the names that scripts rely on.
pub(crate) fn json(row: &MethodRow) -> Value {
    let method = json!({ "method": row.method.name, "flags": row.flags, "quality": row.method.quality });
    let more = match &row.figures {
        Err(why) => json!({ "fits": false, "refused": why }),
        Ok(MethodFigures { trained, least_bytes, plan, .. }) => json!({
            "trained_parameters": trained,
            "least_bytes": least_bytes.0,
            "fits": plan.is_some(),
            "process_bytes": plan.map(|plan| plan.process_bytes.0),
            "predicted_step_seconds": plan.map(|plan| plan.step_seconds),
            "passes": plan.map(|plan| plan.passes),
        }),
    };
    match (method, more) {
        (Value::Object(mut method), Value::Object(more)) => {
            method.extend(more);
            Value::Object(method)
        }
        (method, _) => method,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_three_digits_and_a_unit() {
        assert_eq!([8_030_261_248, 41_943_040, 5_120].map(parameters), ["8.0B", "41.9M", "5.1k"]);
    }
}
