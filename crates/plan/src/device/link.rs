//! Memory beside the device's own, and the link to it with its rates.

/// A kind of memory that is not the device's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Memory of the host, when the device is not the host.
    Host,
    /// A file.
    Disk,
}

impl Tier {
    /// The name people use.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Host => "host",
            Tier::Disk => "disk",
        }
    }
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From the device to the tier.
    Out,
    /// From the tier to the device.
    In,
}

/// A queue of transfers. Transfers of one lane run one after another, in the order they were started; lanes run beside
/// each other and beside compute. Exchanges between ranks have a lane of their own, which is not listed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// From the device to its host.
    ToHost,
    /// From the host to its device.
    FromHost,
    /// From memory to a disk.
    DiskWrite,
    /// From a disk to memory.
    DiskRead,
}

impl Lane {
    /// All lanes.
    pub const ALL: [Lane; 4] = [Lane::ToHost, Lane::FromHost, Lane::DiskWrite, Lane::DiskRead];

    /// The lane between the arena and a tier.
    pub fn of(tier: Tier, direction: Direction) -> Lane {
        match (tier, direction) {
            (Tier::Host, Direction::Out) => Lane::ToHost,
            (Tier::Host, Direction::In) => Lane::FromHost,
            (Tier::Disk, Direction::Out) => Lane::DiskWrite,
            (Tier::Disk, Direction::In) => Lane::DiskRead,
        }
    }

    /// The name people use.
    pub fn name(self) -> &'static str {
        match self {
            Lane::ToHost => "to host",
            Lane::FromHost => "from host",
            Lane::DiskWrite => "disk write",
            Lane::DiskRead => "disk read",
        }
    }
}

/// A way to another tier and back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The other end.
    pub tier: Tier,
    /// Bytes that the tier may hold.
    pub room: u64,
    /// Places in the tier are multiples of this, and smaller buffers are not worth sending.
    pub block: u64,
    /// Rate on the way out, in bytes per second.
    pub out_rate: f64,
    /// Rate on the way in.
    pub in_rate: f64,
    /// Seconds that a transfer takes in addition to the time of its bytes.
    pub latency: f64,
    /// Seconds that compute loses for every byte that moves beside it, where the computing threads also move bytes.
    pub toll: f64,
}

impl Link {
    /// Time of a transfer of `bytes` bytes.
    pub fn seconds(&self, direction: Direction, bytes: u64) -> f64 {
        let rate = match direction {
            Direction::Out => self.out_rate,
            Direction::In => self.in_rate,
        };
        self.latency + bytes as f64 / rate
    }

    /// Time that compute loses while this many bytes move.
    pub fn lost_seconds(&self, bytes: u64) -> f64 {
        self.toll * bytes as f64
    }
}
