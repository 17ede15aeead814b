//! The optimizer as graph nodes, so that the planner counts and places its state like any other state.
//!
//! ```text
//! sum_squares(gradient) → clip_scale → (norm, scale)
//! adamw(gradient, lr, step, scale)        one per trainable parameter, in place; or another rule
//! ```
//!
//! A gradient that is not finite makes the scale NaN, and then no update changes anything: the trainer
//! reads the norm, sees why, and stops with the weights as they were.
//!
//! State of a parameter `w`, each only if needed: `low.w` (completes a bf16 weight to its master copy), `m.w` and `v.w`
//! (moments), `m_scale.w` and `v_scale.w` (one number per block of 8-bit moments), `v_row.w` and `v_col.w` (Adafactor's means
//! of rows and columns), `norm.w` (APOLLO's norm of the last step).

mod in_backward;
mod kind;
mod low_rank;
mod matrices;
mod scattered;
mod sharded;
mod steering;
mod storage;
mod zeroth_order;

pub(crate) use in_backward::SQUARES;
pub use in_backward::{Update, append_in_backward, append_two_pass};
pub use kind::OptimizerKind;
pub use low_rank::LowRank;
use matrices::hidden_matrices;
use plimsoll_graph::op::{Adafactor, AdamW, Lion, Moments, Muon, SMALL_TENSOR, Sgd, Stored, Weights};
use plimsoll_graph::{
    DType, Graph, GraphError, NodeId, Op, Phase, Shape, StateId, StateKind, Value, gradient_name,
};
pub(crate) use scattered::scatter_in_backward;
pub(crate) use sharded::append_sharded;
use steering::append_steering;
pub use storage::{FloatStorage, StateStorage, WeightStorage};
pub use zeroth_order::Fitness;
pub(crate) use zeroth_order::{PROBE_LOSSES, PROBES, append_probes};

/// Parameters of fewer elements keep whole moments where others keep 8-bit ones: norms and biases are few
/// and sensitive.
pub const FEWEST_FOR_CODES: usize = SMALL_TENSOR;

/// More directions than any run probes in one step.
const MOST_DIRECTIONS: usize = 4096;

/// Prefix of the range that completes a parameter's bf16 to the master copy.
const LOW: &str = "low";

/// The state that completes the bf16 of a parameter to its master copy, if it has one.
pub(crate) fn low_name(parameter: &str) -> String {
    format!("{LOW}.{parameter}")
}

/// The rule by which every step updates parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// The rule.
    pub kind: OptimizerKind,
    /// `AdamW`: decay rate of the first moment. `Lion`: share of the moment in a step.
    pub beta1: f32,
    /// `AdamW`: decay rate of the second moment. `Lion`: of its only one.
    pub beta2: f32,
    /// `AdamW`: added to the root of the second moment.
    pub epsilon: f32,
    /// `Sgd`: decay rate of the running sum of gradients; there is none at 0. `Muon`: of their running mean.
    pub momentum: f32,
    /// `Sgd` and `Muon`: whether the step looks ahead along that sum or mean.
    pub nesterov: bool,
    /// Weight decay: a part of the gradient for `Sgd`, decoupled for all others. It applies only to parameters of two or
    /// more axes; biases and norm weights are exempt. For all models here this equals the rule of Hugging Face's
    /// trainer, which goes by names.
    pub weight_decay: f32,
    /// The largest global gradient norm; larger ones are scaled down to it. Without gradients there is none.
    pub max_grad_norm: Option<f32>,
    /// `Mezo` and `Es`: random directions of a step, each probed on both sides.
    pub directions: usize,
    /// `Mezo` and `Es`: distance of a probe from the weights, for each element on average.
    pub probe_size: f32,
    /// `Es`: the score that ranks the members.
    pub fitness: Fitness,
    /// `Apollo`: how gradients are projected.
    pub low_rank: LowRank,
}

impl Default for Optimizer {
    fn default() -> Optimizer {
        Optimizer {
            kind: OptimizerKind::default(),
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.1,
            max_grad_norm: Some(1.0),
            directions: 1,
            probe_size: 1e-3,
            fitness: Fitness::default(),
            low_rank: LowRank::default(),
        }
    }
}

impl Optimizer {
    /// The rule with its usual rates.
    pub fn of(kind: OptimizerKind) -> Optimizer {
        let momentum = if kind == OptimizerKind::Muon { 0.95 } else { 0.0 };
        let directions = if kind == OptimizerKind::Es { 8 } else { 1 };
        Optimizer {
            kind,
            momentum,
            nesterov: kind == OptimizerKind::Muon,
            directions,
            ..Optimizer::default()
        }
    }

