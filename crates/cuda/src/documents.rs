//! Tables of documents that the ragged form of attention reads: how long each is, and where it begins in every tensor.
//!
//! The first positions of documents are written into the arena before a schedule runs. The device observes that write
//! and makes tables of it, the longest document first, so that the GPU's blocks end together. If there are too many
//! documents for the plan, or the positions describe no documents, the schedule uses the mask.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_exec::ExecError;

use crate::driver::{Borrowed, Context, Stream};
use crate::lower::{Attention, AttentionShape, AttentionTensor, Place};

/// Bytes that each table begins at a multiple of.
const TABLE_ALIGNMENT: usize = 256;

/// Tables for one shape of attention over the documents of one input.
#[derive(Debug)]
struct Table {
    memory: Borrowed,
    /// Whether the documents written last have found room.
    fits: bool,
}

/// First positions of documents, and the shape of the attention that reads them. Forward and backward share a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TableKey {
    starts: Place,
    shape: AttentionShape,
}

impl TableKey {
    /// The table that a call reads, if it reads one.
    pub(crate) fn of(attention: &Attention) -> Option<TableKey> {
        let shape = AttentionShape { backward: false, scale_bits: 0, ..attention.shape };
        attention.ragged.map(|starts| TableKey { starts, shape })
    }

    fn slots(&self) -> usize {
        self.shape.slots.unwrap_or(0)
    }

    /// Each table with its first byte, and the bytes of all.
    fn layout(&self) -> ([(AttentionTensor, usize); 5], usize) {
        use AttentionTensor::{KeyLengths, KeyOffsets, QueryLengths, QueryOffsets, StatisticOffsets};
        let lengths = (4 * self.slots()).next_multiple_of(TABLE_ALIGNMENT);
        let offsets = (8 * (self.slots() + 1)).next_multiple_of(TABLE_ALIGNMENT);
        let tables = [
            (QueryLengths, 0),
            // A document has as many keys as queries, so one table serves both.
            (KeyLengths, 0),
            (QueryOffsets, lengths),
            (KeyOffsets, lengths + offsets),
            (StatisticOffsets, lengths + 2 * offsets),
        ];
        (tables, lengths + 3 * offsets)
    }

    /// The bytes of all tables for documents with these first tokens and lengths.
    fn bytes(&self, documents: &[(usize, usize)]) -> Vec<u8> {
        let AttentionShape { batch, length, heads, key_heads, width, .. } = self.shape;
        let (tables, total) = self.layout();
        let mut bytes = vec![0; total];
        for (slot, &(_, length)) in documents.iter().enumerate() {
            bytes[4 * slot..][..4].copy_from_slice(&(length as i32).to_ne_bytes());
        }
        for ((_, at), elements) in tables[2..].iter().zip([heads * width, key_heads * width, heads]) {
            for slot in 0..=self.slots() {
                // Unused slots begin after the last token.
                let token = documents.get(slot).map_or(batch * length, |document| document.0);
                let first = (token * elements) as i64;
                bytes[at + 8 * slot..][..8].copy_from_slice(&first.to_ne_bytes());
            }
        }
        bytes
    }
}

/// The tables of all schedules.
#[derive(Debug, Default)]
pub(crate) struct DocumentTables {
    tables: BTreeMap<TableKey, Table>,
}

impl DocumentTables {
    /// Takes memory for the table of a call, unless it is there.
    pub(crate) fn add(
        &mut self,
        key: TableKey,
        context: &Arc<Context>,
        stream: &Stream,
    ) -> Result<(), ExecError> {
        if self.tables.contains_key(&key) {
            return Ok(());
        }
        let (_, bytes) = key.layout();
        let memory = Borrowed::new(context, bytes as u64)?;
        // No document in any slot.
        stream.write(memory.address(), &key.bytes(&[]))?;
        self.tables.insert(key, Table { memory, fits: false });
        Ok(())
    }

    /// The addresses of a table.
    pub(crate) fn addresses(&self, key: &TableKey) -> Vec<(AttentionTensor, u64)> {
        let Some(table) = self.tables.get(key) else { return Vec::new() };
        let (tables, _) = key.layout();
        tables.iter().map(|&(tensor, at)| (tensor, table.memory.address() + at as u64)).collect()
    }

