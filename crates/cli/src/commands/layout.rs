//! `plimsoll layout`: the planner's last stage on its own, for instances from elsewhere.

use std::io::{self, Write};
use std::path::Path;

use plimsoll::TrainError;
use plimsoll::planning::{Effort, Layout, Table, solve};
use plimsoll::training::files::read_any_text;
use plimsoll::training::memory::Size;

use crate::args::LayoutArgs;
use crate::exit::Failure;
use crate::guard;

pub(crate) fn run(args: &LayoutArgs) -> Result<(), Failure> {
    let capacity = args.capacity.as_deref().map(capacity).transpose()?;
    guard::raise(None)?;
    let table = read(&args.file)?;
    guard::lower();
    let layout = solve(table.slots(), capacity, Effort::THOROUGH);
    if let Some(capacity) = capacity
        && layout.peak > capacity
    {
        return Err(does_not_fit(capacity, &layout).into());
    }
    let written = io::stdout().lock().write_all(table.with_offsets(&layout.offsets).as_bytes());
    written.and_then(|()| report(&layout)).map_err(|error| Failure::output(&error))
}

/// One fact per line, since scripts read it too.
fn report(layout: &Layout) -> io::Result<()> {
    let proven = if layout.is_optimal() { "yes" } else { "not proven" };
    writeln!(io::stderr(), "peak {}\nbound {}\noptimal {proven}", layout.peak, layout.bound)
}

/// A size with a unit, or a plain number in the unit of the file.
fn capacity(text: &str) -> Result<u64, TrainError> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let size: Result<Size, _> = text.parse();
    size.map(|size| size.bytes).map_err(|error| TrainError::Config(format!("--capacity: {error}")))
}

fn read(path: &Path) -> Result<Table, TrainError> {
    let name = path.display();
    let text =
        read_any_text(path).map_err(|error| TrainError::Config(format!("{name} cannot be read: {error}")))?;
    Table::parse(&text).map_err(|error| TrainError::Config(format!("{name}, {error}")))
}

fn does_not_fit(capacity: u64, layout: &Layout) -> TrainError {
    let Layout { peak, bound, .. } = layout;
    TrainError::Config(if *bound > capacity {
        format!("no layout fits into {capacity}: {bound} are alive at one time")
    } else if layout.proven > capacity {
        format!("no layout fits into {capacity}; the smallest found takes {peak}")
    } else {
        format!("no layout was found that fits into {capacity}; the smallest found takes {peak}")
    })
}
