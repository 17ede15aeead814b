//! For tests: instances whose optimum is known because of how they are made, and the slow, obvious judge.
//!
//! ```text
//! ┌─────┬─────┐      ┌───────┬───┐     A rectangle is cut into smaller ones, again and again: straight
//! │     ├─────┤      ├───┬───┤   │     through (left), or as a pinwheel that no straight cut takes
//! │     │     │      │   ├───┴───┤     apart (right). Each piece is a slot, and at every moment the
//! └─────┴─────┘      └───┴───────┘     slots fill the rectangle: its height is bound and optimum.
//! ```

use super::preference::PseudoRandom;
use super::slot::Slot;

/// How pieces are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cuts {
    /// Straight through.
    Guillotine,
    /// Pinwheels where there is room for one.
    Pinwheel,
}

/// A range of time × a range of bytes.
#[derive(Clone, Copy)]
struct Piece {
    time: (usize, usize),
    bytes: (u64, u64),
}

/// At least `pieces` slots that fill `time` × `bytes` without a gap, if the rectangle has room for them.
pub(super) fn perfect_packing(seed: u64, cuts: Cuts, pieces: usize, time: usize, bytes: u64) -> Vec<Slot> {
    let mut numbers = PseudoRandom::new(seed);
    let mut done: Vec<Piece> = Vec::new();
    let mut open = vec![Piece { time: (0, time), bytes: (0, bytes) }];
    while !open.is_empty() && open.len() + done.len() < pieces {
        let piece = open.swap_remove(numbers.below(open.len()));
        let parts = match cuts {
            Cuts::Pinwheel if numbers.below(2) == 0 => pinwheel(piece, &mut numbers),
            _ => guillotine(piece, &mut numbers),
        };
        if parts.is_empty() {
            done.push(piece);
        } else {
            open.extend(parts);
        }
    }
    done.extend(open);
    // Shuffled, because the order in which they were cut reveals much about where they were.
    for last in (1..done.len()).rev() {
        done.swap(last, numbers.below(last + 1));
    }
    let slot =
        |piece: Piece| Slot { start: piece.time.0, end: piece.time.1, bytes: piece.bytes.1 - piece.bytes.0 };
    done.into_iter().map(slot).collect()
}

/// A perfect packing in which slots of equal size, one beginning as the other ends, have been joined. It is as full as
/// before at every moment, but often has no layout that meets the bound.
pub(super) fn joined_packing(seed: u64, pieces: usize, time: usize, bytes: u64) -> Vec<Slot> {
    let mut slots = perfect_packing(seed, Cuts::Pinwheel, pieces, time, bytes);
    let joins = |a: &Slot, b: &Slot| a.end == b.start && a.bytes == b.bytes;
    while let Some((a, b)) = slots.iter().enumerate().find_map(|(a, one)| {
        let after = slots.iter().position(|other| joins(one, other))?;
        Some((a, after))
    }) {
        slots[a].end = slots[b].end;
        slots.swap_remove(b);
    }
    slots
}

fn guillotine(piece: Piece, numbers: &mut PseudoRandom) -> Vec<Piece> {
    let Piece { time, bytes } = piece;
    let (width, height) = (time.1 - time.0, (bytes.1 - bytes.0) as usize);
    if width > 1 && (height == 1 || numbers.below(2) == 0) {
        let at = time.0 + 1 + numbers.below(width - 1);
        vec![Piece { time: (time.0, at), bytes }, Piece { time: (at, time.1), bytes }]
    } else if height > 1 {
        let at = bytes.0 + 1 + numbers.below(height - 1) as u64;
        vec![Piece { time, bytes: (bytes.0, at) }, Piece { time, bytes: (at, bytes.1) }]
    } else {
        Vec::new()
    }
}

fn pinwheel(piece: Piece, numbers: &mut PseudoRandom) -> Vec<Piece> {
    let Piece { time: (t0, t3), bytes: (b0, b3) } = piece;
    let height = (b3 - b0) as usize;
    if t3 - t0 < 3 || height < 3 {
        return Vec::new();
    }
    let t1 = t0 + 1 + numbers.below(t3 - t0 - 2);
    let t2 = t1 + 1 + numbers.below(t3 - t1 - 1);
    let b1 = b0 + 1 + numbers.below(height - 2) as u64;
    let b2 = b1 + 1 + numbers.below((b3 - b1 - 1) as usize) as u64;
    vec![
        Piece { time: (t0, t2), bytes: (b0, b1) },
        Piece { time: (t2, t3), bytes: (b0, b2) },
        Piece { time: (t1, t3), bytes: (b2, b3) },
        Piece { time: (t0, t1), bytes: (b1, b3) },
        Piece { time: (t1, t2), bytes: (b1, b2) },
    ]
}

/// The highest byte end.
pub(super) fn peak(slots: &[Slot], offsets: &[u64]) -> u64 {
    slots.iter().zip(offsets).map(|(slot, offset)| offset + slot.bytes).max().unwrap_or(0)
}

/// Two slots that are alive together and share bytes, if there are any.
pub(super) fn overlap(slots: &[Slot], offsets: &[u64]) -> Option<(usize, usize)> {
    let pairs = (0..slots.len()).flat_map(|a| (a + 1..slots.len()).map(move |b| (a, b)));
    pairs.into_iter().find(|&(a, b)| {
        let in_time = slots[a].start < slots[b].end && slots[b].start < slots[a].end;
        let in_space = offsets[a] < offsets[b] + slots[b].bytes && offsets[b] < offsets[a] + slots[a].bytes;
        in_time && in_space
    })
}

/// The smallest peak of any layout, by trying every order of placement: placing the slots of an optimal layout from low
/// to high gives that layout or a lower one.
pub(super) fn smallest_peak(slots: &[Slot]) -> u64 {
    fn continued(slots: &[Slot], placed: &mut Vec<(usize, u64)>, peak: u64, best: &mut u64) {
        if placed.len() == slots.len() {
            *best = peak;
        }
        for next in 0..slots.len() {
            if placed.iter().all(|&(slot, _)| slot != next) {
                let at = lowest_free(slots, placed, next);
                let peak = peak.max(at + slots[next].bytes);
                if peak < *best {
                    placed.push((next, at));
                    continued(slots, placed, peak, best);
                    placed.pop();
                }
            }
        }
    }
    let mut best = u64::MAX;
    continued(slots, &mut Vec::new(), 0, &mut best);
    best
}

fn lowest_free(slots: &[Slot], placed: &[(usize, u64)], next: usize) -> u64 {
    let collides = |at: u64| {
        placed.iter().any(|&(other, offset)| {
            let pair = [slots[next], slots[other]];
            overlap(&pair, &[at, offset]).is_some()
        })
    };
    let tops = placed.iter().map(|&(other, offset)| offset + slots[other].bytes);
    let mut candidates: Vec<u64> = std::iter::once(0).chain(tops).collect();
    candidates.sort_unstable();
    candidates.into_iter().find(|&at| !collides(at)).unwrap_or(0)
}
