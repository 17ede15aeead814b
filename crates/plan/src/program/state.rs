//! State that all graphs of a program share by name: its ranges, before they have offsets.

use std::fmt;

use plimsoll_graph::{Graph, State, StateKind, Type};

use super::Program;
use super::purpose::Purpose;
use crate::device::{Tier, aligned};

/// A named range of state with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRange {
    /// Name of the state.
    pub name: String,
    /// Shape and element type.
    pub ty: Type,
    /// Its purpose.
    pub purpose: Purpose,
    /// The tier that the state lives on, if not in the arena.
    pub tier: Option<Tier>,
    /// First byte in the arena, or in the tier.
    pub offset: u64,
    /// Size, rounded up to the device's alignment.
    pub bytes: u64,
}

/// Two graphs of a program disagree about a range of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDiffers {
    /// Its name.
    pub name: String,
}

impl fmt::Display for StateDiffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` has different shapes in the training and another graph", self.name)
    }
}

impl std::error::Error for StateDiffers {}

/// All state that outlives a schedule, without places.
pub(crate) fn declared_state(program: &Program) -> Result<Vec<StateRange>, StateDiffers> {
    let alignment = program.train.facts.alignment;
    let range = |state: &State| StateRange {
        name: state.name.clone(),
        ty: state.ty,
        purpose: Purpose::of_state(state.kind),
        tier: None,
        offset: 0,
        bytes: aligned(state.ty.bytes() as u64, alignment),
    };
    let mut states: Vec<StateRange> = declared(program)?.into_iter().map(range).collect();
    states.sort_by_key(|range| range.purpose);
    Ok(states)
}

/// Bytes of all state that outlives a schedule.
pub(crate) fn declared_bytes(program: &Program) -> Result<u64, StateDiffers> {
    let bytes = |state: &State| aligned(state.ty.bytes() as u64, program.train.facts.alignment);
    Ok(declared(program)?.into_iter().map(bytes).sum())
}

/// State that outlives a schedule, each range once.
fn declared(program: &Program) -> Result<Vec<&State>, StateDiffers> {
    let graphs: Vec<&Graph> = [Some(&program.train), program.evaluate.as_ref(), program.generate.as_ref()]
        .into_iter()
        .flatten()
        .map(|part| &part.graph)
        .collect();
    let mut states = Vec::new();
    for (index, graph) in graphs.iter().enumerate() {
        for state in graph.states().iter().filter(|state| state.kind != StateKind::Transient) {
            let lasting = |other: &&Graph| {
                let known = other.state(other.state_named(&state.name)?);
                (known.kind != StateKind::Transient).then_some(known.ty)
            };
            match graphs[..index].iter().find_map(lasting) {
                Some(ty) if ty != state.ty => return Err(StateDiffers { name: state.name.clone() }),
                Some(_) => {}
                None => states.push(state),
            }
        }
    }
    Ok(states)
}
