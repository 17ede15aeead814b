//! Settings of experts: how many a token goes to, how many tokens each takes, noise on their input, and the losses of routers.

use plimsoll_model::{Architecture, BalanceGroup, Mixture, RouterLosses};

use super::Config;
use super::bounds::{mistake, shortest};
use crate::error::TrainError;
use crate::pretrained::choice_of_experts;
use crate::settings::RawConfig;

/// How far a step moves a bias, as DeepSeek-V3 was trained.
const BIAS_RATE: f64 = 0.001;

/// Note on biases that steer experts.
const UNSAVED_BIASES: &str = "biases that steer experts are in checkpoints and not in the saved model: `generate` and transformers \
                              choose experts without them";
/// Note on a capacity of experts.
const UNSAVED_CAPACITY: &str = "the capacity of experts is not in the saved model's config.json: `generate` and transformers leave out \
                                no token, and a run that trains the model further must state the capacity again";

/// Note on a choice of experts under an adapter.
const UNSAVED_CHOICE: &str = "the number of experts for each token is not in the adapter's folder: `generate` and PEFT take that of the \
                              base model's config.json, and a run that trains the adapter further must state it again";

impl Config {
    /// Notes on settings of experts that this run trains with and its saved model does not contain.
    pub(crate) fn unsaved(&self) -> Vec<&'static str> {
        let Architecture::Llama(model) = &self.model.architecture else { return Vec::new() };
        let mixture = model.mixture.as_ref().filter(|_| self.output.is_some());
        let biases = mixture.filter(|mixture| mixture.losses.steering > 0.0).map(|_| UNSAVED_BIASES);
        let capacity = mixture.and_then(|mixture| mixture.capacity).map(|_| UNSAVED_CAPACITY);
        let choice = mixture.filter(|_| self.adapts_another_choice()).map(|_| UNSAVED_CHOICE);
        biases.into_iter().chain(capacity).chain(choice).collect()
    }

    /// Whether adapters are trained over another choice of experts than that of the model's folder.
    fn adapts_another_choice(&self) -> bool {
        let base = self.origin.pretrained().filter(|_| self.model.lora.is_some());
        base.is_some_and(|base| {
            choice_of_experts(&base.configuration) != choice_of_experts(&self.configuration)
        })
    }
}

/// The model with the experts that the settings ask for.
///
/// # Errors
///
/// When a number is out of range, or the model has no experts.
pub(super) fn apply(raw: &RawConfig, architecture: Architecture) -> Result<Architecture, TrainError> {
    let Architecture::Llama(mut model) = architecture else {
        return refuse(raw).map_or(Ok(architecture), Err);
    };
    let Some(mixture) = &mut model.mixture else {
        return refuse(raw).map_or(Ok(model.into()), Err);
    };
    choose(raw, mixture)?;
    balance(raw, mixture)?;
    Ok(model.into())
}

/// The error for a setting of experts where the model has none.
fn refuse(raw: &RawConfig) -> Option<TrainError> {
    let given = [
        ("--num-experts-per-tok", raw.num_experts_per_tok.is_some()),
        ("--expert-capacity-factor", raw.expert_capacity_factor.is_some()),
        ("--router-jitter-noise", raw.router_jitter_noise.is_some()),
        ("--router-aux-loss", raw.router_aux_loss.is_some()),
        ("--router-bias-update-rate", raw.router_bias_update_rate.is_some()),
        ("--router-aux-loss-coef", raw.router_aux_loss_coef.is_some()),
        ("--router-z-loss-coef", raw.router_z_loss_coef.is_some()),
    ];
    let (flag, _) = given.into_iter().find(|(_, given)| *given)?;
    Some(mistake(format!("{flag} is for mixtures of experts, and this model has none; leave it out")))
}

fn choose(raw: &RawConfig, mixture: &mut Mixture) -> Result<(), TrainError> {
    if let Some(chosen) = raw.num_experts_per_tok {
        if chosen == 0 || chosen > mixture.experts {
            let most = mixture.experts;
            return Err(mistake(format!(
                "--num-experts-per-tok {chosen}: the model has {most} experts; give 1 to {most}"
            )));
        }
        // With a single expert per token, a normalised weight would always be 1, and the router would learn nothing.
        mixture.normalised &= chosen > 1 || chosen == mixture.chosen;
        mixture.chosen = chosen;
    }
    if let Some(factor) = raw.expert_capacity_factor {
        mixture.capacity = Some(above_zero("--expert-capacity-factor", factor)?);
    }
    if let Some(noise) = raw.router_jitter_noise {
        if !(0.0..1.0).contains(&noise) {
            return Err(mistake(format!(
                "--router-jitter-noise must be at least 0 and below 1, got {noise}"
            )));
        }
        mixture.noise = noise as f32;
    }
    Ok(())
}

