//! Settings that a checkpoint keeps, so that a run which resumes from it is the same run: by the names users know, each
//! with its value and whether it may change.

use super::RawConfig;

/// A setting that checkpoints remember.
struct Fact {
    name: &'static str,
    /// Its value among the effective settings, if there is one.
    value: fn(&RawConfig) -> Option<String>,
    /// Whether a run that resumes may have another value, which is then reported; otherwise it is refused.
    changeable: bool,
}

macro_rules! facts {
    ($($changeable:literal: $($name:ident),+;)+) => {
        [$($(Fact {
            name: stringify!($name),
            value: |settings| settings.$name.as_ref().map(ToString::to_string),
            changeable: $changeable,
        },)+)+]
    };
}

const FACTS: [Fact; 30] = facts! {
    false: optim, optim_args, bf16, weights_dtype, gradients_dtype, lr_scheduler_type, zo_eps_scheduler_type, es_fitness, router_aux_loss,
        expert_capacity_factor;
    true: learning_rate, warmup_steps, warmup_ratio, max_steps, num_train_epochs, momentum, nesterov, adam_beta1,
        adam_beta2, adam_epsilon, weight_decay, max_grad_norm, full_determinism, tf32, router_aux_loss_coef, router_z_loss_coef,
        zo_eps, zo_directions, population, router_jitter_noise;
};

/// Settings that a resumed run may change; each change is reported.
pub(crate) fn changeable() -> impl Iterator<Item = &'static str> {
    FACTS.iter().filter(|fact| fact.changeable).map(|fact| fact.name)
}

/// Whether two runs with these values of a fact are different runs. A setting missing from the checkpoint became a fact
/// after it was written; facts that are no settings, such as the shape of adapters, are missing if there are none.
pub(crate) fn differ(name: &str, then: Option<&String>, now: Option<&String>) -> bool {
    match FACTS.iter().find(|fact| fact.name == name) {
        Some(fact) => !fact.changeable && then.is_some() && then != now,
        None => then != now,
    }
}

/// The part of effective settings that a checkpoint keeps.
pub(crate) fn remembered(effective: &RawConfig) -> impl Iterator<Item = (&'static str, String)> {
    FACTS.iter().filter_map(|fact| Some((fact.name, (fact.value)(effective)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Setting;

    #[test]
    fn a_setting_that_may_not_change_differs_unless_the_checkpoint_is_older_than_the_fact() {
        let (f32, bf16) = ("f32".to_owned(), "bf16".to_owned());
        assert!(differ("gradients_dtype", Some(&f32), Some(&bf16)));
        assert!(!differ("gradients_dtype", Some(&bf16), Some(&bf16)));
        assert!(!differ("gradients_dtype", None, Some(&bf16)));
        assert!(differ("lora_r", None, Some(&f32)) && differ("lora_r", Some(&f32), None));
        assert!(!differ("max_steps", Some(&f32), None));
        for fact in &FACTS {
            assert!(Setting::named(fact.name).is_some(), "{} is no setting", fact.name);
        }
    }
}