    /// Refuses rates with which no step means anything.
    ///
    /// # Errors
    ///
    /// A sentence that begins with the name of the rate.
    pub fn check(&self) -> Result<(), String> {
        let rates = [("adam_beta1", self.beta1), ("adam_beta2", self.beta2), ("momentum", self.momentum)];
        if let Some((name, rate)) = rates.iter().find(|(_, rate)| !(0.0..1.0).contains(rate)) {
            return Err(format!("{name} must be at least 0 and below 1, got {rate}"));
        }
        // Zero over zero would be the update of a weight that never had a gradient.
        if !(self.epsilon > 0.0 && self.epsilon.is_finite()) {
            return Err(format!("adam_epsilon must be a number above 0, got {}", self.epsilon));
        }
        if self.nesterov && self.momentum <= 0.0 {
            return Err("nesterov needs a momentum greater than 0".into());
        }
        if !(self.probe_size > 0.0 && self.probe_size.is_finite()) {
            return Err(format!("zo_eps must be a number above 0, got {}", self.probe_size));
        }
        if !(1..=MOST_DIRECTIONS).contains(&self.directions) {
            return Err(format!("zo_directions must be 1 to {MOST_DIRECTIONS}, got {}", self.directions));
        }
        self.low_rank.check()
    }

    /// The update of a parameter; `hidden` matrices are those inside a model.
    fn op(&self, name: &str, shape: Shape, hidden: bool, storage: StateStorage) -> Op {
        let Optimizer { beta1, beta2, epsilon, momentum, nesterov, .. } = *self;
        let weight_decay = if shape.len() >= 2 { self.weight_decay } else { 0.0 };
        let in_codes = self.kind.keeps_codes() && shape.elements() >= FEWEST_FOR_CODES;
        let moments = if in_codes { Moments::Blocks } else { storage.moments() };
        let stored = Stored { weights: storage.weights_of(name), moments };
        let adamw = Op::AdamW(AdamW { beta1, beta2, epsilon, weight_decay, stored });
        match self.kind {
            OptimizerKind::Apollo if hidden => self.projected(name, shape, stored).unwrap_or(adamw),
            OptimizerKind::Muon if hidden => Op::Muon(Muon { momentum, nesterov, weight_decay, stored }),
            OptimizerKind::Mezo | OptimizerKind::Es => self.probe_step(name, shape, stored),
            OptimizerKind::AdamW | OptimizerKind::AdamW8bit | OptimizerKind::Muon | OptimizerKind::Apollo => {
                adamw
            }
            OptimizerKind::Sgd => Op::Sgd(Sgd { momentum, nesterov, weight_decay, stored }),
            OptimizerKind::Lion | OptimizerKind::Lion8bit => {
                Op::Lion(Lion { beta1, beta2, weight_decay, stored })
            }
            OptimizerKind::Adafactor => Op::Adafactor(Adafactor { weight_decay, stored, ..ADAFACTOR }),
        }
    }
}

/// The constants with which Hugging Face's trainer calls Adafactor.
const ADAFACTOR: Adafactor = Adafactor {
    decay_rate: -0.8,
    epsilon: 1e-30,
    clip_threshold: 1.0,
    weight_decay: 0.0,
    stored: Stored { weights: Weights::F32, moments: Moments::F32 },
};

/// Appends the update of every parameter that has a gradient to a graph whose state is kept as `storage` says. The
/// graph gains the inputs `lr`, `step` (`AdamW`) and `rounding` (where that is random; not `rng`, which belongs to the forward pass) and the output `grad_norm`.
///
/// # Errors
///
/// When a rate is out of range, the graph has no gradients, or it does not verify afterwards.
pub fn append(mut graph: Graph, optimizer: &Optimizer, storage: StateStorage) -> Result<Graph, GraphError> {
    let refused = |why| GraphError { what: "optimizer".into(), block: String::new(), why, at: None };
    optimizer.check().map_err(refused)?;
    graph.set_phase(Phase::Update);
    let parameters: Vec<(StateId, StateId)> = trained(&graph);
    let hidden = hidden_matrices(&graph);
    let lr = graph.input("lr", [], DType::F32);
    // One sum per parameter, so that updates inside the backward pass, which see one gradient at a time, arrive at the
    // same norm bit for bit.
    let squares: Vec<Value> = (parameters.iter())
        .map(|&(_, gradient)| graph.apply(Op::SumSquares, &[graph.newest(gradient)]))
        .collect();
    let clip = graph.apply_all(Op::ClipScale { max_norm: optimizer.max_grad_norm }, &squares);
    let (norm, scale) = (graph.node(clip).outputs[0], graph.node(clip).outputs[1]);
    graph.output("grad_norm", norm);
    for (parameter, gradient) in parameters {
        let gradient = graph.newest(gradient);
        let parameter = (parameter, hidden[parameter.index()]);
        update(&mut graph, optimizer, storage, parameter, [gradient, lr, scale]);
    }
    append_steering(&mut graph, scale)?;
    graph.finish()
}