fn balance(raw: &RawConfig, mixture: &mut Mixture) -> Result<(), TrainError> {
    let losses = &mut mixture.losses;
    if let Some(weight) = raw.router_aux_loss_coef {
        losses.balance = from_zero("--router-aux-loss-coef", weight)?;
    }
    if let Some(weight) = raw.router_z_loss_coef {
        losses.z = from_zero("--router-z-loss-coef", weight)?;
    }
    let steered = raw.router_aux_loss.as_deref() == Some("bias");
    if !steered && raw.router_bias_update_rate.is_some() {
        return Err(mistake("--router-bias-update-rate is for --router-aux-loss bias; leave it out"));
    }
    match raw.router_aux_loss.as_deref() {
        Some("bias") => steer(raw, losses)?,
        None | Some("sequence") => losses.group = BalanceGroup::Sequence,
        Some("none") => losses.balance = 0.0,
        Some("micro-batch") if raw.micro_batch.or(raw.per_device_train_batch_size).is_none() => {
            return Err(mistake(
                "--router-aux-loss micro-batch makes the loss depend on the micro-batch, which the planner must then \
                 not choose; state it with --micro-batch",
            ));
        }
        Some("micro-batch") => losses.group = BalanceGroup::MicroBatch,
        Some(other) => {
            return Err(mistake(format!(
                "--router-aux-loss is sequence, micro-batch, bias or none, got `{other}`"
            )));
        }
    }
    Ok(())
}

/// Biases in place of a loss.
fn steer(raw: &RawConfig, losses: &mut RouterLosses) -> Result<(), TrainError> {
    if raw.router_aux_loss_coef.is_some_and(|weight| weight > 0.0) {
        return Err(mistake("--router-aux-loss bias has no loss; leave out --router-aux-loss-coef"));
    }
    losses.balance = 0.0;
    let rate = raw.router_bias_update_rate.unwrap_or(BIAS_RATE);
    losses.steering = above_zero("--router-bias-update-rate", rate)?;
    Ok(())
}

fn from_zero(flag: &str, number: f64) -> Result<f32, TrainError> {
    if (0.0..f64::from(f32::MAX)).contains(&number) {
        return Ok(number as f32);
    }
    Err(mistake(format!("{flag} must be a number from 0 on, got {number}")))
}

fn above_zero(flag: &str, number: f64) -> Result<f32, TrainError> {
    match from_zero(flag, number) {
        Ok(number) if number > 0.0 => Ok(number),
        _ => Err(mistake(format!("{flag} must be above 0, got {number}"))),
    }
}

