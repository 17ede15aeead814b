//! The checker of graphs: rules that every pass may rely on, and must leave true.
//!
//! * a node reads only values that are written before it;
//! * outputs have the types the op yields on its inputs; sums and rows of tables are f32 or bf16, as declared;
//! * phases follow one another;
//! * a loss that is added is an f32 scalar of the forward phase and an output under its name;
//! * parts of a group fill its range, and no two have one name;
//! * versions of state are written one after the other, and no node reads an old one after the next is written, because
//!   both share the same bytes.

use crate::graph::{AddedLoss, Graph, NodeId, Phase, ValueSource};
use crate::rules::agree;
use crate::{GraphError, Type, infer};

impl Graph {
    /// Checks the whole graph.
    ///
    /// # Errors
    ///
    /// The first fault found.
    pub fn verify(&self) -> Result<(), GraphError> {
        let mut written = vec![false; self.value_count()];
        let mut version = vec![0u32; self.states.len()];
        for (index, info) in self.values.iter().enumerate() {
            written[index] = !matches!(info.source, ValueSource::Node { .. });
        }
        let mut last_phase = None;
        for id in self.node_ids() {
            let node = self.node(id);
            if last_phase > Some(node.phase) {
                return Err(self.fault(id, format!("{:?} follows {last_phase:?}", node.phase)));
            }
            last_phase = Some(node.phase);
            for &input in &node.inputs {
                if !written[input.index()] {
                    return Err(self.fault(id, format!("reads {input} before it is written")));
                }
                if let Some((state, read)) = self.value(input).state
                    && version[state.index()] != read
                {
                    let (name, newest) = (&self.state(state).name, version[state.index()]);
                    let why =
                        format!("reads version {read} of `{name}`, but version {newest} is in its place");
                    return Err(self.fault(id, why));
                }
            }
            self.check_outputs(id)?;
            for (output, &value) in node.outputs.iter().enumerate() {
                let source = ValueSource::Node { node: id, output };
                if written[value.index()] || self.value(value).source != source {
                    return Err(self.fault(id, format!("writes {value}, which is not its own")));
                }
                written[value.index()] = true;
                if let Some((state, next)) = self.value(value).state {
                    if next != version[state.index()] + 1 {
                        let name = &self.state(state).name;
                        return Err(self.fault(id, format!("writes version {next} of `{name}` out of turn")));
                    }
                    version[state.index()] = next;
                }
            }
        }
        match self.outputs.iter().find(|(_, value)| !written[value.index()]) {
            Some((name, _)) => Err(outside("output", format!("`{name}` is never written"))),
            None => self.check_added_losses().and_then(|()| self.check_parts()),
        }
    }

    fn check_added_losses(&self) -> Result<(), GraphError> {
        for AddedLoss { name, value, .. } in &self.added_losses {
            let ty = self.ty(*value);
            if ty != Type::f32([]) {
                return Err(outside("added loss", format!("`{name}` is {ty} and no f32 scalar")));
            }
            if self.producer(*value).is_some_and(|node| self.node(node).phase != Phase::Forward) {
                return Err(outside("added loss", format!("`{name}` is made behind the forward pass")));
            }
            if self.output_named(name) != Some(*value) {
                return Err(outside("added loss", format!("`{name}` is no output of the graph")));
            }
        }
        Ok(())
    }

    fn check_outputs(&self, id: NodeId) -> Result<(), GraphError> {
        let node = self.node(id);
        let types = infer(&node.op, &self.input_types(node)).map_err(|why| self.fault(id, why))?;
        let actual = self.output_types(node);
        if !agree(&node.op, &types, &actual) {
            return Err(self.fault(id, format!("yields {types:?} but is declared {actual:?}")));
        }
        Ok(())
    }

    fn fault(&self, id: NodeId, why: String) -> GraphError {
        let node = self.node(id);
        GraphError {
            what: format!("node {} ({})", id.0, node.op.name()),
            block: self.block_name(node.block),
            why,
            at: None,
        }
    }
}

/// A fault that belongs to no node.
fn outside(what: &str, why: String) -> GraphError {
    GraphError { what: what.to_owned(), block: String::new(), why, at: None }
}

#[cfg(test)]
mod tests {
    use crate::graph::{Init, Phase};
    use crate::{DType, Graph, Op};

    #[test]
    fn reading_an_old_version_after_the_next_is_written_is_refused() {
        let mut g = Graph::new();
        let x = g.input("x", [2], DType::F32);
        let w = g.param("w", [2], Init::Fill(0.0));
        let state = g.state_named("w").unwrap();
        g.set_phase(Phase::Update);
        let update = g.apply_all(Op::Accumulate { to: DType::F32 }, &[x]);
        g.write_state(update, 0, state);
        g.add(x, w);
        let error = g.finish().unwrap_err();
        assert_eq!(error.why, "reads version 0 of `w`, but version 1 is in its place");
    }

    #[test]
    fn a_node_of_an_earlier_phase_may_not_follow() {
        let mut g = Graph::new();
        let x = g.input("x", [2], DType::F32);
        g.set_phase(Phase::Backward);
        g.scale(x, 2.0);
        g.set_phase(Phase::Forward);
        g.scale(x, 2.0);
        assert!(g.finish().unwrap_err().why.contains("Forward follows"));
    }
}
