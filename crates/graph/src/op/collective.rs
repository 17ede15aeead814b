//! Collectives: results that all ranks of a run compute together, each from a value of its own.
//!
//! Every rank runs the same graph. A collective is a node of it, so versions of state say what must be summed before it is
//! read, and the type of a shard is known to the plan. Sums are taken element by element in the order of ranks, in f32, and
//! rounded once: a run with a given number of ranks gives the same bits every time.
//!
//! A shard is a rank's range of a tensor's elements, whatever the tensor's shape. The number of the rank is in no type and no
//! attribute: the device knows it, and one graph serves all ranks.

use crate::{Shape, Type};

/// Elements of shards of all but small tensors are multiples of this: a block of moments in eight bits belongs to one rank.
pub const SHARD_UNIT: usize = super::BLOCK;
/// Tensors of fewer elements are divided to the element: norms and biases are many, and their moments are never in blocks.
pub const SMALL_TENSOR: usize = 4096;

/// An exchange between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// `(x) → Σ x` over all ranks, for every rank, in place.
    AllReduce {
        /// Ranks that take part.
        ranks: usize,
    },
    /// `(x) → shard` of the same sum: rank `r` gets the elements from `r·shard` on. Elements past the end are 0.
    ReduceScatter {
        /// Ranks that take part.
        ranks: usize,
    },
    /// `(x) → shard`: the elements of `x`, which every rank has, from `r·shard` on. Elements past the end are 0. Rank `r`
    /// needs no other rank for it, so it is no exchange.
    OwnShard {
        /// Ranks that divide `x` among them.
        ranks: usize,
    },
    /// `(shard) → x`: the shards of all ranks one behind the other, without the elements past the end.
    AllGather {
        /// Ranks that take part.
        ranks: usize,
        /// The shape of `x`.
        whole: Shape,
    },
}

impl Collective {
    /// The name used in text forms and errors.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce { .. } => "all_reduce",
            Collective::ReduceScatter { .. } => "reduce_scatter",
            Collective::OwnShard { .. } => "own_shard",
            Collective::AllGather { .. } => "all_gather",
        }
    }

    /// Ranks that take part.
    pub fn ranks(self) -> usize {
        match self {
            Collective::AllReduce { ranks }
            | Collective::ReduceScatter { ranks }
            | Collective::OwnShard { ranks }
            | Collective::AllGather { ranks, .. } => ranks,
        }
    }

    /// Bytes that each rank sends, where the elements of `input` are exchanged: one share of `ranks` to every other
    /// rank, and for a sum that all ranks get, one share of the result as well.
    pub fn wire_bytes(self, input: Type) -> u64 {
        let others = self.ranks().saturating_sub(1);
        let elements = input.shape.elements();
        let elements = match self {
            Collective::AllReduce { ranks } => 2 * elements.div_ceil(ranks.max(1)),
            Collective::ReduceScatter { ranks } => shard_elements(elements, ranks),
            Collective::OwnShard { .. } => 0,
            Collective::AllGather { .. } => elements,
        };
        (others * elements * input.dtype.bytes()) as u64
    }
}

/// Elements of a rank's shard of a range of `elements` elements.
pub fn shard_elements(elements: usize, ranks: usize) -> usize {
    let share = elements.div_ceil(ranks.max(1));
    if elements < SMALL_TENSOR { share } else { share.next_multiple_of(SHARD_UNIT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_on_the_wire_are_those_of_zero() {
        let x = Type::f32([1024, 4]);
        let bytes = x.bytes() as u64;
        for ranks in [2, 4, 8] {
            let share = bytes * (ranks as u64 - 1) / ranks as u64;
            assert_eq!(Collective::AllReduce { ranks }.wire_bytes(x), 2 * share);
            assert_eq!(Collective::ReduceScatter { ranks }.wire_bytes(x), share);
            let shard = Type::f32([shard_elements(4096, ranks)]);
            assert_eq!(Collective::AllGather { ranks, whole: x.shape }.wire_bytes(shard), share);
        }
        assert_eq!(Collective::AllReduce { ranks: 1 }.wire_bytes(x), 0);
    }

    #[test]
    fn shards_are_equal_and_hold_whole_blocks() {
        assert_eq!(shard_elements(4096, 2), 2048);
        assert_eq!(shard_elements(4097, 2), 2304);
        assert_eq!(shard_elements(65, 4), 17, "small tensors are divided to the element");
    }
}
