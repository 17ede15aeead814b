//! The limit on a process's address space (`ulimit -v`), read from Linux's own files.
//!
//! Beyond the limit the system refuses memory, and a refused allocation ends a process without an error message. So
//! code that is about to take memory asks here first. Usually no limit is set.

use std::fs;

use crate::memory::{BudgetError, Size};

/// Address space that a command takes before it knows a budget: code, stacks, tables.
const LEAST: u64 = 24 << 20;

/// Bytes of address space that this process may still take; `None` if no limit is set.
pub fn left() -> Option<u64> {
    let limit = limit(&fs::read_to_string("/proc/self/limits").ok()?)?;
    let taken = taken(&fs::read_to_string("/proc/self/status").ok()?)?;
    Some(limit.saturating_sub(taken))
}

/// Refuses to begin where the limit leaves no room for anything.
///
/// # Errors
///
/// The error names the limit and the way out.
pub fn check() -> Result<(), BudgetError> {
    match left() {
        Some(left) if left < LEAST => Err(BudgetError::Refused(format!(
            "the address space of this process is limited (ulimit -v) and {} of it are left, less than the {} that any command \
             takes; raise the limit, and state --memory to bound what is used",
            Size { bytes: left },
            Size { bytes: LEAST }
        ))),
        _ => Ok(()),
    }
}

/// The soft limit in the text of `/proc/self/limits`.
fn limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// `VmSize` in the text of `/proc/self/status`.
fn taken(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_and_none_is_none() {
        let limits = |value: &str| {
            format!(
                "Limit    Soft Limit    Hard Limit    Units\nMax address space    {value}    unlimited    bytes\n"
            )
        };
        assert_eq!(limit(&limits("65536000")), Some(65_536_000));
        assert_eq!(limit(&limits("unlimited")), None);
        assert_eq!(taken("VmPeak:\t 20 kB\nVmSize:\t 16 kB\n"), Some(16 << 10));
    }
}
