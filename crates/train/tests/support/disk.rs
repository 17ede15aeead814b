//! A disk for tests to offload to.

use plimsoll_devices::{DeviceKind, Setup, open};
use plimsoll_exec::Device;
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
pub(crate) fn device(threads: usize, link: Option<Link>) -> Box<dyn Device> {
    let offload = link.map(|link| (std::env::temp_dir(), link));
    open(DeviceKind::Cpu, &Setup { threads, offload, ..Setup::default() }).unwrap()
}
