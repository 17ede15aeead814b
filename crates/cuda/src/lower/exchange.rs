//! Exchanges between ranks, and the shard of a tensor that a rank takes for itself.
//!
//! An exchange begins behind all steps before it, and the steps behind it go on beside it until one awaits it. The end of a shard
//! that lies past the whole is filled before.

use plimsoll_graph::op::Collective;

use super::launch::StreamStep;
use super::library::RankExchange;
use super::lowering::{Call, Lowering};

pub(super) fn exchange(to: &mut Lowering, call: &Call, collective: Collective) {
    let (input, output) = (&call.inputs[0], &call.outputs[0]);
    let (whole, share) = match collective {
        Collective::AllReduce { .. } => (input.count(), input.count()),
        Collective::ReduceScatter { .. } | Collective::OwnShard { .. } => (input.count(), output.count()),
        Collective::AllGather { .. } => (output.count(), input.count()),
    };
    let (dtype, source, destination) = (input.ty.dtype, input.place, output.place);
    let exchange = RankExchange { collective, dtype, source, destination, whole, share, number: 0 };
    let (first, count) = exchange.part(to.limits.rank);
    let [first, count, all] = [first, count, share].map(|elements| (elements * dtype.bytes()) as u64);
    // First, because nothing may touch the result once the exchange has begun.
    let fills = matches!(collective, Collective::ReduceScatter { .. } | Collective::OwnShard { .. });
    if fills && count < all {
        to.steps.push(StreamStep::Zero { to: destination.after(count), bytes: all - count });
    }
    if let Collective::OwnShard { .. } = collective {
        to.copy(source.after(first), destination, count);
    } else {
        to.steps.push(StreamStep::Exchange(exchange));
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::op::shard_elements;
    use plimsoll_graph::{DType, Op, Shape, Type, infer};

    use super::*;
    use crate::lower::{Limits, NoLibrary, Operand, Place, PlacedOp, check, lower};

    /// Steps of a collective on rank `rank`, checked against its operands.
    fn steps(collective: Collective, input: Type, rank: usize) -> Vec<StreamStep> {
        let op = Op::Collective(collective);
        let output = infer(&op, &[input]).unwrap()[0];
        let operand = |place, ty| Operand { place: Place(place), ty, accumulate: false };
        let (inputs, outputs) = ([operand(0, input)], [operand(1 << 20, output)]);
        let work = PlacedOp { op: &op, inputs: &inputs, outputs: &outputs, scratch: Place(1 << 21) };
        let steps = lower(&work, &NoLibrary, Limits { rank, ..Limits::default() }).unwrap();
        check(&work, 0, &steps, &NoLibrary).unwrap();
        steps
    }

    #[test]
    fn a_shard_is_a_copy_of_the_ranks_own_range_with_zeros_past_the_end() {
        let x = Type::f32([5000]);
        let share = shard_elements(5000, 3) as u64;
        let own = |rank| steps(Collective::OwnShard { ranks: 3 }, x, rank);
        let copy = |rank: u64, elements: u64| StreamStep::Copy {
            from: Place(4 * rank * share),
            to: Place(1 << 20),
            bytes: 4 * elements,
        };
        assert_eq!(own(0), [copy(0, share)]);
        let rest = 5000 - 2 * share;
        let zero = StreamStep::Zero { to: Place((1 << 20) + 4 * rest), bytes: 4 * (share - rest) };
        assert_eq!(own(2), [zero, copy(2, rest)]);
    }

    #[test]
    fn exchanges_are_one_step_and_a_scatter_fills_its_shard_up() {
        let whole = Shape::from([50, 100]);
        let x = Type { shape: whole, dtype: DType::Bf16 };
        assert_eq!(steps(Collective::AllReduce { ranks: 2 }, x, 1).len(), 1);
        assert_eq!(steps(Collective::ReduceScatter { ranks: 2 }, x, 0).len(), 1);
        assert_eq!(steps(Collective::ReduceScatter { ranks: 2 }, x, 1).len(), 2, "120 elements past the end");
        let shard = Type { shape: Shape::from([shard_elements(5000, 2)]), dtype: DType::Bf16 };
        assert_eq!(steps(Collective::AllGather { ranks: 2, whole }, shard, 1).len(), 1);
    }
}
