//! Mixtures of experts as a layer's feed-forward network: a router sends every token to a few of many small networks, and
//! their results are added with the router's weights (Shazeer et al. 2017; Fedus et al. 2021).
//!
//! ```text
//! y = Σ wₑ · downₑ(silu(gateₑ·x) · upₑ·x)  over the k experts e with the largest router score   [+ shared expert]
//! ```
//!
//! Legend: `B` sequences, `T` positions, `C` width, `E` experts of hidden width `F`, `k` of them for each token, `R`
//! rows of copies. The weights of all experts are one group of state for each of gate, up and down: files hold a tensor
//! for each expert, under the names that transformers writes.
//!
//! Normalised weights are the softmax of the chosen scores, which equals the softmax of all scores divided by the sum
//! of the chosen ones. Absent: biases of experts, and experts whose form differs from layer to layer.

use plimsoll_graph::op::{Balance, Sorting};
use plimsoll_graph::{Graph, GraphError, Init, Op, Shape, SortedCopies, Value};

use crate::language::{self, IGNORED};

/// Standard deviation of a weight before the first step.
const SPREAD: f32 = 0.02;

/// The rows of an expert begin at multiples of this. Products of the CPU and of a GPU begin at any row, so there is no
/// padding.
const TILE: usize = 1;

/// Form of the experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// Number of experts in a layer.
    pub experts: usize,
    /// Experts that a token goes to.
    pub chosen: usize,
    /// Hidden width of one expert.
    pub ffn: usize,
    /// Whether the weights of the chosen experts add up to one; else they are probabilities among all.
    pub normalised: bool,
    /// Hidden width of an expert that serves every token, as in Qwen2-MoE; its result is gated.
    pub shared: Option<usize>,
    /// Every n-th layer has experts, where n is this number: 1 means every layer.
    pub sparse_step: usize,
    /// Layers without experts, counted from zero.
    pub dense_layers: Vec<usize>,
    /// Names of experts in files.
    pub names: ExpertNames,
    /// Most tokens of each sequence that an expert takes, as a multiple of its even share; unlimited if absent. Further
    /// tokens skip the expert and continue through the residual stream (Fedus et al. 2021).
    pub capacity: Option<f32>,
    /// In training, the vectors that router and experts read are multiplied element by element by numbers drawn evenly
    /// from `1 − noise` to `1 + noise`, as in transformers' Mixtral; at 0 they are not.
    pub noise: f32,
    /// Losses of routers.
    pub losses: RouterLosses,
}

/// How transformers names experts in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertNames {
    /// `block_sparse_moe.experts.0.w1.weight`.
    Mixtral,
    /// `mlp.experts.0.gate_proj.weight`.
    Qwen,
}

/// Losses of routers beside that of the head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterLosses {
    /// The tokens that the balance of experts is counted over.
    pub group: BalanceGroup,
    /// Weight of the balance; at 0 there is none.
    pub balance: f32,
    /// Weight of the mean square of the logarithm of a router's divisor; at 0 there is none.
    pub z: f32,
    /// How far each step moves the biases that steer the choice of experts towards an even load. They take the place
    /// of a loss; at 0 there are none.
    pub steering: f32,
}

impl RouterLosses {
    /// A balance of this weight over sequences.
    pub fn balanced(weight: f32) -> RouterLosses {
        RouterLosses { group: BalanceGroup::Sequence, balance: weight, z: 0.0, steering: 0.0 }
    }
}

/// The tokens that a balance of experts is counted over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceGroup {
    /// One sequence and one layer, so that the micro-batch does not matter. Tokens without a loss are not counted.
    Sequence,
    /// All tokens and layers of a micro-batch, padding left out, as transformers counts with an `attention_mask`: the loss
    /// depends on the micro-batch.
    MicroBatch,
}

impl ExpertNames {
    /// The block that router and experts lie in, and the names of an expert's gate, up and down.
    fn parts(self) -> (&'static str, [&'static str; 3]) {
        match self {
            ExpertNames::Mixtral => ("block_sparse_moe", ["w1", "w3", "w2"]),
            ExpertNames::Qwen => ("mlp", ["gate_proj", "up_proj", "down_proj"]),
        }
    }
}

