//! Adapters that PEFT trains and that are missing here, although they may well belong to their model.
//!
//! Advice to choose other settings is for adapters that are yet to be trained. A trained one has its numbers for the settings
//! it has, so it gets a way to use it as it is, or none.

use plimsoll_graph::{Graph, GraphError, Op};

use super::layers::{Form, heads, layers};
use super::refused::{ELSEWHERE, KEEP, KEEP_FOR_HEAD, MERGE};
use super::{AdapterKind, Lora};

/// A part of a trained adapter that is not supported here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The part, in words.
    pub what: String,
    /// How the adapter can be used.
    pub way: WayOut,
}

/// A way to use an adapter that is not supported here. Each was tried in PEFT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayOut {
    /// PEFT can merge it into its model.
    Merge,
    /// PEFT can, and the merged model's output head then has weights of its own.
    MergeApart,
    /// PEFT can, once the output head has weights of its own.
    MergeUntied,
    /// PEFT can, once the output head has lost the adapter that it shares with the table.
    MergeOnce,
    /// PEFT can, into a model that is not supported here.
    KeepForHead,
    /// PEFT can use it, and not merge it.
    Keep,
    /// Current versions of PEFT make no such adapter.
    Elsewhere,
}

impl Unsupported {
    /// The sentence for people; it begins behind the adapter's name.
    pub fn said(&self) -> String {
        let way = match self.way {
            WayOut::Merge | WayOut::MergeApart | WayOut::MergeUntied | WayOut::MergeOnce => MERGE,
            WayOut::KeepForHead => KEEP_FOR_HEAD,
            WayOut::Keep => KEEP,
            WayOut::Elsewhere => ELSEWHERE,
        };
        format!("holds {}, which is not supported here; {way}", self.what)
    }
}

impl Lora {
    /// The first part of a trained adapter that is missing here.
    ///
    /// # Errors
    ///
    /// When an expression takes too long.
    pub fn unsupported(&self, forward: &Graph) -> Result<Option<Unsupported>, GraphError> {
        if !self.kind.has_modules() {
            return Ok(None);
        }
        let apart = if table_is_head(forward) { WayOut::MergeUntied } else { WayOut::Merge };
        for found in [self.of_tables(forward, apart)?, self.of_experts(forward)?, self.of_tokens(forward)?] {
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Tables of words with another adapter than the low-rank one, or named as parameters; heads too.
    fn of_tables(&self, forward: &Graph, apart: WayOut) -> Result<Option<Unsupported>, GraphError> {
        let found = |what: String, way| Ok(Some(Unsupported { what, way }));
        for table in layers(forward).iter().filter(|layer| layer.form == Form::Table) {
            if self.kind == AdapterKind::LowRank || !self.means(table)? {
                continue;
            }
            let way = if self.kind == AdapterKind::Dora { apart } else { WayOut::Elsewhere };
            return found(format!("{} of `{}`, a table of words", self.kind.name(), table.module), way);
        }
        let Some((parameter, form)) = self.other_targeted_parameter(forward) else { return Ok(None) };
        // PEFT refuses parameters of layers that are stored as (in, out).
        let way = if form == Form::Transposed { WayOut::Elsewhere } else { apart };
        found(format!("an adapter of the parameter `{parameter}`"), way)
    }

    fn of_experts(&self, forward: &Graph) -> Result<Option<Unsupported>, GraphError> {
        let mut groups = forward.states().iter().filter(|state| !state.parts.is_empty());
        if let Some(group) = groups.find(|state| self.saves(&state.name)) {
            let what = format!("a copy of `{}`, a weight of experts", group.name);
            return Ok(Some(Unsupported { what, way: WayOut::Merge }));
        }
        Ok(self.mistakes_experts(forward)?.then(|| Unsupported {
            what:
                "target modules among experts that PEFT makes no adapter for, one of gate and up or a pattern"
                    .into(),
            way: WayOut::Elsewhere,
        }))
    }

    fn of_tokens(&self, forward: &Graph) -> Result<Option<Unsupported>, GraphError> {
        let named = self.tokens.named();
        if named.is_empty() {
            return Ok(None);
        }
        let table = layers(forward).into_iter().find(|layer| layer.form == Form::Table);
        let Some(table) = table else { return Ok(None) };
        let of_table = named.iter().find(|(name, _)| table.module.ends_with(name)).map(|(_, rows)| *rows);
        let of_head = named.iter().filter(|(name, _)| !table.module.ends_with(name));
        let differs = |(name, rows): &(&str, &[usize])| "lm_head".ends_with(name) && Some(*rows) != of_table;
        let twice = |rows: &[usize]| (1..rows.len()).any(|at| rows[..at].contains(&rows[at]));
        let biased = |op: &Op| matches!(op, Op::HeadLoss(head) if head.bias);
        let (what, way) = if table_is_head(forward) && of_head.clone().any(differs) {
            ("trained tokens of an output head that are not those of its table", WayOut::MergeUntied)
        } else if named.iter().any(|(_, rows)| twice(rows)) {
            ("a trained token twice", WayOut::Merge)
        } else if table_is_head(forward) && forward.nodes().iter().any(|node| biased(&node.op)) {
            ("trained tokens of an output head with a bias", WayOut::Keep)
        } else if self.saves(&table.weight()) || self.means(&table)? {
            ("trained tokens of a table that is trained or adapted too", WayOut::Elsewhere)
        } else {
            return Ok(None);
        };
        Ok(Some(Unsupported { what: what.into(), way }))
    }
}

/// Whether the table of words is the output head too.
fn table_is_head(forward: &Graph) -> bool {
    let heads = heads(forward);
    layers(forward).iter().any(|layer| layer.form == Form::Table && heads.contains(&layer.weight()))
}
