//! Collectives between ranks. None has a derivative: gradients are exchanged once they are whole.

use super::{equal, float, operands};
use crate::op::{Collective, shard_elements};
use crate::{Shape, Type};

pub(super) fn types(collective: Collective, inputs: &[Type]) -> Result<Vec<Type>, String> {
    let [x] = operands(inputs)?;
    let shard = |elements, ranks| Shape::from([shard_elements(elements, ranks)]);
    if collective.ranks() < 2 {
        return Err(format!("needs at least 2 ranks, got {}", collective.ranks()));
    }
    match collective {
        Collective::AllReduce { .. } => float(x).map(|()| vec![x]),
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
            let shard = types(Collective::ReduceScatter { ranks }, &[x]).unwrap();
            let gather = Collective::AllGather { ranks, whole: x.shape };
            assert_eq!(types(gather, &shard), Ok(vec![x]));
            let other = Type::f32([shard[0].shape.elements() + 1]);
            assert!(types(gather, &[other]).unwrap_err().starts_with("shard: "));
        }
        assert!(types(Collective::AllReduce { ranks: 1 }, &[x]).is_err());
        assert!(types(Collective::AllReduce { ranks: 2 }, &[Type::i32([4])]).is_err());
    }
}