/// Targets and padding marks of the tokens that routers send, in training and evaluation.
#[derive(Clone, Copy)]
pub(crate) struct Tokens {
    /// The words to predict, `(B, T)`.
    targets: Value,
    /// 1 for a token and 0 for padding, `(B, T)`.
    present: Value,
}

impl Tokens {
    pub(crate) fn read(g: &mut Graph, batch: usize, seq: usize) -> Tokens {
        Tokens { targets: language::targets(g, batch, seq), present: language::present(g, batch, seq) }
    }
}

/// The losses of all routers of a model while its layers are built.
pub(crate) struct Routers {
    /// None in generation, where routers have no losses and loads are not counted.
    tokens: Option<Tokens>,
    /// One over the number of layers with experts: a loss is a mean over them.
    share: f32,
    /// Sums of probabilities and counts of each layer, where all are balanced together.
    loads: Vec<[Value; 2]>,
}

impl Routers {
    /// The router losses of a model with `layers` layers.
    pub(crate) fn new(mixture: Option<&Mixture>, layers: usize, tokens: Option<Tokens>) -> Routers {
        let sparse =
            mixture.map_or(0, |mixture| (0..layers).filter(|&layer| mixture.is_sparse(layer)).count());
        Routers { tokens, share: 1.0 / sparse.max(1) as f32, loads: Vec::new() }
    }
}

impl Mixture {
    /// Whether a layer, counted from zero, has experts.
    pub fn is_sparse(&self, layer: usize) -> bool {
        !self.dense_layers.contains(&layer) && (layer + 1).is_multiple_of(self.sparse_step.max(1))
    }

    /// Named tensors of the experts of a model with so many layers: gate, up and down of each.
    pub(crate) fn tensors(&self, layers: usize) -> u64 {
        let sparse = (0..layers).filter(|&layer| self.is_sparse(layer)).count();
        (3 * self.experts as u64).saturating_mul(sparse as u64)
    }

    /// Checks the numbers of the configuration.
    pub(crate) fn check(&self, seq: usize) -> Result<(), GraphError> {
        let Mixture { experts, chosen, ffn, .. } = *self;
        if experts == 0 || ffn == 0 || self.shared == Some(0) || self.sparse_step == 0 {
            let why = format!("{experts} experts of hidden width {ffn} in every {}. layer", self.sparse_step);
            return Err(language::refuse("mixture", why));
        }
        if chosen == 0 || chosen > experts {
            let why = format!("{chosen} of {experts} experts cannot be chosen; choose 1 to {experts}");
            return Err(language::refuse("mixture", why));
        }
        if self.rows(seq) == Some(0) {
            let why = format!(
                "a capacity factor of {} leaves each of {experts} experts less than one of {seq} tokens; give {} or more",
                self.capacity.unwrap_or(0.0),
                self.least_capacity(seq)
            );
            return Err(language::refuse("mixture", why));
        }
        Ok(())
    }

    /// A capacity factor that gives each expert one token of a sequence of `seq`.
    fn least_capacity(&self, seq: usize) -> f32 {
        let mut factor = (self.experts as f64 / (self.chosen * seq) as f64) as f32;
        // [`Mixture::rows`] rounds, so the quotient itself may give no row.
        while factor.is_finite() && self.with_capacity(factor).rows(seq) == Some(0) {
            factor = factor.next_up();
        }
        factor
    }

    fn with_capacity(&self, factor: f32) -> Mixture {
        Mixture { capacity: Some(factor), ..self.clone() }
    }

    /// The same experts in evaluation and generation.
    pub(crate) fn without_noise(&self) -> Mixture {
        Mixture { noise: 0.0, ..self.clone() }
    }

    /// The most tokens that an expert takes of a sequence of `seq`.
    pub fn rows(&self, seq: usize) -> Option<usize> {
        self.capacity.map(|factor| (factor * (seq * self.chosen) as f32 / self.experts as f32) as usize)
    }

