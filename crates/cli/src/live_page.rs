//! The page of a running run, written again from time to time and once more at the end.

use std::time::{Duration, Instant};

use plimsoll::training::OutputConfig;
use plimsoll::training::trainer::{Event, Listener};

use crate::exit::{self, Failure};
use crate::report_page::{self, State};

/// Writes the last page; returns its path.
pub(crate) fn finish(config: &OutputConfig) -> Result<String, Failure> {
    let page = config.folder.join("report.html");
    report_page::write(&config.folder, &page, State::Over)?;
    Ok(page.display().to_string())
}

/// The page of a running run. It is made from the file of metrics, so it comes after that in the order of listeners.
pub(crate) struct LivePage<'a> {
    config: &'a OutputConfig,
    begun: Instant,
    renewal: Renewal,
}

impl LivePage<'_> {
    /// Writes the first page, so that there is one to open.
    pub(crate) fn begin(config: &OutputConfig) -> LivePage<'_> {
        let mut page = LivePage { config, begun: Instant::now(), renewal: Renewal::default() };
        page.write();
        page
    }

    fn write(&mut self) {
        let (folder, clock) = (&self.config.folder, Instant::now());
        // Only a fault of the last page is reported.
        let _ = report_page::write(folder, &folder.join("report.html"), State::Running);
        self.renewal.written(self.begun.elapsed(), clock.elapsed());
    }
}

impl Listener<Failure> for LivePage<'_> {
    fn hear(&mut self, event: &Event<'_>) -> Result<(), Failure> {
        if !matches!(event, Event::Step(_) | Event::End(_)) && self.renewal.is_due(self.begun.elapsed()) {
            self.write();
        }
        Ok(())
    }

    fn dispensable(&self) -> Option<&'static str> {
        exit::goes_on_unheard().then_some("the page of the run")
    }
}

/// When a page is written again: seldom enough to take at most a fiftieth of the time.
#[derive(Default)]
struct Renewal {
    next: Duration,
}

impl Renewal {
    /// The least time between two pages.
    const LEAST: Duration = Duration::from_secs(10);

    fn is_due(&self, now: Duration) -> bool {
        now >= self.next
    }

    /// Notes that writing a page ended at `now` and lasted `took`.
    fn written(&mut self, now: Duration, took: Duration) {
        self.next = now + Renewal::LEAST.max(49 * took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_renewed_every_ten_seconds_unless_that_took_more_than_a_fiftieth_of_the_time() {
        for (took, expected) in [(0.01, 10.0), (0.1, 10.0), (1.0, 50.0)] {
            let (mut renewal, took) = (Renewal::default(), Duration::from_secs_f64(took));
            assert!(renewal.is_due(Duration::ZERO), "the first is due at once");
            let written = Duration::from_secs(100) + took;
            renewal.written(written, took);
            let due = Duration::from_secs_f64(100.0 + expected).max(written + Renewal::LEAST);
            assert!(!renewal.is_due(due.saturating_sub(Duration::from_millis(1))) && renewal.is_due(due));
        }
    }
}
