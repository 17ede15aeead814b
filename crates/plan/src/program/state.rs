//! State that all graphs of a program share by name: its ranges, before anybody gives them a place.

use std::collections::BTreeMap;
use std::fmt;

use plimsoll_graph::{StateKind, Type};

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
    /// The tier it lives in, if not in the arena.
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
    let mut states: Vec<StateRange> = Vec::new();
    let mut known: BTreeMap<&str, Type> = BTreeMap::new();
    for (_, part) in program.roles() {
        for state in part.graph.states().iter().filter(|state| state.kind != StateKind::Transient) {
            match known.insert(&state.name, state.ty) {
                Some(ty) if ty != state.ty => {
                    return Err(StateDiffers { name: state.name.clone() });
                }
                Some(_) => {}
                None => states.push(StateRange {
                    name: state.name.clone(),
                    ty: state.ty,
                    purpose: Purpose::of_state(state.kind),
                    tier: None,
                    offset: 0,
                    bytes: aligned(state.ty.bytes() as u64, alignment),
                }),
            }
        }
    }
    states.sort_by_key(|range| range.purpose);
    Ok(states)
}

/// Bytes of all state that outlives a schedule.
pub(crate) fn declared_bytes(program: &Program) -> Result<u64, StateDiffers> {
    let mut known: BTreeMap<&str, Type> = BTreeMap::new();
    for (_, part) in program.roles() {
        for state in part.graph.states().iter().filter(|state| state.kind != StateKind::Transient) {
            if known.insert(&state.name, state.ty).is_some_and(|ty| ty != state.ty) {
                return Err(StateDiffers { name: state.name.clone() });
            }
        }
    }
    Ok(known.values().map(|ty| aligned(ty.bytes() as u64, program.train.facts.alignment)).sum())
}
