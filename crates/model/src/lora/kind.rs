//! The kinds of adapters: how each changes its modules, and how it is merged.
//!
//! The choice of modules, their layers and the modules to save are the same for every kind; see [`Lora`]. A kind says only
//! how the result of one linear layer is made with its adapter, in a file of its own.

use std::collections::BTreeMap;

use plimsoll_graph::{Graph, GraphError, Value};

use super::bottleneck::NonLinearity;
use super::ia3::FeedForward;
use super::intrinsic::{Coordinates, Intrinsic};
use super::module::Module;
use super::prompt::VirtualTokens;
use super::{Adapter, Lora, bottleneck, dora, ia3, low_rank};
use crate::language::refuse;

/// How adapters change their modules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AdapterKind {
    /// A product of two thin matrices is added to the weight (`LoRA`).
    #[default]
    LowRank,
    /// `LoRA`, and the length of each row of the sum is trained apart (`DoRA`).
    Dora,
    /// A factor for each column of the result, or of the input of these modules (IA³).
    Ia3(FeedForward),
    /// A network of two products and this function between them, behind the module. Its inner columns are
    /// [`Lora::rank`], and its sum is scaled by [`Lora::alpha`].
    Bottleneck(NonLinearity),
    /// Trained vectors before those of the text (prompt tuning). No module has an adapter.
    Prompt(VirtualTokens),
    /// Trained keys and values before those of the text, in every layer (prefix tuning).
    Prefix(VirtualTokens),
    /// All weights move in a random subspace. No module has an adapter.
    Intrinsic(Intrinsic),
}

/// How merging changes a parameter of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merging {
    /// The adapter's product is added.
    Sum,
    /// The product is added to the weight, and then each row gets its trained length.
    SumOfLengths,
    /// Rows of the stored parameter are multiplied by the factors.
    RowFactors,
    /// Columns are.
    ColumnFactors,
}

impl AdapterKind {
    /// The name that people know it by.
    pub fn name(&self) -> &'static str {
        match self {
            AdapterKind::LowRank => "LoRA",
            AdapterKind::Dora => "DoRA",
            AdapterKind::Ia3(_) => "IA3",
            AdapterKind::Bottleneck(_) => "bottleneck adapter",
            AdapterKind::Prompt(_) => "prompt tuning",
            AdapterKind::Prefix(_) => "prefix tuning",
            AdapterKind::Intrinsic(_) => "random subspace",
        }
    }

    /// Its name in `adapter_config.json`.
    pub fn peft_type(&self) -> &'static str {
        match self {
            AdapterKind::LowRank | AdapterKind::Dora => "LORA",
            AdapterKind::Ia3(_) => "IA3",
            AdapterKind::Bottleneck(_) => "BOTTLENECK",
            AdapterKind::Prompt(_) => "PROMPT_TUNING",
            AdapterKind::Prefix(_) => "PREFIX_TUNING",
            AdapterKind::Intrinsic(_) => "INTRINSIC",
        }
    }

    /// Whether names of single experts' layers mean their stacked parameters. PEFT translates them for this kind alone, so for
    /// others they name no module.
    pub(super) fn names_experts(&self) -> bool {
        matches!(self, AdapterKind::LowRank | AdapterKind::Dora)
    }

    /// Whether adapters of this kind belong to modules.
    pub fn has_modules(&self) -> bool {
        !matches!(self, AdapterKind::Prompt(_) | AdapterKind::Prefix(_) | AdapterKind::Intrinsic(_))
    }
}

impl Lora {
    /// The coordinates of each parameter that a subspace moves; none for other kinds.
    ///
    /// # Errors
    ///
    /// When the subspace has no dimension, or more than the parameters that it moves.
    pub fn coordinates(&self, forward: &Graph) -> Result<BTreeMap<String, Coordinates>, GraphError> {
        match &self.kind {
            AdapterKind::Intrinsic(form) => form.coordinates(forward, |name| self.saves(name)),
            _ => Ok(BTreeMap::new()),
        }
    }

