//! Settings that a checkpoint keeps, so that a run which resumes from it is the same run: by the names users know, each
//! with its value and whether it may change.

use std::collections::BTreeMap;

use super::RawConfig;

/// A setting that checkpoints remember.
struct Fact {
    name: &'static str,
    /// The setting's value among the effective settings, if there is one.
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

const FACTS: [Fact; 31] = facts! {
    false: optim, optim_args, bf16, weights_dtype, gradients_dtype, lr_scheduler_type, zo_eps_scheduler_type, es_fitness, router_aux_loss,
        expert_capacity_factor;
    true: learning_rate, warmup_steps, warmup_ratio, max_steps, num_train_epochs, momentum, nesterov, adam_beta1,
        adam_beta2, adam_epsilon, weight_decay, max_grad_norm, full_determinism, tf32, router_aux_loss_coef, router_z_loss_coef,
        zo_eps, zo_directions, population, router_jitter_noise, router_bias_update_rate;
};

/// Settings that a resumed run may change; each change is reported.
pub(crate) fn changeable() -> impl Iterator<Item = &'static str> {
    FACTS.iter().filter(|fact| fact.changeable).map(|fact| fact.name)
}

/// The value of a fact among those of a run. A mixture without a capacity has no fact of it and is unlimited all the same: the
/// fact of its balance says that it is a mixture, and checkpoints have had either from the same version on.
pub(crate) fn value_of<'a>(facts: &'a BTreeMap<String, String>, name: &str) -> Option<&'a str> {
    let is_unlimited = name == "expert_capacity_factor" && facts.contains_key("router_aux_loss");
    facts.get(name).map(String::as_str).or(is_unlimited.then_some("unlimited"))
}

/// Whether two runs with these values of a fact are different runs. A setting missing from the checkpoint became a fact
/// after it was written; facts that are no settings, such as the shape of adapters, are missing if there are none.
pub(crate) fn differ(name: &str, then: Option<&str>, now: Option<&str>) -> bool {
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
        assert!(differ("gradients_dtype", Some("f32"), Some("bf16")));
        assert!(!differ("gradients_dtype", Some("bf16"), Some("bf16")));
        assert!(!differ("gradients_dtype", None, Some("bf16")));
        assert!(differ("lora_r", None, Some("4")) && differ("lora_r", Some("4"), None));
        assert!(!differ("max_steps", Some("4"), None));
        for fact in &FACTS {
            assert!(Setting::named(fact.name).is_some(), "{} is no setting", fact.name);
        }
    }
    #[test]
    fn a_mixture_without_a_capacity_is_unlimited_and_another_model_has_none() {
        let facts =
            |of: &[(&str, &str)]| of.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let capacity =
            |of: &BTreeMap<String, String>| value_of(of, "expert_capacity_factor").map(str::to_owned);
        let (dense, mixture) = (facts(&[("optim", "sgd")]), facts(&[("router_aux_loss", "sequence")]));
        let limited = facts(&[("router_aux_loss", "sequence"), ("expert_capacity_factor", "0.25")]);
        assert_eq!((capacity(&dense), capacity(&mixture)), (None, Some("unlimited".into())));
        assert_eq!(capacity(&limited).as_deref(), Some("0.25"));
        assert_eq!(value_of(&mixture, "optim"), None);
    }
}
