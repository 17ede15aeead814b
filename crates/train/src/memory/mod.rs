//! Memory of this process and of the machine, read from Linux's own files.
//!
//! Free memory is the smaller of two numbers: `MemAvailable`, the kernel's estimate of the memory available without
//! swapping, and the room in every control group above this process, because a container may hold less than the
//! machine. Room is limit − (usage − inactive page cache): the kernel reclaims that cache before it kills a process,
//! and a run that has read its data would otherwise look full.
//!
//! Absent: GPUs, swap, other limits of a user than on address space, other systems (there, [`MemoryError`] says so).

pub mod address_space;
mod budget;
mod card;
pub mod machine;
mod size;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

pub use budget::{ALLOWANCE, Budget, BudgetError, BudgetOrigin, MARGIN};
pub use size::{Size, SizeError};

/// Memory of one process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// The most that was ever resident (`VmHWM`).
    pub peak: u64,
    /// Resident now (`VmRSS`).
    pub resident: u64,
    /// The part of these bytes that are pages of files, which is code (`RssFile`).
    pub of_files: u64,
}

impl ProcessMemory {
    /// Resident bytes that are no pages of files.
    pub fn anonymous(&self) -> u64 {
        self.resident.saturating_sub(self.of_files)
    }
}

/// A file of the kernel that could not be read or lacked the expected entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryError {
    path: PathBuf,
    why: String,
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the machine's memory is not known: {}: {}; state a budget with --memory",
            self.path.display(),
            self.why
        )
    }
}

impl std::error::Error for MemoryError {}

/// The memory of this process.
pub fn process() -> Result<ProcessMemory, MemoryError> {
    let path = Path::new("/proc/self/status");
    parse_status(&read(path)?).ok_or_else(|| lacks(path, "VmHWM and VmRSS"))
}

/// Bytes that this process can still take before the machine or its container has none left, or its address space is full.
pub fn available() -> Result<u64, MemoryError> {
    Ok(available_under(Path::new("/"))?.min(address_space::left().unwrap_or(u64::MAX)))
}

/// Bytes that the machine has, or its container if that may hold less.
pub fn total() -> Result<u64, MemoryError> {
    total_under(Path::new("/"))
}

/// Finds `VmHWM` and `VmRSS` in the text of `/proc/<pid>/status`.
pub fn parse_status(status: &str) -> Option<ProcessMemory> {
    Some(ProcessMemory {
        peak: kib_field(status, "VmHWM")?,
        resident: kib_field(status, "VmRSS")?,
        // Old kernels do not list pages of files apart.
        of_files: kib_field(status, "RssFile").unwrap_or(0),
    })
}

/// Finds `MemAvailable` in the text of `/proc/meminfo`.
pub fn parse_meminfo(meminfo: &str) -> Option<u64> {
    kib_field(meminfo, "MemAvailable")
}

/// The room in one control group, from the texts of its files; `None` when it sets no limit.
///
/// `stat` is `memory.stat`, which may be empty: then no cache is subtracted from the usage.
pub fn control_group_room(limit: &str, usage: &str, stat: &str) -> Option<u64> {
    // Version 2 writes `max` for "no limit", which is no number; version 1 writes a number near 2⁶³, which is never the
    // minimum.
    let limit: u64 = limit.trim().parse().ok()?;
    let usage: u64 = usage.trim().parse().ok()?;
    // Version 1 counts the groups below in `total_…`; version 2 always does.
    let cache = word_field(stat, "total_inactive_file").or_else(|| word_field(stat, "inactive_file"));
    Some(limit.saturating_sub(usage.saturating_sub(cache.unwrap_or(0))))
}

/// A control group's folder below `/sys/fs/cgroup`, and the names its version gives the files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ControlGroup {
    folder: PathBuf,
    limit: &'static str,
    usage: &'static str,
}

/// The groups that `/proc/self/cgroup` names, each followed by all groups above it.
///
/// Without a namespace of its own, a container sees its path as the host names it while its mount starts at the
/// container's group. Ending at the root covers that, as folders that do not exist are skipped.
fn control_groups(proc_self_cgroup: &str) -> Vec<ControlGroup> {
    let mut groups = Vec::new();
    for line in proc_self_cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, limit, usage) = if controllers.is_empty() {
            ("sys/fs/cgroup", "memory.max", "memory.current")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            continue;
        };
        let below = Path::new(path.trim_start_matches('/'));
        groups.extend(below.ancestors().map(|part| ControlGroup {
            folder: Path::new(root).join(part),
            limit,
            usage,
        }));
    }
    groups
}

fn available_under(root: &Path) -> Result<u64, MemoryError> {
    let path = root.join("proc/meminfo");
    let machine = parse_meminfo(&read(&path)?).ok_or_else(|| lacks(&path, "MemAvailable"))?;
    let room = smallest(root, |group, text| {
        let stat = text("memory.stat").unwrap_or_default();
        control_group_room(&text(group.limit)?, &text(group.usage)?, &stat)
    });
    Ok(room.map_or(machine, |room| room.min(machine)))
}

fn total_under(root: &Path) -> Result<u64, MemoryError> {
    let path = root.join("proc/meminfo");
    let machine = kib_field(&read(&path)?, "MemTotal").ok_or_else(|| lacks(&path, "MemTotal"))?;
    let limit = smallest(root, |group, text| text(group.limit)?.trim().parse().ok());
    Ok(limit.map_or(machine, |limit| limit.min(machine)))
}

