//! A disk of a stated speed, a device that offloads to it, and a limit that makes it fail.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(unsafe_code, reason = "limits of the process are set by system calls")]

use plimsoll_exec::CpuDevice;
use plimsoll_plan::{Link, Tier};

const DISK: Link = Link {
    tier: Tier::Disk,
    room: 1 << 30,
    block: 4096,
    out_rate: 1e9,
    in_rate: 1e9,
    latency: 0.0,
    toll: 0.0,
};

pub(crate) fn device() -> CpuDevice {
    CpuDevice::new(2).unwrap().with_offload(std::env::temp_dir(), DISK)
}

/// Lets files of this process grow to `bytes`, and has writes beyond fail instead of ending the process.
pub(crate) fn limit_files(bytes: libc::rlim_t) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: ignoring a signal needs no handler, and the struct is ours.
    let set = unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit);
        limit.rlim_cur = bytes.min(limit.rlim_max);
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit)
    };
    assert_eq!(set, 0);
}
