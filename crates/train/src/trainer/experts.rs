//! How a step spread its tokens over the experts of each layer.
//!
//! ```text
//! {"event":"experts","step":10,"layers":[0,1],"shares":[[0.25,0.75],[0.5,0.5]],"overflow":[0.0,0.125]}
//! ```
//!
//! The graph counts copies of tokens ([`CountCopies`](plimsoll_graph::Op::CountCopies)) and sums the counts over the
//! micro-batches of a step. A record has the counts of the last step alone.

use serde::{Deserialize, Serialize};

use plimsoll_graph::StateKind;

use super::Trainer;
use crate::error::TrainError;

/// The load of all experts in one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename = "experts")]
pub struct ExpertRecord {
    /// The step, counted from 1.
    pub step: u64,
    /// Layers with experts, counted from 0.
    pub layers: Vec<u64>,
    /// For each of them the share of each expert in the copies of tokens.
    pub shares: Vec<Vec<f64>>,
    /// For each of them the share of copies that found their expert full and skipped it.
    pub overflow: Vec<f64>,
}

impl ExpertRecord {
    /// The smallest and the largest share of any expert.
    pub fn extremes(&self) -> [f64; 2] {
        let shares = || self.shares.iter().flatten().copied();
        [shares().fold(f64::INFINITY, f64::min), shares().fold(0.0, f64::max)]
    }

    /// The share of copies without a row in all layers.
    pub fn overflow(&self) -> f64 {
        self.overflow.iter().sum::<f64>() / self.overflow.len().max(1) as f64
    }

    /// Adds a layer by its counts: of each expert the copies sent there, then those that have a row.
    fn add(&mut self, layer: u64, counts: &[f32]) {
        let (sent, placed) = counts.split_at(counts.len() / 2);
        let [all, placed] = [sent, placed].map(|counts| counts.iter().copied().map(f64::from).sum::<f64>());
        // Four digits are more than a step of a few thousand tokens tells.
        let rounded = |share: f64| (1e4 * share).round() / 1e4;
        self.layers.push(layer);
        self.shares.push(sent.iter().map(|&count| rounded(f64::from(count) / all.max(1.0))).collect());
        self.overflow.push(if all > 0.0 { rounded(1.0 - placed / all) } else { 0.0 });
    }
}

impl Trainer {
    /// The load of experts in the last step; `None` for a model without experts.
    ///
    /// # Errors
    ///
    /// When the device cannot be read.
    pub fn experts(&self) -> Result<Option<ExpertRecord>, TrainError> {
        let counted = self.run.states_of(|kind| kind == StateKind::Tally);
        let mut counted: Vec<_> = counted
            .filter(|(name, _)| name.ends_with(".experts"))
            .map(|(name, ty)| (layer_of(name), name, ty.shape.elements()))
            .collect();
        counted.sort_unstable();
        let mut record = ExpertRecord {
            step: self.run.steps(),
            layers: Vec::new(),
            shares: Vec::new(),
            overflow: Vec::new(),
        };
        for (layer, name, elements) in counted {
            let mut counts = vec![0.0; elements];
            self.run.engine().read_state(name, 0, &mut counts)?;
            record.add(layer, &counts);
        }
        Ok((!record.layers.is_empty()).then_some(record))
    }
}

/// The number in the name of a layer's state.
fn layer_of(name: &str) -> u64 {
    name.split('.').find_map(|part| part.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_copies_sent_and_overflow_is_of_those_without_a_row() {
        let (layers, shares, overflow) = (Vec::new(), Vec::new(), Vec::new());
        let mut record = ExpertRecord { step: 10, layers, shares, overflow };
        record.add(2, &[6.0, 2.0, 0.0, 4.0, 2.0, 0.0]);
        record.add(4, &[0.0; 6]);
        assert_eq!(record.layers, [2, 4]);
        assert_eq!(record.shares, [[0.75, 0.25, 0.0], [0.0; 3]]);
        assert_eq!((record.overflow.as_slice(), record.overflow()), ([0.25, 0.0].as_slice(), 0.125));
        assert_eq!(record.extremes().as_slice(), [0.0, 0.75].as_slice());
        let text = serde_json::to_string(&record).unwrap();
        assert!(
            text.starts_with("{\"event\":\"experts\",\"step\":10,\"layers\":[2,4],\"shares\":[[0.75,"),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<ExpertRecord>(&text).unwrap(), record);
        assert_eq!(layer_of("tally.model.layers.11.mlp.experts"), 11);
    }
}
