//! Adapters of stacked experts, as PEFT computes them for a parameter of three axes.
//!
//! ```text
//! y = x·Wₑᵀ      becomes      y = x·Wₑᵀ + (s · x·Aₑᵀ)·Bₑᵀ        for the rows x of each expert e
//! A (E·r, in)  = [A₀; A₁; …]             expert by expert
//! B (out, r·E), Bₑ[o, k] = B[o, k·E + e] the expert is the fastest index
//! ```
//!
//! transformers stacks the experts' gate and up into one parameter, `gate_up_proj`, so they share `A` and the upper and
//! lower half of `B` belong to one of them each. PEFT adds `s·Bₑ·Aₑ` to every expert's weight. Here the rows of each
//! expert go through both factors, so no matrix of the weight's size exists, forward or backward.
//!
//! One module holds both stacked parameters. PEFT wraps it twice, and the inner wrapper, of `gate_up_proj`, has the name
//! `base_layer`. Absent: dropout, which PEFT refuses for parameters.

use std::collections::BTreeMap;

use plimsoll_graph::{Graph, GraphError, Init, NodeId, Op, Value};

use super::layers::{parameter, peft_name};
use super::merge::{Strided, check_size};
use super::{Delta, Lora};

/// The stacked parameter that an expert's matrix is part of, and which part.
const STACKED: [(&str, Stacked, usize); 6] = [
    ("gate_proj", Stacked::GateUp, 0),
    ("w1", Stacked::GateUp, 0),
    ("up_proj", Stacked::GateUp, 1),
    ("w3", Stacked::GateUp, 1),
    ("down_proj", Stacked::Down, 0),
    ("w2", Stacked::Down, 0),
];

/// A parameter of transformers that holds one matrix of every expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stacked {
    /// Gate and up, one above the other.
    GateUp,
    /// Down.
    Down,
}

impl Stacked {
    fn name(self) -> &'static str {
        match self {
            Stacked::GateUp => "gate_up_proj",
            Stacked::Down => "down_proj",
        }
    }

    /// Number of groups of state that the stacked parameter holds.
    fn groups(self) -> usize {
        match self {
            Stacked::GateUp => 2,
            Stacked::Down => 1,
        }
    }
}

/// The adapter of one stacked parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertAdapter {
    /// Where `lora_A` and `lora_B` lie.
    module: String,
    /// The parameter, as PEFT names it.
    key: String,
    /// Number of experts.
    pub experts: usize,
    /// Columns of an expert's input.
    pub input: usize,
    /// Columns of an expert's result, of all groups together.
    pub output: usize,
    /// Rank of one expert.
    pub rank: usize,
    /// The factor of `Bₑ·Aₑ`.
    pub scale: f32,
    /// The groups of state in the order of `B`'s rows.
    groups: Vec<String>,
}

impl ExpertAdapter {
    /// Name of the parameter `A (E·r, in)`.
    pub fn a(&self) -> String {
        format!("{}.lora_A.weight", self.module)
    }

    /// Name of the parameter `B (out, r·E)`.
    pub fn b(&self) -> String {
        format!("{}.lora_B.weight", self.module)
    }

    /// The parameter that is adapted, as PEFT names it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Number of elements of `A`.
    pub fn a_elements(&self) -> usize {
        self.experts * self.rank * self.input
    }

    /// Number of elements of `B`.
    pub fn b_elements(&self) -> usize {
        self.output * self.rank * self.experts
    }

    /// The groups of state that are adapted, in the order of `B`'s rows.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// Which of its groups a range of state is.
    pub fn group(&self, state: &str) -> Option<usize> {
        self.groups.iter().position(|group| group == state)
    }

