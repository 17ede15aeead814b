//! `plimsoll report`: the page of a run.

use crate::args::ReportArgs;
use crate::exit::Failure;
use crate::guard;
use crate::report_page::{State, metrics_path, write};
use crate::say::say;

pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let metrics = metrics_path(&args.run);
    let path = args.html.clone().unwrap_or_else(|| metrics.with_file_name("report.html"));
    guard::raise(None)?;
    write(&metrics, &path, State::Over)?;
    say(&format!("the report is in {}\n", path.display()))
}
