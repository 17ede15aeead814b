//! The curve of `plimsoll intrinsic`: as text, and as a page with a picture that needs no script.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use plimsoll::TrainError;
use plimsoll::training::files::write_whole;
use plimsoll::training::job::{IntrinsicCurve, IntrinsicStep};

use crate::exit::Failure;

const STYLE: &str = include_str!("page/style.css");
/// Characters of the longest bar.
const BAR: f64 = 40.0;
/// Extents of the picture, and of its margin.
const SIZE: [f64; 2] = [720.0, 360.0];
const MARGIN: f64 = 50.0;

/// A part as a percentage; one that is not finite is none.
pub(crate) fn percent(part: f64) -> String {
    if part.is_finite() { format!("{:.0} %", 100.0 * part) } else { "nothing".to_owned() }
}

/// The answer in one sentence.
fn sentence(curve: &IntrinsicCurve, parameters: usize, target: f64, end: IntrinsicStep) -> String {
    let target = percent(target);
    match end {
        IntrinsicStep::Found(dimension) => format!(
            "{target} of full training's gain: {dimension} dimensions, {:.3} % of {parameters} parameters",
            100.0 * dimension as f64 / parameters as f64
        ),
        IntrinsicStep::NotReached => {
            format!("no subspace of up to {parameters} dimensions reached {target} of full training's gain")
        }
        IntrinsicStep::Try(_) => {
            format!("{} runs so far; {target} of full training's gain is looked for", curve.losses.len())
        }
    }
}

/// The curve as a table with bars.
pub(crate) fn text(curve: &IntrinsicCurve, parameters: usize, target: f64, end: IntrinsicStep) -> String {
    let mut text = "dimensions       loss   gain\n".to_owned();
    let lines = curve.losses.iter().map(|(dimension, &loss)| (dimension.to_string(), loss));
    for (name, loss) in lines.chain([("all".to_owned(), curve.full)]) {
        let gain = curve.gain(loss);
        let bar = "█".repeat((BAR * gain.clamp(0.0, 1.0)).round() as usize);
        let _ = writeln!(text, "{name:>10} {loss:>10.4} {:>6}  {bar}", percent(gain));
    }
    text + &sentence(curve, parameters, target, end) + "\n"
}

/// Writes the page into the folder of the search and returns where it is.
pub(crate) fn write(
    folder: &Path,
    curve: &IntrinsicCurve,
    parameters: usize,
    target: f64,
) -> Result<PathBuf, Failure> {
    let path = folder.join("intrinsic.html");
    let written = write_whole(&path, page(curve, parameters, target).as_bytes());
    written.map_err(|error| TrainError::output(&path, &error))?;
    Ok(path)
}

fn page(curve: &IntrinsicCurve, parameters: usize, target: f64) -> String {
    let end = curve.next_step(target, parameters);
    let rows = curve.losses.iter().map(|(dimension, &loss)| {
        format!("<tr><td>{dimension}</td><td>{loss:.4}</td><td>{}</td></tr>", percent(curve.gain(loss)))
    });
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Intrinsic dimension</title>\
         <style>{}</style></head><body>\n<h1>Intrinsic dimension</h1>\n<p>{}</p>\n<p>Validation loss of the base model \
         {:.4}, after full training {:.4}.</p>\n{}\n<table><tr><th>dimensions</th><th>loss</th><th>gain</th></tr>{}\
         </table>\n</body></html>\n",
        STYLE.trim_end(),
        sentence(curve, parameters, target, end),
        curve.start,
        curve.full,
        picture(curve, parameters, target),
        rows.collect::<String>()
    )
}

/// A picture of the gain at each dimension, with dimensions on a logarithmic scale.
fn picture(curve: &IntrinsicCurve, parameters: usize, target: f64) -> String {
    let [width, height] = SIZE;
    let end = (parameters.max(10) as f64).log10();
    let x = |dimension: f64| MARGIN + (width - 2.0 * MARGIN) * dimension.max(1.0).log10() / end;
    let y = |gain: f64| height - MARGIN - (height - 2.0 * MARGIN) * gain.clamp(0.0, 1.1) / 1.1;
    let mut svg = format!("<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\">");
    let mut line = |from: [f64; 2], to: [f64; 2], dashes: &str| {
        let _ = write!(
            svg,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"gray\"{dashes}/>",
            from[0], from[1], to[0], to[1]
        );
    };
    let right = width - MARGIN;
    line([MARGIN, y(0.0)], [right, y(0.0)], "");
    line([MARGIN, y(0.0)], [MARGIN, y(1.1)], "");
    line([MARGIN, y(target)], [right, y(target)], " stroke-dasharray=\"4\"");
    let points = curve.losses.iter().map(|(&dimension, &loss)| (dimension, curve.gain(loss)));
    let points: Vec<(usize, f64)> = points.filter(|(_, gain)| gain.is_finite()).collect();
    let path: Vec<String> =
        points.iter().map(|&(d, gain)| format!("{:.1},{:.1}", x(d as f64), y(gain))).collect();
    let _ = write!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"currentColor\"/>", path.join(" "));
    for (dimension, gain) in points {
        let [x, y] = [x(dimension as f64), y(gain)];
        let _ = write!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"currentColor\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\" font-size=\"12\" fill=\"currentColor\">{dimension}</text>",
            y - 8.0
        );
    }
    let _ = write!(
        svg,
        "<text x=\"{MARGIN}\" y=\"{:.1}\" font-size=\"12\" fill=\"currentColor\">dimensions, up to {parameters} \
         parameters; dashed: {} of full training's gain</text></svg>",
        height - 15.0,
        percent(target)
    );
    svg
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn curve() -> IntrinsicCurve {
        let losses = BTreeMap::from([(10, 1.9), (100, 1.05), (1000, f64::NAN)]);
        IntrinsicCurve { start: 2.0, full: 1.0, losses }
    }

    #[test]
    fn the_text_has_a_line_for_each_run_and_the_share_of_the_parameters() {
        let text = text(&curve(), 50_000, 0.9, IntrinsicStep::Found(100));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], format!("{:>10} {:>10} {:>6}  ████", 10, "1.9000", "10 %"));
        assert!(lines[3].contains("nothing") && lines[4].contains("100 %"), "{text}");
        assert_eq!(lines[5], "90 % of full training's gain: 100 dimensions, 0.200 % of 50000 parameters");
    }

    #[test]
    fn the_page_draws_every_finite_run_without_a_script() {
        let page = page(&curve(), 50_000, 0.9);
        assert_eq!(page.matches("<circle").count(), 2);
        assert_eq!(page.matches("<tr>").count(), 4);
        assert!(!page.contains("<script") && !page.contains("http"), "{page}");
    }
}