/// The settings of experts that a model was made with.
pub(super) fn effective(architecture: &Architecture, raw: RawConfig) -> RawConfig {
    let Architecture::Llama(model) = architecture else { return raw };
    let Some(mixture) = &model.mixture else { return raw };
    let losses = &mixture.losses;
    let group = match losses.group {
        _ if losses.steering > 0.0 => "bias",
        _ if losses.balance <= 0.0 => "none",
        BalanceGroup::Sequence => "sequence",
        BalanceGroup::MicroBatch => "micro-batch",
    };
    RawConfig {
        num_experts_per_tok: Some(mixture.chosen),
        expert_capacity_factor: mixture.capacity.map(shortest),
        router_jitter_noise: Some(shortest(mixture.noise)),
        router_aux_loss: Some(group.to_owned()),
        router_bias_update_rate: (losses.steering > 0.0).then(|| shortest(losses.steering)),
        router_aux_loss_coef: Some(shortest(losses.balance)),
        router_z_loss_coef: Some(shortest(losses.z)),
        ..raw
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_model::Preset;

    use super::*;

    fn tiny() -> Architecture {
        Preset::from_name("tiny-moe").unwrap().model
    }

    fn applied(raw: &RawConfig) -> Mixture {
        match apply(raw, tiny()).unwrap() {
            Architecture::Llama(model) => model.mixture.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn settings_of_experts_reach_the_model_and_are_written_down_again() {
        let raw = RawConfig {
            num_experts_per_tok: Some(1),
            expert_capacity_factor: Some(1.25),
            router_jitter_noise: Some(0.01),
            router_aux_loss: Some("micro-batch".into()),
            router_aux_loss_coef: Some(0.02),
            router_z_loss_coef: Some(0.001),
            micro_batch: Some(4),
            ..RawConfig::default()
        };
        let mixture = applied(&raw);
        assert_eq!((mixture.chosen, mixture.normalised, mixture.capacity), (1, false, Some(1.25)));
        assert_eq!(
            (mixture.losses.group, mixture.noise.to_bits()),
            (BalanceGroup::MicroBatch, 0.01f32.to_bits())
        );
        let model = apply(&raw, tiny()).unwrap();
        let told = effective(&model, RawConfig { micro_batch: Some(4), ..RawConfig::default() });
        assert_eq!(told, raw);
        let plain = effective(&tiny(), RawConfig::default());
        assert_eq!(apply(&plain, tiny()).unwrap(), tiny(), "defaults that are written down change nothing");
        let none = RawConfig { router_aux_loss: Some("none".into()), ..RawConfig::default() };
        assert!(applied(&none).losses.balance.abs() < f32::EPSILON);
        let bias = RawConfig { router_aux_loss: Some("bias".into()), ..RawConfig::default() };
        let losses = applied(&bias).losses;
        assert_eq!((losses.balance.to_bits(), losses.steering.to_bits()), (0, 0.001f32.to_bits()));
        let told = effective(&apply(&bias, tiny()).unwrap(), RawConfig::default());
        assert_eq!(told.router_bias_update_rate, Some(0.001));
        assert_eq!(apply(&told, tiny()).unwrap(), apply(&bias, tiny()).unwrap());
    }

    #[test]
    fn an_adapter_over_another_number_of_experts_notes_that_its_folder_does_not_keep_it() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/hf/olmoe");
        let unsaved = |chosen: Option<usize>, lora_r: Option<usize>| {
            let raw = RawConfig {
                model: Some(folder.to_owned()),
                num_experts_per_tok: chosen,
                lora_r,
                output_dir: Some("trained".into()),
                seq_len: Some(16),
                memory: Some("64MiB".to_owned()),
                ..RawConfig::default()
            };
            Config::check(&raw).unwrap().unsaved()
        };
        assert_eq!(unsaved(Some(1), Some(2)), [UNSAVED_CHOICE]);
        for (chosen, lora_r) in [(None, Some(2)), (Some(2), Some(2)), (Some(1), None)] {
            assert!(unsaved(chosen, lora_r).is_empty(), "{chosen:?} {lora_r:?}");
        }
    }

    #[test]
    fn settings_that_cannot_be_are_refused_with_a_way_out() {
        let none = RawConfig::default;
        let refused = |raw: &RawConfig| apply(raw, tiny()).unwrap_err().to_string();
        for (raw, told) in vec![
            (RawConfig { num_experts_per_tok: Some(9), ..none() }, "the model has 8 experts; give 1 to 8"),
            (RawConfig { expert_capacity_factor: Some(0.0), ..none() }, "must be above 0, got 0"),
            (RawConfig { expert_capacity_factor: Some(-1.0), ..none() }, "must be above 0, got -1"),
            (RawConfig { router_jitter_noise: Some(1.0), ..none() }, "at least 0 and below 1, got 1"),
            (
                RawConfig { router_aux_loss: Some("tokens".into()), ..none() },
                "sequence, micro-batch, bias or none, got `tokens`",
            ),
            (
                RawConfig { router_aux_loss: Some("micro-batch".into()), ..none() },
                "state it with micro_batch",
            ),
            (
                RawConfig { router_bias_update_rate: Some(0.1), ..none() },
                "router_bias_update_rate is for router_aux_loss bias; leave it out",
            ),
            (
                RawConfig {
                    router_aux_loss: Some("bias".into()),
                    router_bias_update_rate: Some(0.0),
                    ..none()
                },
                "must be above 0, got 0",
            ),
            (
                RawConfig { router_aux_loss: Some("bias".into()), router_aux_loss_coef: Some(0.1), ..none() },
                "has no loss; leave out router_aux_loss_coef",
            ),
            (RawConfig { router_aux_loss_coef: Some(-1.0), ..none() }, "a number from 0 on, got -1"),
            (RawConfig { router_z_loss_coef: Some(f64::NAN), ..none() }, "a number from 0 on"),
        ] {
            assert!(refused(&raw).contains(told), "{}", refused(&raw));
        }
        let dense = Preset::from_name("tiny").unwrap().model;
        let raw = RawConfig { router_z_loss_coef: Some(0.1), ..none() };
        let error = apply(&raw, dense).unwrap_err().to_string();
        assert!(
            error.contains("is for mixtures of experts, and this model has none; leave it out"),
            "{error}"
        );
    }
}
