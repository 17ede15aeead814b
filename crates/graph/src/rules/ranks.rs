//! Collectives between ranks. None has a derivative: gradients are exchanged once they are whole.

use super::{equal, float, no_types, operands};
use crate::op::{Collective, shard_elements};
use crate::{Op, Shape, Type};

pub(super) fn types(op: &Op, inputs: &[Type]) -> Result<Vec<Type>, String> {
    match op {
        Op::Collective(collective) => exchanged(*collective, inputs),
        other => no_types(other),
    }
}

fn exchanged(collective: Collective, inputs: &[Type]) -> Result<Vec<Type>, String> {
    let [x] = operands(inputs)?;
    let shard = |elements, ranks| Shape::from([shard_elements(elements, ranks)]);
    if collective.ranks() == 0 {
        return Err("needs at least one rank".into());
    }
    match collective {
        Collective::AllReduce { .. } => float(x).map(|()| vec![x]),
        Collective::OwnShard { ranks } => Ok(vec![Type { shape: shard(x.shape.elements(), ranks), ..x }]),
        Collective::ReduceScatter { ranks } => {
            float(x).map(|()| vec![Type { shape: shard(x.shape.elements(), ranks), ..x }])
        }
        Collective::AllGather { ranks, whole } => {
            equal(x, Type { shape: shard(whole.elements(), ranks), ..x }, "shard")?;
            Ok(vec![Type { shape: whole, ..x }])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_is_gathered_has_the_size_of_one_that_is_scattered() {
        let x = Type::f32([33, 41]);
        for ranks in [2, 3, 8] {
            let shard = exchanged(Collective::ReduceScatter { ranks }, &[x]).unwrap();
            assert_eq!(exchanged(Collective::OwnShard { ranks }, &[x]).unwrap(), shard);
            let gather = Collective::AllGather { ranks, whole: x.shape };
            assert_eq!(exchanged(gather, &shard), Ok(vec![x]));
            let other = Type::f32([shard[0].shape.elements() + 1]);
            assert!(exchanged(gather, &[other]).unwrap_err().starts_with("shard: "));
        }
        assert!(exchanged(Collective::AllReduce { ranks: 0 }, &[x]).is_err());
        assert!(exchanged(Collective::AllReduce { ranks: 2 }, &[Type::i32([4])]).is_err());
    }
}
