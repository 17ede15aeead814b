//! Counting the memory of a card that this process takes.
//!
//! The driver reports the free memory. The memory of this process follows in one of three ways, chosen for each reading by
//! the figures that NVML gives. A run prints which way it counts, and a note when another process takes or gives back
//! memory.

use std::collections::BTreeMap;

/// Bytes that the card gives up for a process and NVML's figure leaves out, measured on an H200 in 498 readings.
const LEFT_OUT: u64 = 9_240_576;
/// Bytes of pinned memory of the host for which the card gives up one: 2 MiB for a GiB.
const PINNED_PER_BYTE: u64 = 512;
/// A change that the driver's own growth does not explain: it goes in steps of 2 MiB.
const CHANGE: u64 = 64 << 20;
/// The most changes that a run remarks on.
const MOST_TOLD: usize = 4;

/// Bytes of the processes on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Bytes of this process, if the list names it.
    own: Option<u64>,
    /// Bytes of all other processes.
    others: u64,
}

impl Shares {
    /// The shares of `own` and of the others; `None` if one is not known.
    pub(crate) fn of(processes: &BTreeMap<u32, u64>, own: u32) -> Option<Shares> {
        // NVML's number for an unknown figure.
        if processes.values().any(|&bytes| bytes == u64::MAX) {
            return None;
        }
        let others = processes.iter().filter(|(pid, _)| **pid != own).map(|(_, bytes)| bytes).sum();
        Some(Shares { own: processes.get(&own).copied(), others })
    }
}

/// Driver's and NVML's counts of a card's memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Bytes of the card.
    pub(crate) total: u64,
    /// Bytes that are free.
    pub(crate) free: u64,
    /// Bytes that were free before this process took any.
    pub(crate) before: Option<u64>,
    /// Memory of this process and of other processes, where NVML tells it.
    pub(crate) shares: Option<Shares>,
    /// Pinned bytes of the host.
    pub(crate) pinned: u64,
}

/// The way in which a reading is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Free before this process less free now: exact while no other process takes or gives back memory.
    Difference(u64),
    /// NVML's figure of this process plus the bytes that it leaves out, where others hold memory.
    Own(u64),
    /// All memory of the card less its free memory.
    Total,
}

impl Reading {
    fn way(&self) -> Way {
        match (self.before, self.shares) {
            (None, _) => Way::Total,
            (Some(_), Some(Shares { own: Some(own), others })) if others > 0 => Way::Own(own),
            (Some(before), _) => Way::Difference(before),
        }
    }

    /// Bytes that this process has taken.
    pub(crate) fn taken(&self) -> u64 {
        match self.way() {
            Way::Difference(before) => before.saturating_sub(self.free),
            Way::Own(own) => own + LEFT_OUT + self.pinned / PINNED_PER_BYTE,
            Way::Total => self.total.saturating_sub(self.free),
        }
    }

    /// How the bytes were counted.
    fn counted(&self) -> String {
        match self.way() {
            Way::Difference(_) => {
                "memory of the card is counted as free before this process, by NVML, less free now, by the driver".into()
            }
            Way::Own(_) => format!(
                "other processes hold {} MiB of the card, so its memory is counted as NVML's figure of this process and {} \
                 bytes that the figure leaves out",
                self.shares.map_or(0, |shares| shares.others) >> 20,
                LEFT_OUT + self.pinned / PINNED_PER_BYTE
            ),
            Way::Total => "NVML does not answer, so all of the card that is not free is counted, memory of other processes \
                           included"
                .into(),
        }
    }

    /// Bytes that other processes have, if NVML tells them from ours.
    fn others(&self) -> Option<u64> {
        self.shares.filter(|shares| shares.own.is_some()).map(|shares| shares.others)
    }

    /// Bytes of other processes at an earlier reading and now. Where NVML does not tell processes apart, both are this process's
    /// count: it takes nothing while it runs, so any change is due to others.
    fn changed(&self, since: &Reading) -> (u64, u64) {
        match (since.others(), self.others()) {
            (Some(was), Some(is)) => (was, is),
            _ => (since.taken(), self.taken()),
        }
    }
}

/// The readings of one device.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    last: Option<Reading>,
    compared: Compared,
    /// How often a change was remarked on.
    told: usize,
    remarks: Vec<String>,
}

/// The reading that later ones are compared with.
#[derive(Debug, Default)]
enum Compared {
    /// None yet: this process itself still takes memory.
    #[default]
    Nothing,
    /// The next reading.
    Next,
    /// Later readings are compared with this earlier one.
    With(Reading),
}

impl Readings {
    /// The reading for this many free bytes: the last one, if no byte was taken or given back since, else a new one.
    pub(crate) fn read(&mut self, free: u64, new: impl FnOnce() -> Reading) -> Reading {
        if let Some(last) = self.last.filter(|last| last.free == free) {
            return last;
        }
        let reading = new();
        self.last = Some(reading);
        match self.compared {
            Compared::Nothing => {}
            Compared::Next => self.compared = Compared::With(reading),
            Compared::With(earlier) => self.compare(&earlier, &reading),
        }
        reading
    }

    /// Has later readings compared, since this process now has all of its memory, or not any more.
    pub(crate) fn settle(&mut self, settled: bool) {
        self.last = None;
        self.compared = if settled { Compared::Next } else { Compared::Nothing };
    }