/// The update of one parameter, which may be a matrix inside the model, from its gradient, `lr` and the clipping factor.
pub(crate) fn update(
    graph: &mut Graph,
    optimizer: &Optimizer,
    storage: StateStorage,
    (parameter, hidden): (StateId, bool),
    [gradient, lr, scale]: [Value; 3],
) {
    let (name, ty) = (graph.state(parameter).name.clone(), graph.state(parameter).ty);
    let op = optimizer.op(&name, ty.shape, hidden, storage);
    let inputs = rule_inputs(graph, &op, [gradient, lr, scale]);
    write(graph, storage, parameter, op, inputs);
}

/// The inputs of a rule, without those of random rounding.
fn rule_inputs(graph: &mut Graph, op: &Op, [gradient, lr, scale]: [Value; 3]) -> Vec<Value> {
    match op {
        Op::AdamW(_) | Op::Adafactor(_) | Op::Apollo(_) => {
            vec![gradient, lr, graph.input("step", [], DType::F32), scale]
        }
        _ => vec![gradient, lr, scale],
    }
}

/// Appends an update that writes a parameter and its further ranges.
fn write(graph: &mut Graph, storage: StateStorage, parameter: StateId, op: Op, mut inputs: Vec<Value>) {
    let (name, ty) = (graph.state(parameter).name.clone(), graph.state(parameter).ty);
    if storage.weights == WeightStorage::Bf16 || matches!(op, Op::Apollo(_)) {
        inputs.push(graph.input("rounding", [4], DType::I32));
    }
    let ranges = ranges(&op, ty.shape);
    let update = graph.apply_all(op, &inputs);
    graph.write_state(update, 0, parameter);
    for (output, range) in (1..).zip(ranges) {
        let state = moment(graph, update, output, &format!("{range}.{name}"));
        graph.write_state(update, output, state);
    }
}

/// Prefixes of a parameter's further ranges, in the order of [`Stored::types`], [`Adafactor::types`] and of Apollo's.
fn ranges(op: &Op, shape: Shape) -> Vec<&'static str> {
    let (stored, moments) = match op {
        Op::AdamW(adamw) => (adamw.stored, 2),
        Op::Sgd(sgd) => (sgd.stored, sgd.moments()),
        Op::Lion(lion) => (lion.stored, 1),
        Op::Muon(muon) => (muon.stored, 1),
        Op::Apollo(rates) => (rates.stored, 2),
        Op::Adafactor(rates) => (rates.stored, 0),
        Op::ProbeStep(step) => (step.stored, 0),
        _ => return Vec::new(),
    };
    let low = (stored.weights == Weights::Split).then_some(LOW);
    let of_moment: [&[&str]; 2] = match stored.moments {
        Moments::Blocks => [&["m", "m_scale"], &["v", "v_scale"]],
        Moments::F32 | Moments::Bf16 => [&["m"], &["v"]],
    };
    let factors: &[&str] = match op {
        Op::Adafactor(_) if shape.len() >= 2 => &["v_row", "v_col"],
        Op::Adafactor(_) => &["v"],
        Op::Apollo(_) => &["norm"],
        _ => &[],
    };
    let moments = of_moment[..moments].iter().copied().flatten();
    low.into_iter().chain(moments.chain(factors).copied()).collect()
}

/// A new range for output `output` of an update.
fn moment(graph: &mut Graph, update: NodeId, output: usize, name: &str) -> StateId {
    let ty = graph.ty(graph.node(update).outputs[output]);
    let first = graph.state_range(name, ty, StateKind::Moment);
    graph.value(first).state.map_or(StateId(0), |(state, _)| state)
}

