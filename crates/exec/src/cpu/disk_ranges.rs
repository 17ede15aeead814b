//! Any range of the tier's file, for callers between schedules: state that lives there is written at the start, read
//! for a checkpoint, and so on.
//!
//! ```text
//! blocks   |····wwww|wwwwwwww|wwwwwwww|ww······|
//!           └ read, changed and written  ┘└ again
//!                    └ whole blocks: as they are, over the lanes of transfers
//! ```
//!
//! No memory of the size of a range is taken: whole blocks pass through the bounce buffers that are there.
#![allow(unsafe_code, reason = "it hands the caller's bytes to the lanes and waits for them")]

use plimsoll_plan::Direction;

use crate::ExecError;
use crate::cpu::disk::{BLOCK, DiskTier};

const WIDTH: usize = BLOCK as usize;

/// One step of a range: part of a block, or many whole ones.
struct Piece {
    /// First byte in the file, and where it is in the caller's bytes.
    offset: u64,
    first: usize,
    count: usize,
    whole: bool,
}

/// Cuts a range at the bounds of blocks.
fn pieces(offset: u64, bytes: usize) -> impl Iterator<Item = Piece> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let (offset, left) = (offset + first as u64, bytes - first);
        let inside = (offset % BLOCK) as usize;
        let whole = inside == 0 && left >= WIDTH;
        let count = if whole { left / WIDTH * WIDTH } else { left.min(WIDTH - inside) };
        let piece = Piece { offset, first, count, whole };
        first += count;
        (count > 0).then_some(piece)
    })
}

impl DiskTier {
    /// Writes bytes of the file. Nothing may be under way there.
    ///
    /// # Errors
    ///
    /// When the disk fails, now or before.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        for Piece { offset, first, count, whole } in pieces(offset, bytes.len()) {
            let bytes = &bytes[first..first + count];
            if whole {
                self.send(offset, bytes)?;
            } else {
                let (start, mut block) = (offset / BLOCK * BLOCK, [0; WIDTH]);
                self.fetch(start, &mut block)?;
                block[(offset - start) as usize..][..count].copy_from_slice(bytes);
                self.send(start, &block)?;
            }
        }
        Ok(())
    }

    /// Reads bytes of the file. No transfer may be under way there.
    ///
    /// # Errors
    ///
    /// When the disk fails, now or before.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        for Piece { offset, first, count, whole } in pieces(offset, bytes.len()) {
            let bytes = &mut bytes[first..first + count];
            if whole {
                self.fetch(offset, bytes)?;
            } else {
                let (start, mut block) = (offset / BLOCK * BLOCK, [0; WIDTH]);
                self.fetch(start, &mut block)?;
                bytes.copy_from_slice(&block[(offset - start) as usize..][..count]);
            }
        }
        Ok(())
    }

    /// Sends whole blocks and waits for them.
    fn send(&self, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        let address = bytes.as_ptr().cast_mut();
        // SAFETY: the bytes are borrowed until the wait on the next line; on the way out they are only read.
        let number = unsafe { self.start(Direction::Out, address, bytes.len() as u64, offset) }?;
        self.wait(Direction::Out, number)
    }

    /// Fetches whole blocks.
    fn fetch(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        // SAFETY: the bytes are borrowed mutably until the wait on the next line.
        let number = unsafe { self.start(Direction::In, bytes.as_mut_ptr(), bytes.len() as u64, offset) }?;
        self.wait(Direction::In, number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_can_be_written_and_read_and_leaves_its_neighbours_alone() {
        let tier = DiskTier::create(&std::env::temp_dir(), 8 * BLOCK, 1).unwrap();
        let mut expected: Vec<u8> = (0..8 * WIDTH).map(|i| (i * 7 % 251) as u8).collect();
        tier.write(0, &expected).unwrap();
        let ranges =
            [(0, 1), (5, 4090), (4095, 2), (4096, 4096), (4000, 9000), (12288, 8192), (32760, 8), (9, 0)];
        for (round, (offset, count)) in ranges.into_iter().enumerate() {
            let bytes = vec![round as u8; count];
            tier.write(offset as u64, &bytes).unwrap();
            expected[offset..offset + count].copy_from_slice(&bytes);
            let mut found = vec![0; 8 * WIDTH];
            tier.read(0, &mut found).unwrap();
            assert!(found == expected, "{count} bytes from {offset}");
            let mut part = vec![0xff; count];
            tier.read(offset as u64, &mut part).unwrap();
            assert_eq!(part, bytes);
        }
    }
}
