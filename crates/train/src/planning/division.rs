//! Which stages of `ZeRO` a request allows.

use plimsoll_devices::DeviceKind;

use super::Model;
use super::options::Options;
use super::zero_stage::ZeroStage;
use crate::error::TrainError;
use crate::optimizer::{OptimizerKind, WeightStorage};

/// Stages from the lowest to the highest.
const STAGES: [ZeroStage; 4] =
    [ZeroStage::Whole, ZeroStage::Moments, ZeroStage::Gradients, ZeroStage::Weights];

impl Options {
    /// The stages to try for a model, in this order. The list has a single stage if one rank
    /// trains alone or the optimizer cannot be divided.
    pub(crate) fn stages(&self, model: &impl Model) -> Vec<Options> {
        let with = |zero_stage| Options { zero_stage, ..self.clone() };
        match self.zero_stage {
            ZeroStage::Auto if self.world().is_some() => STAGES
                .map(with)
                .into_iter()
                .filter(|options| options.check_stage().and_then(|()| options.check_division(model)).is_ok())
                .collect(),
            ZeroStage::Auto => vec![with(ZeroStage::Whole)],
            _ => vec![self.clone()],
        }
    }

    /// Refuses to divide the weights of a model that needs them whole.
    ///
    /// # Errors
    ///
    /// The error says which setting to change.
    pub fn check_division(&self, model: &impl Model) -> Result<(), TrainError> {
        let divides = self.world().is_some() && self.zero_stage.divides_weights();
        match model.needs_whole_weights().filter(|_| divides) {
            Some(why) => Err(TrainError::Config(format!(
                "{why}, and --zero-stage 3 leaves each rank a part of them; take --zero-stage 2"
            ))),
            None => Ok(()),
        }
    }

    /// Refuses a division that the optimizer does not allow.
    ///
    /// # Errors
    ///
    /// The error says which setting to change.
    pub fn check_stage(&self) -> Result<(), TrainError> {
        let (stage, kind) = (self.zero_stage, self.optimizer.kind);
        if self.world().is_none() || !stage.divides_moments() {
            return Ok(());
        }
        let refused = |why: String| Err(TrainError::Config(why));
        let name = stage.name();
        if matches!(kind, OptimizerKind::Adafactor | OptimizerKind::Muon | OptimizerKind::Apollo) {
            return refused(format!(
                "--optim {} updates whole matrices, and --zero-stage {name} divides them over ranks; take --zero-stage 0, \
                 or an optimizer that works element by element, such as adamw_torch",
                kind.name()
            ));
        }
        if kind.is_zeroth_order() {
            return refused(format!(
                "--optim {} keeps nothing that --zero-stage {name} could divide; take --zero-stage 0",
                kind.name()
            ));
        }
        if self.storage.weights == WeightStorage::Bf16 && self.device != DeviceKind::Cpu {
            return refused(format!(
                "--weights-dtype bf16 is rounded at random, and a GPU has no kernel that does so for the parts of weights that \
                 --zero-stage {name} updates; take --weights-dtype bf16-master or --zero-stage 0"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::{Optimizer, StateStorage};
    use plimsoll_graph::Graph;

    #[test]
    fn weights_in_bf16_alone_are_divided_on_a_processor_and_not_on_a_gpu() {
        let of = |device, zero_stage| {
            let storage = StateStorage { weights: WeightStorage::Bf16, ..StateStorage::default() };
            Options { storage, ranks: 2, zero_stage, device, ..Options::default() }.check_stage()
        };
        assert!(of(DeviceKind::Cpu, ZeroStage::Weights).is_ok());
        assert!(of(DeviceKind::Cuda(0), ZeroStage::Whole).is_ok());
        let told = of(DeviceKind::Cuda(0), ZeroStage::Moments).unwrap_err().to_string();
        assert!(told.contains("take weights_dtype bf16-master or zero_stage 0"), "{told}");
    }

    #[test]
    fn only_optimizers_that_work_element_by_element_are_divided() {
        let of = |kind, ranks| Options {
            optimizer: Optimizer::of(kind),
            ranks,
            zero_stage: ZeroStage::Moments,
            ..Options::default()
        };
        assert!(of(OptimizerKind::AdamW8bit, 4).check_stage().is_ok());
        let no_graph = |_: usize| Graph::new().finish();
        for whole in [OptimizerKind::Muon, OptimizerKind::Adafactor, OptimizerKind::Apollo] {
            let error = of(whole, 4).check_stage().unwrap_err().to_string();
            assert!(error.starts_with(&format!("optim {} updates whole matrices", whole.name())), "{error}");
            assert!(of(whole, 1).check_stage().is_ok());
            let auto = Options { zero_stage: ZeroStage::Auto, ..of(whole, 4) };
            let stages: Vec<ZeroStage> =
                auto.stages(&no_graph).iter().map(|options| options.zero_stage).collect();
            assert_eq!(stages, [ZeroStage::Whole]);
        }
    }
}
