//! Slots: lifetimes in bytes, and the bytes that are alive at each moment.

/// A lifetime that needs a place in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// First action that touches the slot.
    pub start: usize,
    /// One past the last action that touches the slot.
    pub end: usize,
    /// Size, rounded up to the device's alignment.
    pub bytes: u64,
}

/// The largest sum of bytes alive during one action.
pub(crate) fn bound(slots: &[Slot]) -> u64 {
    live_bytes(slots).into_iter().max().unwrap_or(0)
}

/// Bytes alive during each action.
pub(crate) fn live_bytes(slots: &[Slot]) -> Vec<u64> {
    let last = slots.iter().map(|slot| slot.end).max().unwrap_or(0);
    let mut change = vec![0i64; last + 1];
    for slot in slots {
        change[slot.start] += slot.bytes as i64;
        change[slot.end] -= slot.bytes as i64;
    }
    let running = change.iter().scan(0i64, |live, &delta| {
        *live += delta;
        Some(*live as u64)
    });
    running.take(last).collect()
}