    /// The experts' addition to the residual stream, from its norm `(B, T, C)`.
    pub(crate) fn feed_forward(&self, g: &mut Graph, normed: Value, routers: &mut Routers) -> Value {
        let width = g.shape(normed).columns();
        let x = g.jitter(normed, self.noise); // (B, T, C)
        let (block, _) = self.names.parts();
        let router = g.param(&format!("{block}.gate.weight"), [self.experts, width], Init::Normal(SPREAD)); // (E, C)
        let logits = g.linear(x, router, None); // (B, T, E)
        let [p, lse] = g.softmax_lse(logits); // (B, T, E), (B·T)
        let [weights, indices] = self.choose(g, logits, p); // (B, T, k)
        self.add_losses(g, [p, lse, indices], routers);
        self.count_steered(g, [p, indices], routers);
        let capacity = self.rows(g.shape(x)[1]);
        let sorting = Sorting { experts: self.experts, tile: TILE, capacity };
        let copies = g.sort_by_expert(indices, sorting);
        // The load of experts is not reported during generation.
        if let Some(Tokens { present, .. }) = routers.tokens {
            let counts = g.count_copies(indices, copies, present); // (2, E)
            g.tally(&format!("{block}.experts"), counts);
        }
        let y = self.experts(g, x, copies, weights); // (B, T, C)
        match self.shared {
            Some(ffn) => {
                let shared = Mixture::shared_expert(g, normed, ffn); // (B, T, C)
                g.add(y, shared) // (B, T, C)
            }
            None => y,
        }
    }

    /// The balance of all layers together.
    pub(crate) fn balance_all(&self, g: &mut Graph, routers: &Routers) {
        let Some(Tokens { targets, .. }) = routers.tokens.filter(|_| !routers.loads.is_empty()) else {
            return;
        };
        let balance = self.balance();
        let loss = g.balance_loss(&routers.loads, targets, balance); // ()
        g.add_loss("router.balance", loss, self.losses.balance);
    }

    /// The experts of each token and their weights, both `(B, T, k)`.
    fn choose(&self, g: &mut Graph, logits: Value, p: Value) -> [Value; 2] {
        let scores = if self.normalised { logits } else { p }; // (B, T, E)
        let [scores, indices] = if self.losses.steering > 0.0 {
            let bias = g.steered_bias(&self.bias(), self.experts, self.losses.steering); // (E)
            g.steered_top_k(scores, p, bias, self.chosen) // (B, T, k)
        } else {
            g.top_k(scores, self.chosen) // (B, T, k)
        };
        if !self.normalised {
            return [scores, indices];
        }
        let [weights, _] = g.softmax_lse(scores); // (B, T, k)
        [weights, indices]
    }

    /// Name of the biases that steer the choice, as transformers names DeepSeek-V3's.
    fn bias(&self) -> String {
        format!("{}.gate.e_score_correction_bias", self.names.parts().0)
    }

    /// Counts the tokens by which the biases move. Tokens without a loss are not counted.
    fn count_steered(&self, g: &mut Graph, [p, indices]: [Value; 2], routers: &Routers) {
        let Some(Tokens { targets, .. }) = routers.tokens.filter(|_| self.losses.steering > 0.0) else {
            return;
        };
        let [_, counts] = g.expert_load(p, indices, targets, IGNORED); // (B, E)
        g.tally(&self.bias(), counts);
    }

    /// The losses of one router, from its probabilities `(B, T, E)`, divisors `(B·T)` and choice `(B, T, k)`.
    fn add_losses(&self, g: &mut Graph, [p, lse, indices]: [Value; 3], routers: &mut Routers) {
        let Some(Tokens { targets, present }) = routers.tokens else { return }; // (B, T), (B, T)
        let RouterLosses { group, balance, z, .. } = self.losses;
        if balance > 0.0 {
            match group {
                BalanceGroup::Sequence => {
                    let load = g.expert_load(p, indices, targets, IGNORED); // (B, E), (B, E)
                    let loss = g.balance_loss(&[load], targets, self.balance()); // ()
                    g.add_loss("router.balance", loss, balance * routers.share);
                }
                BalanceGroup::MicroBatch => {
                    routers.loads.push(g.expert_load(p, indices, present, language::PADDING)); // (B, E), (B, E)
                }
            }
        }
        if z > 0.0 {
            let loss = g.router_z_loss(lse, targets, IGNORED); // ()
            g.add_loss("router.z", loss, z * routers.share);
        }
    }

    fn balance(&self) -> Balance {
        let whole = self.losses.group == BalanceGroup::MicroBatch;
        Balance { chosen: self.chosen, whole, ignore_index: IGNORED }
    }