    /// Makes tables of the bytes written to `offset`, if these are first positions of documents.
    pub(crate) fn written(&mut self, offset: u64, bytes: &[u8], stream: &Stream) -> Result<(), ExecError> {
        for (key, table) in self.tables.iter_mut().filter(|(key, _)| key.starts == Place(offset)) {
            let AttentionShape { batch, length, .. } = key.shape;
            let whole = bytes.len() == 4 * batch * length;
            let documents = whole.then(|| documents(bytes, length)).flatten();
            let documents = documents.filter(|documents| documents.len() <= key.slots());
            table.fits = documents.is_some();
            if let Some(documents) = documents {
                stream.write(table.memory.address(), &key.bytes(&documents))?;
            }
        }
        Ok(())
    }

    /// Whether the documents written last have found room in all of these tables.
    pub(crate) fn fit(&self, keys: &[TableKey]) -> bool {
        keys.iter().all(|key| self.tables.get(key).is_some_and(|table| table.fits))
    }

    /// Forgets all tables.
    pub(crate) fn clear(&mut self) {
        self.tables.clear();
    }
}

/// First token and length of each document, the longest first, from the first position of each token's document. `None`
/// if a token neither continues the document of the token before it nor begins one.
fn documents(starts: &[u8], length: usize) -> Option<Vec<(usize, usize)>> {
    let mut documents: Vec<(usize, usize)> = Vec::new();
    let mut first = 0;
    for (token, start) in starts.chunks_exact(4).enumerate() {
        let start = i32::from_ne_bytes([start[0], start[1], start[2], start[3]]);
        let position = token % length.max(1);
        if usize::try_from(start) == Ok(position) {
            first = position;
            documents.push((token, 1));
        } else if usize::try_from(start) == Ok(first) && position > 0 {
            documents.last_mut()?.1 += 1;
        } else {
            return None;
        }
    }
    documents.sort_by_key(|&(_, length)| std::cmp::Reverse(length));
    Some(documents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(starts: &[i32], length: usize) -> Option<Vec<(usize, usize)>> {
        let bytes: Vec<u8> = starts.iter().flat_map(|start| start.to_ne_bytes()).collect();
        documents(&bytes, length)
    }

    fn key(slots: usize) -> TableKey {
        let shape = AttentionShape {
            batch: 2,
            length: 4,
            heads: 6,
            key_heads: 2,
            width: 8,
            causal: true,
            documents: true,
            slots: Some(slots),
            backward: false,
            deterministic: false,
            scale_bits: 0,
        };
        TableKey { starts: Place(0), shape }
    }

    #[test]
    fn documents_come_the_longest_first_and_rows_never_share_one() {
        assert_eq!(of(&[0, 0, 0, 3, 0, 1, 1, 1], 4), Some(vec![(0, 3), (5, 3), (3, 1), (4, 1)]));
        assert_eq!(of(&[0, 0, 0, 0, 0, 0, 0, 0], 4), Some(vec![(0, 4), (4, 4)]));
        assert_eq!(of(&[], 4), Some(Vec::new()));
    }

    #[test]
    fn numbers_that_are_no_first_positions_are_no_documents() {
        for starts in [[0, 0, 1, 1], [0, 2, 2, 2], [-1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]] {
            assert_eq!(of(&starts, 4), None, "{starts:?}");
        }
    }

    #[test]
    fn tables_hold_lengths_and_first_elements_and_unused_slots_lie_behind_the_last_token() {
        let key = key(3);
        let bytes = key.bytes(&[(4, 4), (0, 3)]);
        let (tables, total) = key.layout();
        assert_eq!(bytes.len(), total);
        let lengths: Vec<i32> =
            bytes[..12].chunks(4).map(|length| i32::from_ne_bytes(length.try_into().unwrap())).collect();
        assert_eq!(lengths, [4, 3, 0]);
        let offsets = |table: usize| -> Vec<i64> {
            let at = tables[table].1;
            bytes[at..at + 32].chunks(8).map(|first| i64::from_ne_bytes(first.try_into().unwrap())).collect()
        };
        assert_eq!(offsets(2), [4 * 48, 0, 8 * 48, 8 * 48]);
        assert_eq!(offsets(3), [4 * 16, 0, 8 * 16, 8 * 16]);
        assert_eq!(offsets(4), [4 * 6, 0, 8 * 6, 8 * 6]);
    }
}
