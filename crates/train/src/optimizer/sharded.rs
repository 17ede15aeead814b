//! The optimizer of a rank that keeps only its shard of the moments: stages 1 to 3 of `ZeRO`.
//!
//! ```text
//! shard   ← reduce_scatter(grad.w)         this rank's range of the sum over ranks; in stage 2 part of the backward pass
//! squares ← sum_squares(shard)             all_reduce over ranks, then clip_scale → (norm, scale)
//! own.w   ← own_shard(w)                   this rank's range of the weight
//! own.w, m.w, v.w ← adamw(shard, …)        moments exist for the range alone
//! w       ← all_gather(own.w)              every rank has all weights again
//! ```
//!
//! A shard is a range of elements, so only rules that work element by element can be divided. Rates and the form of
//! moments follow from the whole parameter. A shard is a multiple of the block of 8-bit moments, so it has the blocks that
//! its range has in the whole parameter. A rank therefore computes the bits that a single rank computes for this range; only
//! the norm is summed in another order. Random rounding of weights in bf16 alone belongs to elements of the whole, too: the input
//! `rounding` tells which shard the rank has.
//!
//! `own.w` is state that lives inside the update, so that the rule writes it in place. Where [`divide`](plimsoll_graph::divide)
//! has left the rank nothing but its shard of `w`, the rule writes that, and nothing is gathered before the next layer reads it.

use plimsoll_graph::op::{AdamW, Collective, Lion, Sgd};
use plimsoll_graph::{DType, Graph, GraphError, Op, Phase, StateId, StateKind, Type, Value, infer};

use super::matrices::hidden_matrices;
use super::scattered::shard_of;
use super::steering::append_steering;
use super::{Optimizer, StateStorage, WeightStorage, moment, ranges, rule_inputs, trained};

/// Prefix of a rank's shard of a parameter while it is updated.
const OWN: &str = "own";

/// As [`append`](super::append), for one of `ranks` ranks that divide moments among them. Gradients are summed over ranks
/// on the way, unless [`scatter_in_backward`](super::scatter_in_backward) has done so.
///
/// # Errors
///
/// When a rate is out of range, the graph has no gradients, or it does not verify afterwards.
pub(crate) fn append_sharded(
    mut graph: Graph,
    optimizer: &Optimizer,
    storage: StateStorage,
    ranks: usize,
) -> Result<Graph, GraphError> {
    let refused = |why| GraphError { what: "optimizer".into(), block: String::new(), why, at: None };
    optimizer.check().map_err(refused)?;
    graph.set_phase(Phase::Update);
    // Gradients are declared in the order in which they become whole, and are exchanged in it.
    let mut parameters = trained(&graph);
    parameters.sort_by_key(|&(_, gradient)| gradient);
    let hidden = hidden_matrices(&graph);
    let lr = graph.input("lr", [], DType::F32);
    let shard = |&(parameter, gradient): &(StateId, StateId)| {
        if let Some(shard) = shard_of(&graph, parameter) {
            return graph.newest(shard);
        }
        graph.apply(Op::Collective(Collective::ReduceScatter { ranks }), &[graph.newest(gradient)])
    };
    let shards: Vec<Value> = parameters.iter().map(shard).collect();
    let scale = clip_over_ranks(&mut graph, &shards, optimizer.max_grad_norm, ranks);
    let mut division = Division { graph, optimizer, storage, ranks };
    for (&(parameter, _), &shard) in parameters.iter().zip(&shards) {
        division.update((parameter, hidden[parameter.index()]), [shard, lr, scale]);
    }
    append_steering(&mut division.graph, scale)?;
    division.graph.finish()
}

/// The clipping factor that follows from the norm of all shards of all ranks. The graph gains the output `grad_norm`.
fn clip_over_ranks(graph: &mut Graph, shards: &[Value], max_norm: Option<f32>, ranks: usize) -> Value {
    let squares: Vec<Value> = (shards.iter())
        .map(|&shard| {
            let sum = graph.apply(Op::SumSquares, &[shard]);
            graph.reshape(sum, [1])
        })
        .collect();
    // All sums of squares share one exchange, since each alone would be an exchange of four bytes.
    let own = graph.concat(&squares, 0); // (P)
    let all = graph.apply(Op::Collective(Collective::AllReduce { ranks }), &[own]);
    let total = graph.sum(all, &[0]);
    let clip = graph.apply_all(Op::ClipScale { max_norm }, &[total]);
    let [norm, scale] = [graph.node(clip).outputs[0], graph.node(clip).outputs[1]];
    graph.output("grad_norm", norm);
    scale
}

/// A graph whose updates are divided over ranks.
struct Division<'a> {
    graph: Graph,
    optimizer: &'a Optimizer,
    storage: StateStorage,
    ranks: usize,
}

