//! Pages that are readable without a network: a fixed template, and the data as one JSON object that a small script of
//! the page draws. So the data can be read back from the file, and the drawing can be changed without this code.

use std::path::Path;

use serde_json::Value;

use plimsoll::TrainError;
use plimsoll::training::files::write_whole;

use crate::exit::Failure;

/// The style of all pages, and the drawing code they share.
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/drawing.js");

/// A template with places for style, script and data.
pub(crate) struct Page(&'static str);

/// The page of a plan.
pub(crate) const PLAN: Page = Page(include_str!("page/plan.html"));
/// The page of a run.
pub(crate) const REPORT: Page = Page(include_str!("page/report.html"));

/// Parts of a run's page that are there without its script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plain {
    /// In the head: whether the page reloads itself.
    pub(crate) renewal: String,
    /// Rows of the table of evaluations.
    pub(crate) evaluations: String,
}

impl Page {
    /// Writes the page with its data, and the text for readers without scripts.
    pub(crate) fn write(&self, path: &Path, data: &Value, plain: &Plain) -> Result<(), Failure> {
        let written = write_whole(path, self.fill(data, plain).as_bytes());
        Ok(written.map_err(|error| TrainError::output(path, &error))?)
    }

    /// The data is inserted last, so that no text in it is taken for a placeholder. Only `<` can end a script element
    /// early.
    fn fill(&self, data: &Value, plain: &Plain) -> String {
        self.0
            .replacen("PLIMSOLL_STYLE", STYLE.trim_end(), 1)
            .replacen("PLIMSOLL_SCRIPT", SCRIPT.trim_end(), 1)
            .replacen("PLIMSOLL_RENEWAL", &plain.renewal, 1)
            .replacen("PLIMSOLL_EVALUATIONS", &plain.evaluations, 1)
            .replacen("PLIMSOLL_DATA", &data.to_string().replace('<', "\\u003c"), 1)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_has_one_place_for_each_part_and_asks_nobody_for_anything() {
        for page in [PLAN, REPORT] {
            for slot in ["PLIMSOLL_STYLE", "PLIMSOLL_SCRIPT", "PLIMSOLL_DATA"] {
                assert_eq!(page.0.matches(slot).count(), 1, "{slot}");
            }
            let filled = page.fill(&json!({}), &Plain::default());
            assert!(filled.contains("prefers-color-scheme: dark") && filled.contains("function ticks"));
            for outside in ["http", "src=", "@import", "url(", "fetch(", "<link", "PLIMSOLL_"] {
                assert!(!filled.contains(outside), "{outside}");
            }
        }
    }

    #[test]
    fn names_cannot_end_the_data_or_stand_for_a_part() {
        let page = PLAN.fill(&json!({ "title": "</script><b>PLIMSOLL_STYLE" }), &Plain::default());
        assert_eq!(page.matches("</script>").count(), PLAN.0.matches("</script>").count());
        assert_eq!(page.matches("PLIMSOLL_STYLE").count(), 1);
    }
}