    /// The matrix that it adds to expert `expert` of a group, from the numbers of `A` and `B`.
    ///
    /// # Errors
    ///
    /// When they have another size.
    pub fn delta<'a>(
        &self,
        [group, expert]: [usize; 2],
        a: &'a [f32],
        b: &'a [f32],
    ) -> Result<Delta<'a>, GraphError> {
        let Self { experts, input, rank, scale, .. } = *self;
        check_size(&self.a(), rank, a.len(), self.a_elements())?;
        check_size(&self.b(), rank, b.len(), self.b_elements())?;
        let first = group * self.rows() * rank * experts + expert;
        let left = Strided { data: &b[first..], line: rank * experts, depth: experts };
        let right = Strided { data: &a[expert * rank * input..], line: 1, depth: input };
        Ok(Delta::of_factors([left, right], [self.rows(), input], rank, scale))
    }

    /// Rows of `B` that belong to one group.
    fn rows(&self) -> usize {
        self.output / self.groups.len().max(1)
    }

    /// `y + (s · x·Aₑᵀ)·Bₑᵀ` of group `group`, where `y` is the group's own product of the same rows. Groups share the
    /// small product, which `made` holds by the name of `A`.
    pub(super) fn add(
        &self,
        g: &mut Graph,
        [x, ranges, y]: [Value; 3],
        group: usize,
        made: &mut BTreeMap<String, Value>,
    ) -> Value {
        let (rank, rows) = (self.rank, self.rows());
        let small = match made.get(&self.a()) {
            Some(&small) => small,
            None => self.small(g, x, ranges), // (R, r)
        };
        made.insert(self.a(), small);
        let b = g.param_named(&self.b(), [self.output, rank * self.experts], Init::Fill(0.0)); // (out, r·E)
        let b = if rows < self.output { g.slice(b, 0, group * rows, rows) } else { b }; // (F, r·E)
        let b = g.reshape(b, [rows, rank, self.experts]); // (F, r, E)
        let b = g.transpose(b, &[2, 0, 1]); // (E, F, r)
        let more = g.apply(Op::GroupedLinear, &[small, b, ranges]); // (R, F)
        g.add(y, more) // (R, F)
    }

    /// `s · x·Aₑᵀ` of each expert's rows.
    fn small(&self, g: &mut Graph, x: Value, ranges: Value) -> Value {
        let Self { experts, input, rank, .. } = *self;
        // PEFT draws A as that of a linear layer with as many inputs.
        let bound = 1.0 / (input as f32).sqrt();
        let a = g.param_named(&self.a(), [experts * rank, input], Init::Uniform(bound)); // (E·r, in)
        let a = g.reshape(a, [experts, rank, input]); // (E, r, in)
        let small = g.apply(Op::GroupedLinear, &[x, a, ranges]); // (R, r)
        g.scale(small, self.scale) // (R, r)
    }
}

impl Lora {
    /// The adapters of stacked experts of a forward graph, in the order they run.
    ///
    /// # Errors
    ///
    /// When a pattern is too complex, or the dropout is not 0.
    pub fn expert_adapters(&self, forward: &Graph) -> Result<Vec<ExpertAdapter>, GraphError> {
        let mut found = Vec::new();
        for stack in stacks(forward).into_iter().filter(|stack| self.targets_parameter(&stack.key)) {
            let (rank, scale) = self.size_of(&stack.key)?;
            found.push(ExpertAdapter { rank, scale, ..stack });
        }
        for index in 1..found.len() {
            if found[index].module == found[index - 1].module {
                // The parameter that comes later in the module is wrapped later, and so lies outside.
                found[index - 1].module.push_str(".base_layer");
            }
        }
        if !found.is_empty() {
            self.refuse_of_parameters()?;
        }
        Ok(found)
    }
}

/// The group of state that a node multiplies the rows of experts with.
pub(super) fn group_of(g: &Graph, node: NodeId) -> Option<&str> {
    let node = g.node(node);
    (node.op == Op::GroupedLinear).then(|| parameter(g, node.inputs[1])).flatten()
}

/// Every stacked parameter of a graph's experts, in the order of layers, without rank and scale.
pub(super) fn stacks(g: &Graph) -> Vec<ExpertAdapter> {
    let mut found: Vec<ExpertAdapter> = Vec::new();
    for node in g.node_ids() {
        let Some((module, stacked, part)) = group_of(g, node).and_then(parts) else { continue };
        let shape = g.shape(g.node(node).inputs[1]); // (E, out, in)
        let group = group_of(g, node).unwrap_or_default().to_owned();
        let key = format!("{}.{}", peft_name(module), stacked.name());
        match found.iter_mut().find(|known| known.key == key) {
            Some(known) if known.groups.contains(&group) => {}
            Some(known) => known.groups.insert(part.min(known.groups.len()), group),
            None => found.push(ExpertAdapter {
                module: module.to_owned(),
                key,
                experts: shape[0],
                input: shape[2],
                output: shape[1] * stacked.groups(),
                rank: 0,
                scale: 0.0,
                groups: vec![group],
            }),
        }
    }
    found
}

/// Module, stacked parameter and part of a group of state by its name.
fn parts(group: &str) -> Option<(&str, Stacked, usize)> {
    let (module, own) = group.rsplit_once('.')?;
    let (_, stacked, part) = STACKED.into_iter().find(|(name, _, _)| *name == own)?;
    module.ends_with(".experts").then_some((module, stacked, part))
}