impl Division<'_> {
    /// The update of a rank's shard of one parameter, and the exchange that makes the parameter whole again.
    fn update(&mut self, (parameter, hidden): (StateId, bool), [shard, lr, scale]: [Value; 3]) {
        let (ranks, graph) = (self.ranks, &mut self.graph);
        let (name, whole) = (graph.state(parameter).name.clone(), graph.state(parameter).whole_type());
        let op = of_shard(self.optimizer.op(&name, whole.shape, hidden, self.storage));
        let divided = graph.state(parameter).whole.is_some();
        let own = if divided { parameter } else { own_shard(graph, parameter, &name, ranks) };
        let mut inputs = rule_inputs(graph, &op, [shard, lr, scale]);
        if self.storage.weights == WeightStorage::Bf16 {
            inputs.push(graph.input("rounding", [4], DType::I32));
        }
        let wholes = self.whole_types(&op, &inputs, whole);
        let graph = &mut self.graph;
        let update = graph.apply_all(op.clone(), &inputs);
        graph.write_state(update, 0, own);
        for ((output, range), whole_type) in (1..).zip(ranges(&op, whole.shape)).zip(wholes) {
            let state = moment(graph, update, output, &format!("{range}.{name}"));
            graph.make_shard(state, whole_type);
            graph.write_state(update, output, state);
        }
        if !divided {
            let gather = Op::Collective(Collective::AllGather { ranks, whole: whole.shape });
            let node = graph.apply_all(gather, &[graph.newest(own)]);
            graph.write_state(node, 0, parameter);
        }
    }

    /// Types of the ranges that one rank alone would keep beside the parameter.
    fn whole_types(&self, op: &Op, inputs: &[Value], whole: Type) -> Vec<Type> {
        let mut types: Vec<Type> = inputs.iter().map(|&value| self.graph.ty(value)).collect();
        types[0] = Type { shape: whole.shape, ..types[0] };
        // A rule that does not take these types is refused where it is applied to the shard.
        infer(op, &types).unwrap_or_default().into_iter().skip(1).collect()
    }
}

/// The rule for a shard, whose numbers are rounded at random as they would be in the whole parameter.
fn of_shard(op: Op) -> Op {
    match op {
        Op::AdamW(rule) => Op::AdamW(AdamW { stored: rule.stored.of_shard(), ..rule }),
        Op::Sgd(rule) => Op::Sgd(Sgd { stored: rule.stored.of_shard(), ..rule }),
        Op::Lion(rule) => Op::Lion(Lion { stored: rule.stored.of_shard(), ..rule }),
        other => other,
    }
}

/// State for a rank's shard of a parameter, filled with its numbers.
fn own_shard(graph: &mut Graph, parameter: StateId, name: &str, ranks: usize) -> StateId {
    let taken = graph.apply_all(Op::Collective(Collective::OwnShard { ranks }), &[graph.newest(parameter)]);
    let ty = graph.ty(graph.node(taken).outputs[0]);
    let first = graph.state_range(&format!("{OWN}.{name}"), ty, StateKind::Transient);
    let own = graph.value(first).state.map_or(parameter, |(state, _)| state);
    graph.write_state(taken, 0, own);
    own
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::{FloatStorage, OptimizerKind, WeightStorage};
    use plimsoll_graph::op::shard_elements;
    use plimsoll_graph::{Init, differentiate, store};

    fn classifier(kind: OptimizerKind, storage: StateStorage, ranks: usize) -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", [4, 64], DType::F32);
        let targets = g.input("targets", [4], DType::I32);
        let scale = g.loss_scale();
        let norm = g.param("norm", [64], Init::Fill(1.0));
        let x = g.rms_norm(x, norm, 1e-6);
        let w = g.param("w", [65, 64], Init::Normal(0.1));
        let loss = g.head_loss(x, w, None, targets, scale, -100);
        g.output("loss", loss);
        let graph = store(differentiate(&g, loss).unwrap(), storage.of_graph()).unwrap();
        append_sharded(graph, &Optimizer::of(kind), storage, ranks).unwrap()
    }

    fn moments(graph: &Graph) -> Vec<String> {
        let moments = graph.states().iter().filter(|state| state.kind == StateKind::Moment);
        moments.map(|state| format!("{} {} of {}", state.name, state.ty, state.whole.unwrap())).collect()
    }

    #[test]
    fn a_rank_keeps_a_shard_of_every_moment() {
        // 65·64 = 4160 elements are 1040 for each of four ranks, which 5 blocks of 256 hold; 64 elements are 16 for each.
        assert_eq!(
            moments(&classifier(OptimizerKind::AdamW8bit, StateStorage::default(), 4)),
            [
                "m.w u8[1280] of u8[65,64]",
                "m_scale.w f32[5] of f32[17]",
                "v.w u8[1280] of u8[65,64]",
                "v_scale.w f32[5] of f32[17]",
                "m.norm f32[16] of f32[64]",
                "v.norm f32[16] of f32[64]",
            ]
        );
        let halves = StateStorage {
            weights: WeightStorage::Bf16Master,
            gradients: FloatStorage::Bf16,
            moments: FloatStorage::Bf16,
        };
        assert_eq!(
            moments(&classifier(OptimizerKind::Lion, halves, 2)),
            [
                "low.w i16[2304] of i16[65,64]",
                "m.w bf16[2304] of bf16[65,64]",
                "low.norm i16[32] of i16[64]",
                "m.norm bf16[32] of bf16[64]",
            ]
        );
    }

    #[test]
    fn rates_follow_from_the_whole_parameter() {
        let graph = classifier(OptimizerKind::AdamW, StateStorage::default(), 4);
        let decays: Vec<f32> = (graph.nodes().iter())
            .filter_map(|node| match node.op {
                Op::AdamW(adamw) => Some(adamw.weight_decay),
                _ => None,
            })
            .collect();
        assert_eq!(decays, [0.1, 0.0], "a shard of a matrix decays although it is a vector");
    }

    #[test]
    fn bytes_on_the_wire_are_those_of_an_all_reduce_and_the_squares() {
        for ranks in [2, 4, 8] {
            let graph = classifier(OptimizerKind::AdamW, StateStorage::default(), ranks);
            let sent = |node: &plimsoll_graph::Node| {
                Some(node.op.collective()?.wire_bytes(graph.ty(node.inputs[0])))
            };
            let sent: u64 = graph.nodes().iter().filter_map(sent).sum();
            let shards = shard_elements(4160, ranks) + shard_elements(64, ranks);
            let squares = 2 * 2usize.div_ceil(ranks);
            assert_eq!(sent, (4 * (ranks - 1) * (2 * shards + squares)) as u64);
        }
    }
}
