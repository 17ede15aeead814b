//! Budgets of a GPU's memory: of one that is open, and of one that is only described.
//!
//! The driver counts the bytes that it, libraries and kernels hold once the GPU is open; an allowance is added for those that they
//! still take. Of a described GPU that reserve is one of its figures.

use plimsoll_plan::{ArenaBytes, DeviceSpec, ProcessBytes};

use super::budget::margin;
use super::{Budget, BudgetError, BudgetOrigin, Size};

/// Bytes of a GPU that its driver and libraries still take when kernels, products and attention first run. Single steps that
/// were measured on an H200 add up to 26 MiB.
const CARD_ALLOWANCE: u64 = 48 << 20;
/// Bytes of a GPU that stay free within the budget: the driver's own memory grows by 2 MiB about once in hundreds of
/// shapes.
const CARD_MARGIN: u64 = 16 << 20;
/// Memory of a GPU comes in pieces of this size.
const CARD_STEP: u64 = 2 << 20;

impl Budget {
    /// Divides the memory of an open GPU, of which this process holds `taken` bytes and `free` are free: the stated
    /// bytes, or all free bytes less a margin.
    ///
    /// # Errors
    ///
    /// When more is stated than is there.
    pub fn of_card(total: u64, free: u64, taken: u64, stated: Option<u64>) -> Result<Budget, BudgetError> {
        let (most, outside) = (free + taken, taken + CARD_ALLOWANCE + CARD_MARGIN);
        let (total, origin) = match stated {
            Some(bytes) if bytes > most => {
                let (bytes, has, free) = (Size { bytes }, Size { bytes: total }, Size { bytes: most });
                return Err(BudgetError::Refused(format!(
                    "--memory {bytes} is more than the {free} that are free of the GPU's {has}; state less, or end what \
                     else runs there"
                )));
            }
            Some(bytes) => (bytes, BudgetOrigin::Stated),
            None => (most - margin(most), BudgetOrigin::Free),
        };
        Ok(Budget { total: ProcessBytes(total), outside, origin, ceiling: Some(ProcessBytes(most)) })
    }

    /// The same budget for a GPU that holds `outside` bytes beside the arena, now that it is ready to run.
    ///
    /// # Errors
    ///
    /// When an arena of this size no longer fits.
    pub fn with_card_outside(self, outside: u64, arena: ArenaBytes) -> Result<Budget, BudgetError> {
        let needed = ProcessBytes(arena.0.next_multiple_of(CARD_STEP) + outside + CARD_MARGIN);
        if needed > self.total {
            let (more, total) = (Size { bytes: needed.0 }, self.described());
            return Err(BudgetError::Refused(format!(
                "the GPU holds {} beside the arena, more than was planned for, so the run needs {more} and the budget is \
                 {total}; state a --memory that much larger or a smaller --micro-batch",
                Size { bytes: outside }
            )));
        }
        Ok(Budget { outside, ..self })
    }

    /// Divides the memory of a described device, or the stated part of it.
    ///
    /// # Errors
    ///
    /// When more is stated than the device has.
    pub fn of_device(spec: &DeviceSpec, stated: Option<u64>) -> Result<Budget, BudgetError> {
        let (total, origin) = match stated {
            Some(bytes) if bytes > spec.memory_bytes => {
                let (bytes, has) = (Size { bytes }, Size { bytes: spec.memory_bytes });
                let name = spec.name();
                return Err(BudgetError::Refused(format!(
                    "--memory {bytes} is more than the {has} that {name} has; leave it out to plan for all of it"
                )));
            }
            Some(bytes) => (bytes, BudgetOrigin::Stated),
            None => (spec.memory_bytes, BudgetOrigin::Device),
        };
        let (total, ceiling) = (ProcessBytes(total), Some(ProcessBytes(spec.memory_bytes)));
        Ok(Budget { total, outside: spec.reserve_bytes, origin, ceiling })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_gives_its_arena_the_budget_less_what_the_driver_holds_and_is_asked_again_when_it_is_ready() {
        let (gib, mib) = (1u64 << 30, 1u64 << 20);
        let card = |stated| Budget::of_card(140 * gib, 120 * gib, 300 * mib, stated);
        let stated = card(Some(16 * gib)).unwrap();
        assert_eq!(stated.total, ProcessBytes(16 * gib));
        assert_eq!(stated.arena(), ArenaBytes(16 * gib - 364 * mib));
        let free = card(None).unwrap();
        assert!((110 * gib + 1..120 * gib).contains(&free.total.0) && free.origin == BudgetOrigin::Free);
        let error = card(Some(121 * gib)).unwrap_err().to_string();
        assert!(
            error.contains("--memory 121 GiB is more than the 120 GiB that are free of the GPU's 140 GiB"),
            "{error}"
        );
        // The card's count decides in the end, with a margin for the memory that the driver may still take.
        let arena = stated.arena();
        assert_eq!(stated.with_card_outside(330 * mib, arena).unwrap().outside, 330 * mib);
        assert!(stated.with_card_outside(349 * mib, arena).is_err());
        assert!(!stated.wants_fresh_process().unwrap(), "its memory is not the process's");
    }

    #[test]
    fn a_described_device_gives_its_memory_less_its_reserve_and_no_more_than_it_has() {
        let spec = DeviceSpec::from_name("cuda:4090").unwrap();
        let whole = Budget::of_device(&spec, None).unwrap();
        assert_eq!(whole.arena(), ArenaBytes((24_564 - 600) << 20));
        let part = Budget::of_device(&spec, Some(8 << 30)).unwrap();
        let divided = (part.total, part.outside, part.origin);
        assert_eq!(divided, (ProcessBytes(8 << 30), 600 << 20, BudgetOrigin::Stated));
        let error = Budget::of_device(&spec, Some(80 << 30)).unwrap_err().to_string();
        assert!(error.contains("--memory 80.0 GiB is more than the 24.0 GiB that cuda:4090 has"), "{error}");
    }
}