/// Every parameter that has a gradient, each with its gradient.
pub(crate) fn trained(graph: &Graph) -> Vec<(StateId, StateId)> {
    (0..graph.states().len() as u32)
        .map(StateId)
        .filter_map(|parameter| {
            Some((parameter, graph.state_named(&gradient_name(&graph.state(parameter).name))?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::{Init, differentiate, store};

    fn classifier(optimizer: &Optimizer, storage: StateStorage) -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        let x = g.input("x", [4, 64], DType::F32);
        let targets = g.input("targets", [4], DType::I32);
        let scale = g.loss_scale();
        let norm = g.param("norm", [64], Init::Fill(1.0));
        let x = g.rms_norm(x, norm, 1e-6);
        let w = g.param("w", [65, 64], Init::Normal(0.1));
        let loss = g.head_loss(x, w, None, targets, scale, -100);
        g.output("loss", loss);
        append(store(differentiate(&g, loss)?, storage.of_graph())?, optimizer, storage)
    }

    /// Names and types of all optimizer state.
    fn moments(optimizer: &Optimizer, storage: StateStorage) -> Vec<String> {
        let graph = classifier(optimizer, storage).unwrap();
        let moments = graph.states().iter().filter(|state| state.kind == StateKind::Moment);
        moments.map(|state| format!("{} {}", state.name, state.ty)).collect()
    }

    #[test]
    fn every_optimizer_keeps_the_state_it_needs_and_no_more() {
        let of = |kind| Optimizer { kind, ..Optimizer::default() };
        let plain = StateStorage::default();
        assert_eq!(
            moments(&of(OptimizerKind::AdamW), plain),
            ["m.norm f32[64]", "v.norm f32[64]", "m.w f32[65,64]", "v.w f32[65,64]"]
        );
        // 65·64 = 4160 elements are 17 blocks; the norm is too small for codes.
        assert_eq!(
            moments(&of(OptimizerKind::AdamW8bit), plain),
            [
                "m.norm f32[64]",
                "v.norm f32[64]",
                "m.w u8[65,64]",
                "m_scale.w f32[17]",
                "v.w u8[65,64]",
                "v_scale.w f32[17]"
            ]
        );
        assert_eq!(moments(&of(OptimizerKind::Sgd), plain), [""; 0]);
        assert_eq!(moments(&of(OptimizerKind::Lion), plain), ["m.norm f32[64]", "m.w f32[65,64]"]);
        assert_eq!(
            moments(&of(OptimizerKind::Lion8bit), plain),
            ["m.norm f32[64]", "m.w u8[65,64]", "m_scale.w f32[17]"]
        );
        assert_eq!(
            moments(&of(OptimizerKind::Adafactor), plain),
            ["v.norm f32[64]", "v_row.w f32[65]", "v_col.w f32[64]"]
        );
        let heavy = Optimizer { momentum: 0.9, ..of(OptimizerKind::Sgd) };
        let halves = StateStorage {
            weights: WeightStorage::Bf16Master,
            gradients: FloatStorage::Bf16,
            moments: FloatStorage::Bf16,
        };
        assert_eq!(
            moments(&heavy, halves),
            ["low.norm i16[64]", "m.norm bf16[64]", "low.w i16[65,64]", "m.w bf16[65,64]"]
        );
    }

    #[test]
    fn only_matrices_decay() {
        let graph = classifier(&Optimizer::default(), StateStorage::default()).unwrap();
        let decays: Vec<f32> = (graph.nodes().iter())
            .filter_map(|node| match node.op {
                Op::AdamW(adamw) => Some(adamw.weight_decay),
                _ => None,
            })
            .collect();
        assert_eq!(decays, [0.0, 0.1]);
    }

    #[test]
    fn names_are_those_of_hugging_face_and_rates_out_of_range_are_refused() {
        assert_eq!("adamw_bnb_8bit".parse(), Ok(OptimizerKind::AdamW8bit));
        assert_eq!("paged_lion_8bit".parse(), Ok(OptimizerKind::Lion8bit));
        let error = "rmsprop".parse::<OptimizerKind>().unwrap_err();
        assert_eq!(
            error,
            "there is no optimizer `rmsprop`; known are adamw_torch, adamw_torch_fused, adamw_8bit, adamw_bnb_8bit, sgd, \
             lion_32bit, lion_8bit, adafactor, muon, apollo_adamw, apollo_adamw_layerwise, mezo, es, paged_adamw_32bit, paged_adamw_8bit, paged_lion_32bit, \
             paged_lion_8bit"
        );
        let error = "galore_adamw_8bit".parse::<OptimizerKind>().unwrap_err();
        let told = "there is no optimizer `galore_adamw_8bit`; apollo_adamw keeps moments of projected gradients too; known are";
        assert!(error.starts_with(told), "{error}");
        let wrong = Optimizer { beta2: 1.0, ..Optimizer::default() };
        let error = classifier(&wrong, StateStorage::default()).unwrap_err();
        assert_eq!(error.to_string(), "optimizer: adam_beta2 must be at least 0 and below 1, got 1");
        assert!("fp8".parse::<WeightStorage>().unwrap_err().contains("bf16-master"));
        assert!("i8".parse::<FloatStorage>().unwrap_err().contains("f32 and bf16"));
    }
}
