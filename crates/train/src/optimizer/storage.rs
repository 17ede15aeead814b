//! Element types of state that outlives a step. Arithmetic is f32, whatever the type.

use std::str::FromStr;

use plimsoll_graph::op::{Moments, Weights};
use plimsoll_graph::{DType, name_hash};

/// How weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WeightStorage {
    /// f32.
    #[default]
    F32,
    /// bf16; updates are rounded stochastically so that small steps are not lost on average.
    Bf16,
    /// bf16 to compute with, and an f32 master copy that the optimizer updates. The copy shares its upper half
    /// with the bf16, so together they take four bytes.
    Bf16Master,
}

impl WeightStorage {
    /// The name of the type, as the user types it.
    pub fn name(self) -> &'static str {
        match self {
            WeightStorage::F32 => "f32",
            WeightStorage::Bf16 => "bf16",
            WeightStorage::Bf16Master => "bf16-master",
        }
    }
}

impl FromStr for WeightStorage {
    type Err = String;

    fn from_str(name: &str) -> Result<WeightStorage, String> {
        match name {
            "f32" => Ok(WeightStorage::F32),
            "bf16" => Ok(WeightStorage::Bf16),
            "bf16-master" => Ok(WeightStorage::Bf16Master),
            _ => Err(format!("weights cannot be kept as `{name}`; known are f32, bf16 and bf16-master")),
        }
    }
}

/// How gradients or moments are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FloatStorage {
    /// f32.
    #[default]
    F32,
    /// bf16, rounded to nearest even.
    Bf16,
}

impl FloatStorage {
    /// The name of the type, as the user types it.
    pub fn name(self) -> &'static str {
        match self {
            FloatStorage::F32 => "f32",
            FloatStorage::Bf16 => "bf16",
        }
    }
}

impl FromStr for FloatStorage {
    type Err = String;

    fn from_str(name: &str) -> Result<FloatStorage, String> {
        match name {
            "f32" => Ok(FloatStorage::F32),
            "bf16" => Ok(FloatStorage::Bf16),
            _ => Err(format!("gradients and moments cannot be kept as `{name}`; known are f32 and bf16")),
        }
    }
}

/// Element types of weights, gradients and moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StateStorage {
    /// Parameters, frozen ones included; those have no master copy.
    pub weights: WeightStorage,
    /// Sums of gradients.
    pub gradients: FloatStorage,
    /// Running averages of the optimizer, where it does not keep them in eight bits.
    pub moments: FloatStorage,
}

impl StateStorage {
    /// The request to the graph's pass.
    pub(crate) fn of_graph(self) -> plimsoll_graph::Storage {
        let weights = match self.weights {
            WeightStorage::F32 => DType::F32,
            WeightStorage::Bf16 | WeightStorage::Bf16Master => DType::Bf16,
        };
        let gradients = match self.gradients {
            FloatStorage::F32 => DType::F32,
            FloatStorage::Bf16 => DType::Bf16,
        };
        plimsoll_graph::Storage { weights, gradients }
    }

    /// How an update keeps the parameter `name`.
    pub(super) fn weights_of(self, name: &str) -> Weights {
        match self.weights {
            WeightStorage::F32 => Weights::F32,
            // Not the name alone, because the initial weights are drawn from that.
            WeightStorage::Bf16 => Weights::Stochastic { stream: name_hash(&format!("{name}/rounding")) },
            WeightStorage::Bf16Master => Weights::Split,
        }
    }

    /// How an update keeps moments that are not in eight bits.
    pub(super) fn moments(self) -> Moments {
        match self.moments {
            FloatStorage::F32 => Moments::F32,
            FloatStorage::Bf16 => Moments::Bf16,
        }
    }
}
