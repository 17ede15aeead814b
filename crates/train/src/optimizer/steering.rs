//! Biases that steer the choice of experts: each step moves them by the counts of all its tokens (Wang et al. 2024).
//!
//! ```text
//! tally.b += tokens of each expert            every micro-batch, after the sum over ranks where there are several
//! steer(tally.b, scale) → b                   once a step, in place; a step that changes no weight changes no bias
//! ```
//!
//! Counts are whole numbers, so micro-batches, ranks and threads change no bit of a bias.

use plimsoll_graph::{Graph, GraphError, Op, Steered, Value};

/// Appends the update of every bias; `scale` is the clipping factor, which is not finite in a step that changes nothing.
///
/// # Errors
///
/// When no tally counts the tokens of a bias.
pub(super) fn append_steering(graph: &mut Graph, scale: Value) -> Result<(), GraphError> {
    for steered in graph.steered().to_vec() {
        let Steered { bias, rate } = &steered;
        let (Some(state), Some(tally)) = (graph.state_named(bias), graph.state_named(&steered.tally()))
        else {
            let why = format!("nothing counts the tokens by which `{bias}` is to move");
            return Err(GraphError { what: "steer".into(), block: String::new(), why, at: None });
        };
        let counts = graph.newest(tally);
        let update = graph.apply_all(Op::Steer { rate: *rate }, &[counts, scale]);
        graph.write_state(update, 0, state);
    }
    Ok(())
}