    /// The result of a linear layer with its adapter.
    pub(super) fn wrap(&self, g: &mut Graph, module: &Module, adapter: &Adapter) -> Value {
        match &self.kind {
            AdapterKind::LowRank => low_rank::wrap(self, g, module, adapter),
            AdapterKind::Dora => dora::wrap(self, g, module, adapter),
            AdapterKind::Ia3(_) => ia3::wrap(g, module, adapter),
            AdapterKind::Bottleneck(between) => bottleneck::wrap(g, module, adapter, *between),
            AdapterKind::Prompt(_) | AdapterKind::Prefix(_) | AdapterKind::Intrinsic(_) => {
                module.result(g, module.x)
            }
        }
    }

    /// Positions that trained vectors take before those of the text.
    pub fn virtual_tokens(&self) -> usize {
        match self.kind {
            AdapterKind::Prompt(VirtualTokens { count, .. })
            | AdapterKind::Prefix(VirtualTokens { count, .. }) => count,
            _ => 0,
        }
    }

    /// Positions that a graph must have, in addition to those of the text, before the adapter is added to it.
    pub fn added_positions(&self) -> usize {
        if matches!(self.kind, AdapterKind::Prompt(_)) { self.virtual_tokens() } else { 0 }
    }

    /// Whether an adapter of this kind scales the input of the module.
    pub(super) fn scales_input(&self, module: &str) -> Result<bool, GraphError> {
        match &self.kind {
            AdapterKind::Ia3(feedforward) => feedforward.holds(module),
            _ => Ok(false),
        }
    }

    /// The factor of a module's adapter of that rank.
    pub(super) fn scale_of(&self, module: &str, rank: usize) -> Result<f32, GraphError> {
        let alpha = self.alpha_of(module)?;
        Ok(match self.kind {
            AdapterKind::LowRank | AdapterKind::Dora if self.rslora => alpha / (rank as f32).sqrt(),
            AdapterKind::LowRank | AdapterKind::Dora => alpha / rank as f32,
            _ => alpha,
        })
    }

    /// The parameters of the model that merging changes, with the adapter and the way.
    ///
    /// # Errors
    ///
    /// When adapters of this kind cannot be merged, and as [`Lora::adapt`].
    pub fn merges(&self, forward: &Graph) -> Result<Vec<(String, Adapter, Merging)>, GraphError> {
        let mut merges = Vec::new();
        let unmerged = match self.kind {
            AdapterKind::Bottleneck(_) => "a bottleneck adapter has a function between its products",
            AdapterKind::Prompt(_) | AdapterKind::Prefix(_) => {
                "vectors before a text are no part of any weight"
            }
            AdapterKind::LowRank | AdapterKind::Dora | AdapterKind::Ia3(_) | AdapterKind::Intrinsic(_) => "",
        };
        if !unmerged.is_empty() {
            let instead = "use model and adapter together, as --model and --adapter";
            return Err(refuse("lora", format!("{unmerged} and cannot be merged; {instead}")));
        }
        for adapter in self.adapters(forward)? {
            let weight = adapter.weight();
            match &self.kind {
                AdapterKind::LowRank => merges.push((weight, adapter, Merging::Sum)),
                AdapterKind::Dora => merges.push((weight, adapter, Merging::SumOfLengths)),
                AdapterKind::Ia3(_) => merges.extend(adapter.scaled()),
                // Coordinates belong to parameters, not to modules: see `Lora::coordinates`.
                AdapterKind::Bottleneck(_)
                | AdapterKind::Prompt(_)
                | AdapterKind::Prefix(_)
                | AdapterKind::Intrinsic(_) => {}
            }
        }
        Ok(merges)
    }
}

impl Adapter {
    /// The parameters that factors are merged into: the weight, and the bias where the result is scaled.
    fn scaled(self) -> Vec<(String, Adapter, Merging)> {
        let of_rows = self.feedforward == self.rows_are_inputs();
        let way = if of_rows { Merging::RowFactors } else { Merging::ColumnFactors };
        let weight = (self.weight(), self.clone(), way);
        if self.feedforward {
            return vec![weight];
        }
        vec![weight, (format!("{}.bias", self.module), self, Merging::RowFactors)]
    }
}