/// The smallest figure that `find` reads from the files of a control group of this process.
fn smallest(
    root: &Path,
    find: impl Fn(&ControlGroup, &dyn Fn(&str) -> Option<String>) -> Option<u64>,
) -> Option<u64> {
    // A kernel without control groups has no such file and no such limit.
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let found = control_groups(&groups).into_iter().filter_map(|group| {
        let folder = root.join(&group.folder);
        find(&group, &|name| fs::read_to_string(folder.join(name)).ok())
    });
    found.min()
}

fn read(path: &Path) -> Result<String, MemoryError> {
    fs::read_to_string(path).map_err(|fault| MemoryError { path: path.to_owned(), why: fault.to_string() })
}

fn lacks(path: &Path, what: &str) -> MemoryError {
    MemoryError { path: path.to_owned(), why: format!("no {what} in it") }
}

/// The bytes in a line `name:   123 kB`.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// The number in a line `name 123`.
fn word_field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    const STATUS: &str =
        "Name:\tplimsoll\nVmPeak:\t 9000 kB\nVmHWM:\t    1800 kB\nVmRSS:\t    1700 kB\nRssFile:\t 900 kB\n";
    const MEMINFO: &str = "MemTotal:  2000 kB\nMemFree:  500 kB\nMemAvailable:    1000 kB\n";

    #[test]
    fn peak_and_resident_bytes_are_found_in_a_status() {
        let found = ProcessMemory { peak: 1800 << 10, resident: 1700 << 10, of_files: 900 << 10 };
        assert_eq!(parse_status(STATUS), Some(found));
        assert_eq!(parse_status("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn this_process_has_a_peak_at_least_as_large_as_what_it_uses() {
        let memory = process().unwrap();
        assert!(memory.peak >= memory.resident && memory.resident > 100 * 1024, "{memory:?}");
        assert!(available().unwrap() > 0);
    }

    #[test]
    fn room_is_what_the_limit_leaves_and_inactive_cache_counts_as_free() {
        assert_eq!(control_group_room("1000\n", "600\n", ""), Some(400));
        assert_eq!(control_group_room("1000\n", "600\n", "anon 10\ninactive_file 100\n"), Some(500));
        let version_1 = "inactive_file 1\ntotal_inactive_file 200\n";
        assert_eq!(control_group_room("1000\n", "600\n", version_1), Some(600));
    }

    #[test]
    fn a_group_without_a_limit_has_no_say_and_a_full_one_has_no_room() {
        assert_eq!(control_group_room("max\n", "600\n", ""), None);
        assert_eq!(control_group_room("1000\n", "1200\n", ""), Some(0));
    }

    #[test]
    fn without_a_group_the_machine_decides() {
        let machine = Scratch::new();
        machine.write("proc/meminfo", MEMINFO);
        assert_eq!(available_under(machine.path()), Ok(1000 * 1024));
    }

    #[test]
    fn the_tightest_group_above_the_process_decides_in_version_2() {
        let machine = Scratch::new();
        machine.write("proc/meminfo", MEMINFO);
        machine.write("proc/self/cgroup", "0::/user/job\n");
        machine.write("sys/fs/cgroup/user/job/memory.max", "max\n");
        machine.write("sys/fs/cgroup/user/job/memory.current", "100\n");
        machine.write("sys/fs/cgroup/user/memory.max", "5000\n");
        machine.write("sys/fs/cgroup/user/memory.current", "2000\n");
        assert_eq!(available_under(machine.path()), Ok(3000));
    }

    #[test]
    fn a_container_whose_path_is_the_hosts_is_found_at_the_mount_in_version_1() {
        let machine = Scratch::new();
        machine.write("proc/meminfo", MEMINFO);
        machine.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/abc\n0::/\n");
        machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "7000\n");
        machine.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n");
        assert_eq!(available_under(machine.path()), Ok(1000));
    }

    #[test]
    fn a_container_has_no_more_than_its_limit() {
        let machine = Scratch::new();
        machine.write("proc/meminfo", MEMINFO);
        assert_eq!(total_under(machine.path()), Ok(2000 * 1024));
        machine.write("proc/self/cgroup", "0::/user/run\n");
        machine.write("sys/fs/cgroup/user/run/memory.max", "max\n");
        machine.write("sys/fs/cgroup/user/memory.max", "700000\n");
        assert_eq!(total_under(machine.path()), Ok(700_000));
    }

    #[test]
    fn a_limit_above_what_the_machine_has_changes_nothing() {
        let machine = Scratch::new();
        machine.write("proc/meminfo", MEMINFO);
        machine.write("proc/self/cgroup", "4:memory:/\n");
        machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        machine.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n");
        assert_eq!(available_under(machine.path()), Ok(1000 * 1024));
    }

    #[test]
    fn a_machine_that_does_not_say_is_an_error_with_a_way_out() {
        let machine = Scratch::new();
        machine.write("proc/meminfo", "MemTotal: 5 kB\n");
        let fault = available_under(machine.path()).unwrap_err().to_string();
        assert!(fault.contains("no MemAvailable in it; state a budget with --memory"), "{fault}");
    }
}
