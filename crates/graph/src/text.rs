//! The stable text form: one line per state, input, node, output and added loss.
//!
//! ```text
//! state w: f32[4,8] parameter
//! input %0 x: f32[2,8]
//! %2: f32[2,4] = linear(%0, w@0)  # layers.0
//! output loss = %9
//! ```
//!
//! Golden tests compare this form; it contains everything that bears on the result and nothing else.

use std::fmt;

use crate::graph::{Graph, Node, Phase, StateKind, Steered, Tally};
use crate::{Op, Type, Value};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for state in &self.states {
            write!(f, "state {}: {} {}", state.name, state.ty, kind_name(state.kind))?;
            if let Some(whole) = state.whole {
                write!(f, " shard of {whole}")?;
            }
            let parts: Vec<String> =
                state.parts.iter().map(|part| format!("{}: {}", part.name, part.shape)).collect();
            writeln!(f, "{}{}", if parts.is_empty() { "" } else { " of " }, parts.join(", "))?;
        }
        for &input in &self.inputs {
            writeln!(f, "input {input} {}: {}", self.value(input).name, self.ty(input))?;
        }
        let mut phase = Phase::Forward;
        for node in &self.nodes {
            if node.phase != phase {
                phase = node.phase;
                writeln!(f, "{}:", format!("{phase:?}").to_lowercase())?;
            }
            let names = |values: &[Value]| values.iter().map(|&v| self.value_name(v)).collect::<Vec<_>>();
            let outputs = names(&node.outputs).join(", ");
            let types: Vec<String> = self.output_types(node).iter().map(ToString::to_string).collect();
            let (op, inputs) = (OpText(&node.op), names(&node.inputs).join(", "));
            write!(f, "{outputs}: {} = {op}({inputs})", types.join(", "))?;
            match self.block_name(node.block) {
                block if block.is_empty() => writeln!(f)?,
                block => writeln!(f, "  # {block}")?,
            }
        }
        for (name, value) in &self.outputs {
            writeln!(f, "output {name} = {}", self.value_name(*value))?;
        }
        for added in &self.added_losses {
            writeln!(f, "loss + {} · {}", added.weight, added.name)?;
        }
        for Tally { name, value } in &self.tallies {
            writeln!(f, "{name} += {}", self.value_name(*value))?;
        }
        for Steered { bias, rate } in &self.steered {
            writeln!(f, "{bias} moves by {rate}")?;
        }
        Ok(())
    }
}

impl Graph {
    /// `%7`, or `name@version` for state.
    pub fn value_name(&self, value: Value) -> String {
        match self.value(value).state {
            Some((state, version)) => format!("{}@{version}", self.state(state).name),
            None => value.to_string(),
        }
    }

    /// The op of a node with the types of its operands: `scale{ factor: 0.5 }(f32[2,4]) -> f32[2,4]`.
    ///
    /// Nodes of one signature take the same time.
    pub fn signature(&self, node: &Node) -> String {
        let list = |types: &[Type]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let op = node.op.without_stream();
        format!("{}({}) -> {}", OpText(&op), list(&self.input_types(node)), list(&self.output_types(node)))
    }
}

fn kind_name(kind: StateKind) -> &'static str {
    match kind {
        StateKind::Parameter { trainable: true } => "parameter",
        StateKind::Parameter { trainable: false } => "frozen",
        StateKind::Constant => "constant",
        StateKind::Gradient => "gradient",
        StateKind::Tally => "tally",
        StateKind::Transient => "transient",
        StateKind::Moment => "moment",
    }
}

/// An op with its attributes: `linear{transposed}`.
struct OpText<'a>(&'a Op);

impl fmt::Display for OpText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())?;
        // The derived form is `Variant`, `Variant { a: 1 }` or `Variant(Payload)`; what follows the
        // variant's name is exactly the attributes.
        let debug = format!("{:?}", self.0);
        let attributes = debug.trim_start_matches(|c: char| c.is_alphanumeric()).trim();
        if attributes.is_empty() { Ok(()) } else { write!(f, "{attributes}") }
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::Init;
    use crate::{DType, Graph};

    #[test]
    fn the_text_form_is_stable() {
        let mut g = Graph::new();
        let x = g.input("x", [2, 8], DType::F32);
        let y = g.block("layer", |g| {
            let w = g.param("w", [4, 8], Init::Normal(0.02));
            let y = g.linear(x, w, None);
            g.scale(y, 0.5)
        });
        g.output("y", y);
        let text = g.finish().unwrap().to_string();
        let expected = "\
state layer.w: f32[4,8] parameter
input %0 x: f32[2,8]
%2: f32[2,4] = linear{ transposed: false, bias: false }(%0, layer.w@0)  # layer
%3: f32[2,4] = scale{ factor: 0.5 }(%2)  # layer
output y = %3
";
        assert_eq!(text, expected);
    }

    #[test]
    fn nodes_that_cost_the_same_have_one_signature() {
        let mut g = Graph::new();
        let x = g.input("x", [2, 8], DType::F32);
        for name in ["a", "b"] {
            let y = g.block(name, |g| g.dropout(x, 0.5));
            g.output(name, y);
        }
        let graph = g.finish().unwrap();
        let signatures: Vec<String> = graph.nodes().iter().map(|node| graph.signature(node)).collect();
        let expected = "dropout{ p: 0.5, stream: 0 }(f32[2,8], i32[4]) -> f32[2,8]";
        assert_eq!(signatures, [expected, expected]);
    }
}
