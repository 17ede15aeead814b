use crate::liveness::Slot;
pub(super) fn peak(slots: &[Slot], offsets: &[u64]) -> u64 {
    slots.iter().zip(offsets).map(|(slot, offset)| offset + slot.bytes).max().unwrap_or(0)
}
pub(super) fn overlap(slots: &[Slot], offsets: &[u64]) -> Option<(usize, usize)> {
    let pairs = (0..slots.len()).flat_map(|a| (a + 1..slots.len()).map(move |b| (a, b)));
    pairs.into_iter().find(|&(a, b)| {
        let in_time = slots[a].start < slots[b].end && slots[b].start < slots[a].end;
        let in_space = offsets[a] < offsets[b] + slots[b].bytes && offsets[b] < offsets[a] + slots[a].bytes;
        in_time && in_space
    })
}
