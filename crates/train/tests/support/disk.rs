//! A disk for tests to offload to.

use plimsoll_exec::CpuDevice;
use plimsoll_plan::{Link, Tier};

/// Of a stated speed, so that the same plans are made on every machine.
pub(crate) const DISK: Link = Link {
    tier: Tier::Disk,
    room: 1 << 30,
    block: 4096,
    out_rate: 1e9,
    in_rate: 1e9,
    latency: 1e-4,
    toll: 0.0,
};

/// The CPU, with a disk where there is a link to one.
pub(crate) fn device(threads: usize, link: Option<Link>) -> CpuDevice {
    let device = CpuDevice::new(threads).unwrap();
    match link {
        Some(link) => device.with_offload(std::env::temp_dir(), link),
        None => device,
    }
}
