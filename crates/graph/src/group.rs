//! Groups of state: one range whose parts have names and shapes of their own.
//!
//! ```text
//! experts.up          f32[4,64,32]                                            one range, one gradient, one update, one transfer
//! experts.0.up.weight f32[64,32] │ experts.1.up.weight f32[64,32] │ …         what files hold
//! ```
//!
//! Parts lie one behind the other, in their order and without gaps, and fill the range. A part is drawn under its own
//! name, so that grouping changes no initial number. Ops see the range alone.
//!
//! Absent: parts of moments and gradients, which are not used outside a run, and parts that are not contiguous.

use std::collections::BTreeSet;

use crate::graph::{Graph, Init, State, StateKind, StatePart};
use crate::{GraphError, Shape, Type, Value};

impl State {
    /// The range, or the one of which each rank keeps a shard.
    pub fn whole_type(&self) -> Type {
        self.whole.unwrap_or(self.ty)
    }

    /// The pieces of the whole range that have a name of their own, each with its first element: its parts, or all of it.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, &str, Shape)> {
        let whole = self.parts.is_empty().then_some((0, self.name.as_str(), self.whole_type().shape));
        let parts = self.parts.iter().scan(0, |next, part| {
            let first = *next;
            *next += part.shape.elements();
            Some((first, part.name.as_str(), part.shape))
        });
        whole.into_iter().chain(parts)
    }
}

impl Graph {
    /// A trainable weight that files hold as single tensors, `parts`, in the order in which they lie in it. Names of the
    /// group and of its parts are prefixed with the block's.
    #[track_caller]
    pub fn param_group(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
        init: Init,
        parts: &[(String, Shape)],
    ) -> Value {
        let parts: Vec<StatePart> = parts
            .iter()
            .map(|(name, shape)| StatePart { name: self.full_name(name), shape: *shape })
            .collect();
        let (name, ty) = (self.full_name(name), Type::f32(shape));
        let known = self.state_named(&name).is_some();
        let state = self.find_or_push_state(name.clone(), ty, StateKind::Parameter { trainable: true }, init);
        if known && self.states[state.index()].parts != parts {
            self.fail("state", format!("`{name}` is already declared with other parts"));
        }
        if matches!(self.states[state.index()].init, Init::Table(_) | Init::OneHot(_)) {
            self.fail("state", format!("the parts of `{name}` are drawn one by one, and no table is"));
        }
        let total: usize = parts.iter().map(|part| part.shape.elements()).sum();
        if total != ty.shape.elements() {
            let why =
                format!("the parts of `{name}` have {total} elements, and {ty} has {}", ty.shape.elements());
            self.fail("state", why);
        }
        self.states[state.index()].parts = parts;
        self.newest(state)
    }

    /// Checks that parts fill their ranges and that no two tensors of a file would have one name.
    pub(crate) fn check_parts(&self) -> Result<(), GraphError> {
        let fault = |why| Err(GraphError { what: "state".into(), block: String::new(), why, at: None });
        if self.states.iter().all(|state| state.parts.is_empty()) {
            return Ok(());
        }
        let mut names = BTreeSet::new();
        for state in &self.states {
            let total: usize = state.pieces().map(|(_, _, shape)| shape.elements()).sum();
            if total != state.whole_type().shape.elements() {
                return fault(format!("the parts of `{}` do not fill {}", state.name, state.whole_type()));
            }
            if let Some((_, name, _)) = state.pieces().find(|(_, name, _)| !names.insert(*name)) {
                return fault(format!("`{name}` names two pieces of state"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(count: usize) -> Vec<(String, Shape)> {
        (0..count).map(|index| (format!("experts.{index}.up.weight"), [6, 4].into())).collect()
    }

    fn grouped(count: usize) -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        g.block("mlp", |g| g.param_group("experts.up", [3, 6, 4], Init::Normal(0.1), &parts(count)));
        g.finish()
    }

    #[test]
    fn parts_lie_one_behind_the_other_under_the_blocks_name() {
        let graph = grouped(3).unwrap();
        let pieces: Vec<_> = graph.states()[0].pieces().collect();
        let expected = [
            (0, "mlp.experts.0.up.weight"),
            (24, "mlp.experts.1.up.weight"),
            (48, "mlp.experts.2.up.weight"),
        ];
        assert_eq!(pieces, expected.map(|(first, name)| (first, name, Shape::from([6, 4]))));
        let again = graph.rewrite(|state| state.kind, |g, node| g.node(node).outputs[0]).unwrap();
        assert_eq!(again.states()[0].parts, graph.states()[0].parts, "a rewrite keeps them");
        let text = graph.to_string();
        assert!(
            text.starts_with(
                "state mlp.experts.up: f32[3,6,4] parameter of mlp.experts.0.up.weight: [6,4], "
            ),
            "{text}"
        );
    }

    #[test]
    fn parts_that_do_not_fill_their_range_are_refused() {
        let error = grouped(2).unwrap_err();
        assert_eq!(error.why, "the parts of `mlp.experts.up` have 48 elements, and f32[3,6,4] has 72");
    }

    #[test]
    fn a_name_that_two_pieces_have_is_refused() {
        let mut g = Graph::new();
        g.param("experts.1.up.weight", [6, 4], Init::Fill(0.0));
        g.param_group("experts.up", [3, 6, 4], Init::Fill(0.0), &parts(3));
        assert_eq!(g.finish().unwrap_err().why, "`experts.1.up.weight` names two pieces of state");
    }

    #[test]
    fn a_group_is_shared_by_name_only_with_the_same_parts() {
        let mut g = Graph::new();
        let first = g.param_group("up", [2, 6, 4], Init::Fill(0.0), &parts(2));
        assert_eq!(g.param_group("up", [2, 6, 4], Init::Fill(0.0), &parts(2)), first);
        let other = [("a".to_owned(), Shape::from([48]))];
        g.param_group("up", [2, 6, 4], Init::Fill(0.0), &other);
        assert_eq!(g.finish().unwrap_err().why, "`up` is already declared with other parts");
    }
}