    fn compare(&mut self, earlier: &Reading, reading: &Reading) {
        let (was, is) = reading.changed(earlier);
        if was.abs_diff(is) < CHANGE {
            return;
        }
        self.compared = Compared::With(*reading);
        self.told += 1;
        if self.told <= MOST_TOLD {
            let (did, mib) = (if is > was { "took" } else { "gave back" }, was.abs_diff(is) >> 20);
            self.remarks.push(format!(
                "another process {did} {mib} MiB of the card during this run; {}",
                reading.counted()
            ));
        }
    }

    /// How the last reading was counted.
    pub(crate) fn counted(&self) -> Option<String> {
        self.last.map(|last| last.counted())
    }

    /// Remarks since they were last taken.
    pub(crate) fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A card of 140 GiB of which others held `others` before this process took 3 GiB.
    fn reading(others: u64, shares: Option<Shares>) -> Reading {
        let before = 140 * GIB - others;
        Reading { total: 140 * GIB, free: before - 3 * GIB, before: Some(before), shares, pinned: GIB }
    }

    fn named(own: u64, others: u64) -> Shares {
        Shares { own: Some(own), others }
    }

    #[test]
    fn alone_on_the_card_the_difference_counts_whatever_nvml_says_of_processes() {
        for told in [None, Some(named(2 * GIB, 0)), Some(Shares { own: None, others: 5 * GIB })] {
            assert_eq!(reading(0, told).taken(), 3 * GIB, "{told:?}");
        }
        assert!(reading(0, None).counted().starts_with("memory of the card is counted as free before"));
    }

    #[test]
    fn beside_others_the_own_figure_counts_with_what_it_leaves_out() {
        let figure = 3 * GIB - 9_240_576 - (2 << 20);
        let found = reading(7 * GIB, Some(named(figure, 7 * GIB)));
        assert_eq!(found.taken(), 3 * GIB, "as the difference, while nobody else takes any");
        let crowded = Reading { free: found.free - 20 * GIB, shares: Some(named(figure, 27 * GIB)), ..found };
        assert_eq!(crowded.taken(), 3 * GIB, "and still when others have taken more");
        assert!(crowded.counted().starts_with("other processes hold 27648 MiB of the card"));
        assert!(crowded.counted().contains("and 11337728 bytes"));
    }

    #[test]
    fn without_nvml_all_that_is_not_free_counts() {
        let found = Reading { before: None, ..reading(7 * GIB, None) };
        assert_eq!(found.taken(), 10 * GIB);
        assert!(found.counted().starts_with("NVML does not answer"));
    }

    #[test]
    fn shares_are_summed_without_ours_and_are_unknown_where_one_is() {
        let of = |processes: &[(u32, u64)]| Shares::of(&processes.iter().copied().collect(), 42);
        assert_eq!(of(&[(1, 10), (42, 5), (7, 20)]), Some(Shares { own: Some(5), others: 30 }));
        assert_eq!(of(&[(1, 10)]), Some(Shares { own: None, others: 10 }));
        assert_eq!(of(&[(1, u64::MAX), (42, 5)]), None);
    }

    #[test]
    fn another_process_that_comes_and_goes_is_remarked_on_and_our_own_arena_is_not() {
        let mut readings = Readings::default();
        let read = |readings: &mut Readings, new: Reading| {
            readings.read(new.free, || new);
            readings.take_remarks()
        };
        let alone = reading(0, Some(named(2 * GIB, 0)));
        assert!(read(&mut readings, alone).is_empty());
        let arena = Reading { free: alone.free - 50 * GIB, shares: Some(named(52 * GIB, 0)), ..alone };
        assert!(read(&mut readings, arena).is_empty(), "nothing is compared yet");
        readings.settle(true);
        assert!(read(&mut readings, arena).is_empty());
        let crowded = Reading { free: arena.free - GIB, shares: Some(named(52 * GIB, GIB)), ..arena };
        let said = read(&mut readings, crowded);
        assert!(
            said[0].starts_with("another process took 1024 MiB of the card during this run; other processes"),
            "{said:?}"
        );
        assert!(read(&mut readings, crowded).is_empty(), "said once");
        let said = read(&mut readings, arena);
        assert!(said[0].starts_with("another process gave back 1024 MiB"), "{said:?}");
        for _ in 0..5 {
            read(&mut readings, crowded);
            read(&mut readings, arena);
        }
        assert_eq!(readings.told, 12);
        assert!(read(&mut readings, crowded).is_empty(), "no more after a few");
    }

    #[test]
    fn where_processes_have_no_names_a_count_that_changes_is_another_process() {
        let mut readings = Readings::default();
        readings.settle(true);
        let (alone, step) = (reading(0, None), 2 << 20);
        for (free, remarks) in [(alone.free, 0), (alone.free - step, 0), (alone.free - GIB, 1)] {
            readings.read(free, || Reading { free, ..alone });
            assert_eq!(readings.take_remarks().len(), remarks);
        }
    }

    #[test]
    fn nvml_is_asked_again_only_where_the_free_memory_has_changed() {
        let (mut readings, asked) = (Readings::default(), std::cell::Cell::new(0));
        for free in [8, 8, 7, 7] {
            readings.read(free * GIB, || {
                asked.set(asked.get() + 1);
                Reading { free: free * GIB, ..reading(0, None) }
            });
        }
        assert_eq!(asked.get(), 2);
    }
}
