//! Which weights of a model in a folder are kept quantised: those that already are, or those that the user requests.

use std::collections::BTreeSet;

use plimsoll_graph::Graph;
use plimsoll_graph::op::Quantised;
use plimsoll_model::lora::linear_layers;

use super::Pretrained;
use crate::error::TrainError;
use crate::files::{QuantisedBase, QuantisedTensor};

impl Pretrained {
    /// The weights of `forward` that are kept quantised: in the folder's form, or else in the requested one. Modules in
    /// `skipped`, and those that `keeps` selects, stay as they are.
    ///
    /// # Errors
    ///
    /// When the folder has another form than the requested one, or a layer cannot be quantised.
    pub fn quantised_base(
        &self,
        asked: Option<Quantised>,
        forward: &Graph,
        skipped: Vec<String>,
        keeps: impl Fn(&str) -> bool,
    ) -> Result<Option<QuantisedBase>, TrainError> {
        let (form, whole) = match (self.configuration.quantised, asked) {
            (None, None) => return Ok(None),
            (None, Some(asked)) => (asked, BTreeSet::new()),
            (Some(stored), Some(asked)) if stored != asked => {
                let folder = self.folder.display();
                return Err(TrainError::Config(format!(
                    "the weights in {folder} are quantised as {stored}, and {asked} is asked for; leave out \
                     --load-in-4bit, --load-in-8bit and --bnb-4bit-use-double-quant"
                )));
            }
            (Some(stored), _) => (stored, self.whole_weights(forward)?),
        };
        let base = QuantisedBase::new(form, forward, skipped, |name| keeps(name) || whole.contains(name));
        base.map(Some).map_err(TrainError::Config)
    }

    /// Linear layers that a quantised folder holds as floats.
    fn whole_weights(&self, forward: &Graph) -> Result<BTreeSet<String>, TrainError> {
        let mut whole = BTreeSet::new();
        for layer in linear_layers(forward) {
            let stored = self.configuration.architecture.stored(&layer.weight);
            let Some((_, name)) = self.weights.find(stored.names()) else { continue };
            if QuantisedTensor::find(&self.weights, name)?.is_none() {
                whole.insert(layer.weight);
            }
        }
        Ok(whole)
    }
}
