//! Schedules bound to addresses. A schedule with documents is bound twice: in the mask form, and in the ragged form,
//! which runs if the documents fit into its tables.

use crate::documents::TableKey;
use crate::driver::{Bound, BoundAttention, Captured};
use crate::lower::{Attention, LoweredSchedule, Product, RankExchange};

/// A step with its addresses.
#[derive(Debug)]
pub(crate) enum Ready {
    Launch(Bound),
    Product(Product),
    Attention(BoundAttention),
    Exchange(RankExchange),
    Await { exchange: usize },
    Copy { from: u64, to: u64, bytes: u64 },
    Zero { to: u64, bytes: u64 },
}

/// The steps of a schedule in one form.
#[derive(Debug)]
pub(crate) struct BoundProgram {
    pub(crate) steps: Vec<Ready>,
    /// Which steps belong to which action.
    pub(crate) program: LoweredSchedule,
    /// Attention by the library, as it was lowered.
    pub(crate) attentions: Vec<Attention>,
    /// All steps as one, once they have been recorded.
    pub(crate) captured: Option<Captured>,
}

impl BoundProgram {
    /// The tables that the program reads.
    pub(crate) fn tables(&self) -> Vec<TableKey> {
        let mut keys: Vec<TableKey> = self.attentions.iter().filter_map(TableKey::of).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    fn products(&self) -> impl Iterator<Item = &Product> {
        self.steps.iter().filter_map(|step| match step {
            Ready::Product(product) => Some(product),
            _ => None,
        })
    }
}

/// A schedule in every form.
#[derive(Debug)]
pub(crate) struct BoundSchedule {
    pub(crate) masked: BoundProgram,
    pub(crate) ragged: Option<BoundProgram>,
    /// The tables that the ragged form reads.
    pub(crate) tables: Vec<TableKey>,
    pub(crate) actions: usize,
}

impl BoundSchedule {
    fn forms(&self) -> impl Iterator<Item = &BoundProgram> {
        [Some(&self.masked), self.ragged.as_ref()].into_iter().flatten()
    }

    pub(crate) fn forms_mut(&mut self) -> impl Iterator<Item = &mut BoundProgram> {
        [Some(&mut self.masked), self.ragged.as_mut()].into_iter().flatten()
    }

    pub(crate) fn products(&self) -> impl Iterator<Item = &Product> {
        self.forms().flat_map(BoundProgram::products)
    }

    pub(crate) fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.forms().flat_map(|form| &form.attentions)
    }
}
