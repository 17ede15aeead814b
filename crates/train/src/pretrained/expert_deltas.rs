//! Merges adapters of stacked experts into files, which hold a tensor for each expert.
//!
//! The numbers of `B` that belong to one expert are spread over all of `B`, and the tensors of a layer come expert by
//! expert. So the matrices of the last layer stay in memory until another layer needs the room.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use plimsoll_model::lora::ExpertAdapter;

use super::adapter::matrix;
use crate::files::{FileError, ModelFolder};

/// Both matrices of both stacked parameters of a layer.
const KEPT: usize = 4;

/// The part of an adapter that belongs to one tensor.
#[derive(Clone)]
pub(super) struct ExpertDelta {
    pub(super) adapter: Rc<ExpertAdapter>,
    /// The group of state, and the expert.
    pub(super) part: [usize; 2],
}

/// The adapters of a model's experts by the group of state.
pub(super) struct ExpertDeltas {
    adapters: BTreeMap<String, (Rc<ExpertAdapter>, usize)>,
}

impl ExpertDeltas {
    pub(super) fn new(adapters: Vec<ExpertAdapter>) -> ExpertDeltas {
        let mut by_group = BTreeMap::new();
        for adapter in adapters.into_iter().map(Rc::new) {
            let groups = adapter.groups().iter().enumerate();
            by_group.extend(groups.map(|(group, state)| (state.clone(), (Rc::clone(&adapter), group))));
        }
        ExpertDeltas { adapters: by_group }
    }

    /// The part for expert `expert` of a group of state.
    pub(super) fn of(&self, state: &str, expert: usize) -> Option<ExpertDelta> {
        let (adapter, group) = self.adapters.get(state)?;
        Some(ExpertDelta { adapter: Rc::clone(adapter), part: [*group, expert] })
    }
}

/// The matrices read last, the newest behind.
#[derive(Default)]
pub(super) struct Matrices {
    kept: RefCell<Vec<(String, Rc<[f32]>)>>,
}

impl Matrices {
    /// A parameter of the adapter. The last few that were read are kept in memory.
    pub(super) fn get(
        &self,
        weights: &ModelFolder,
        parameter: &str,
        elements: usize,
    ) -> Result<Rc<[f32]>, FileError> {
        let mut kept = self.kept.borrow_mut();
        if let Some((_, numbers)) = kept.iter().find(|(name, _)| name == parameter) {
            return Ok(Rc::clone(numbers));
        }
        if kept.len() == KEPT {
            kept.remove(0);
        }
        let numbers: Rc<[f32]> = matrix(weights, parameter, elements)?.into();
        kept.push((parameter.to_owned(), Rc::clone(&numbers)));
        Ok(numbers)
    }
}
