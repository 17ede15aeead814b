//! A curve drawn with characters.

use std::fmt::Write as _;

const WIDTH: usize = 64;
const HEIGHT: usize = 10;

/// The values as a curve of braille-free plain characters, with the range at the left and the number of
/// values below.
pub(crate) fn draw(values: &[f64]) -> String {
    let columns: Vec<f64> = columns(values);
    let (low, high) =
        columns.iter().fold((f64::MAX, f64::MIN), |(low, high), &value| (low.min(value), high.max(value)));
    let span = (high - low).max(f64::MIN_POSITIVE);
    let row_of = |value: f64| ((high - value) / span * (HEIGHT - 1) as f64).round() as usize;
    let mut text = String::new();
    for row in 0..HEIGHT {
        let label = match row {
            0 => format!("{high:7.3}"),
            row if row == HEIGHT - 1 => format!("{low:7.3}"),
            _ => " ".repeat(7),
        };
        let line: String =
            columns.iter().map(|&value| if row_of(value) == row { '•' } else { ' ' }).collect();
        let _ = writeln!(text, "{label} │{}", line.trim_end());
    }
    let _ = writeln!(text, "{:7} └{}", "", "─".repeat(columns.len()));
    let _ = writeln!(text, "{:9}step 1 to {}", "", values.len());
    text
}

/// At most [`WIDTH`] means of consecutive values.
fn columns(values: &[f64]) -> Vec<f64> {
    let count = values.len().min(WIDTH);
    (0..count)
        .map(|column| {
            let range = column * values.len() / count..(column + 1) * values.len() / count;
            let part = &values[range];
            part.iter().sum::<f64>() / part.len() as f64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_falling_series_falls_from_the_top_left_to_the_bottom_right() {
        let values: Vec<f64> = (0..100).map(|i| f64::from(100 - i)).collect();
        let text = draw(&values);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].chars().nth(9), Some('•'));
        assert!(lines[HEIGHT - 1].ends_with('•'));
        assert!(text.contains("step 1 to 100"));
    }

    #[test]
    fn no_values_draw_no_curve_and_do_not_fail() {
        assert!(draw(&[]).contains("step 1 to 0"));
    }
}