    /// `Σ wₑ · downₑ(silu(gateₑ·x) · upₑ·x)`.
    fn experts(&self, g: &mut Graph, x: Value, copies: SortedCopies, weights: Value) -> Value {
        let width = g.shape(x).columns();
        let (_, [gate, up, down]) = self.names.parts();
        let gate = self.group(g, gate, [self.ffn, width]); // (E, F, C)
        let up = self.group(g, up, [self.ffn, width]); // (E, F, C)
        let down = self.group(g, down, [width, self.ffn]); // (E, C, F)
        let rows = g.dispatch(x, copies); // (R, C)
        let gate = g.grouped_linear(rows, gate, copies); // (R, F)
        let up = g.grouped_linear(rows, up, copies); // (R, F)
        let hidden = g.swiglu(gate, up); // (R, F)
        let rows = g.grouped_linear(hidden, down, copies); // (R, C)
        g.combine(rows, copies, Some(weights)) // (B, T, C)
    }

    /// The weights of all experts under one name, each a part of its own: `(E, out, in)`.
    fn group(&self, g: &mut Graph, name: &str, [out, input]: [usize; 2]) -> Value {
        let (block, _) = self.names.parts();
        let part = |expert| (format!("{block}.experts.{expert}.{name}.weight"), Shape::from([out, input]));
        let parts: Vec<(String, Shape)> = (0..self.experts).map(part).collect();
        let shape = [self.experts, out, input];
        g.param_group(&format!("{block}.experts.{name}"), shape, Init::Normal(SPREAD), &parts)
    }

    /// `σ(gate·x) · down(silu(gate·x) · up·x)` of the expert that every token goes to.
    fn shared_expert(g: &mut Graph, x: Value, ffn: usize) -> Value {
        let shape = g.shape(x);
        let width = shape.columns();
        let mut weight = |name: &str, shape: [usize; 2]| {
            g.param(&format!("mlp.{name}.weight"), shape, Init::Normal(SPREAD))
        };
        let gate = weight("shared_expert.gate_proj", [ffn, width]); // (F, C)
        let up = weight("shared_expert.up_proj", [ffn, width]); // (F, C)
        let down = weight("shared_expert.down_proj", [width, ffn]); // (C, F)
        let open = weight("shared_expert_gate", [1, width]); // (1, C)
        let gate = g.linear(x, gate, None); // (B, T, F)
        let up = g.linear(x, up, None); // (B, T, F)
        let hidden = g.swiglu(gate, up); // (B, T, F)
        let y = g.linear(hidden, down, None); // (B, T, C)
        let open = g.linear(x, open, None); // (B, T, 1)
        let open = g.sigmoid(open); // (B, T, 1)
        let open = g.reshape(open, [shape[0], shape[1]]); // (B, T)
        let axes = plimsoll_graph::Axes::of([2]);
        let open = g.apply(Op::Broadcast { shape, axes }, &[open]); // (B, T, C)
        g.mul(y, open) // (B, T, C)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Architecture, Preset};

    #[test]
    fn the_capacity_that_a_refusal_advises_is_accepted_and_little_less_is_not() {
        let Architecture::Llama(model) = Preset::from_name("tiny-moe").unwrap().model else { unreachable!() };
        let preset = model.mixture.unwrap();
        let (mut refused, mut rounded) = (0, 0);
        for (experts, chosen, seq) in
            (1..=130).flat_map(|experts| (1..=experts.min(9)).map(move |chosen| (experts, chosen))).flat_map(
                |(experts, chosen)| (1..=128).chain([1000, 4097]).map(move |seq| (experts, chosen, seq)),
            )
        {
            let mixture = Mixture { experts, chosen, ..preset.clone() };
            let told = mixture.with_capacity(f32::MIN_POSITIVE).check(seq).unwrap_err().to_string();
            let advice = told.strip_suffix(" or more").unwrap().rsplit(' ').next().unwrap();
            // A setting is parsed in the same way: as f64, then rounded to f32.
            let advice = advice.parse::<f64>().unwrap() as f32;
            let what = format!("{experts} experts, {chosen} chosen, {seq} tokens: {told}");
            assert_eq!(mixture.with_capacity(advice).check(seq), Ok(()), "{what}");
            assert!(mixture.with_capacity(advice * (1.0 - 1e-6)).check(seq).is_err(), "{what}");
            refused += 1;
            rounded += usize::from(advice > (experts as f64 / (chosen * seq) as f64) as f32);
        }
        assert!(rounded > 0 && rounded < refused / 10, "{rounded} of {refused} quotients give no row");
    }
}
