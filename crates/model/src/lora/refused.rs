//! Settings of PEFT that change the computation of an adapter and are not supported here, each with a description and a
//! way out.
//!
//! A trained adapter keeps its meaning only with all of its settings, so none may be ignored. The way out is PEFT
//! itself, which can merge most of them into their model.

/// How to use an adapter that is not supported here.
pub(super) const MERGE: &str = "merge it with PEFT (`PeftModel.from_pretrained(base, adapter).merge_and_unload()`), \
                                save the result with `save_pretrained`, and give that folder as --model";
/// The way out for an adapter that PEFT cannot merge.
pub(super) const KEEP: &str = "PEFT cannot merge it either, so use it there";
/// The way out for an adapter whose merged model would have an output head of its own, in a family that has none here.
pub(super) const KEEP_FOR_HEAD: &str = "merged by PEFT, it is a model whose output head has weights of its own, and \
                                        such models of this family are not supported here either; use it there";
/// The way out for an adapter that current versions of PEFT do not make.
pub(super) const ELSEWHERE: &str =
    "use it with the library that trained it, in the version it was trained with";

/// A setting, the kind of adapter it makes, and whether PEFT can merge that.
struct Refused {
    setting: &'static str,
    kind: &'static str,
    merges: bool,
}

const fn refused(setting: &'static str, kind: &'static str) -> Refused {
    Refused { setting, kind, merges: true }
}

const fn fixed(setting: &'static str, kind: &'static str) -> Refused {
    Refused { setting, kind, merges: false }
}

const REFUSED: [Refused; 10] = [
    refused("lora_bias", "an adapter with a bias of its own"),
    refused("use_qalora", "QALoRA, which averages what an adapter reads"),
    refused("use_bdlora", "an adapter of block-diagonal matrices"),
    refused("velora_config", "VeLoRA, which trains with compressed inputs"),
    refused("kasa_config", "KaSA, which changes the model's own weights"),
    refused("monteclora_config", "MonteCLoRA, which draws adapters at random"),
    refused("megatron_config", "an adapter for the parallel layers of Megatron"),
    fixed("layer_replication", "an adapter for a model whose layers are repeated"),
    fixed("alora_invocation_tokens", "aLoRA, which counts only behind certain tokens"),
    fixed("arrow_config", "Arrow, which chooses between several adapters"),
];

/// Kinds that are no part of any weight.
const PROMPTS: [&str; 2] = ["P_TUNING", "MULTITASK_PROMPT_TUNING"];

/// Initialisations that leave the model's own weights unchanged; others move a part of them into the adapter.
const BEGINNINGS: [&str; 3] = ["gaussian", "orthogonal", "eva"];

/// The answer to a setting that is not supported, with its value, for a kind of adapter with this way out.
pub(super) fn setting(name: &str, value: &serde_json::Value, way: &str) -> String {
    match REFUSED.iter().find(|refused| refused.setting == name) {
        Some(Refused { kind, merges, .. }) => {
            let way = if *merges { MERGE } else { KEEP };
            format!("`{name}` is set: this is {kind}, which is not supported here; {way}")
        }
        None => format!("`{name}` is set to {value}, which is not supported here; {way}"),
    }
}

/// The refusal of an adapter whose initialisation changed the weights of the model; none if its name is one that changes nothing.
pub(super) fn beginning(name: &str) -> Option<String> {
    let plain = BEGINNINGS.contains(&name.to_lowercase().as_str());
    (!plain).then(|| {
        format!(
            "`init_lora_weights` is {name}, so this adapter belongs to weights that were changed when it began; {MERGE}"
        )
    })
}

/// The answer to an adapter of another kind.
pub(super) fn method(name: Option<&str>) -> String {
    match name {
        None => "`peft_type` is missing, so this is no adapter of PEFT".to_owned(),
        Some(name) => {
            let known = "LORA, IA3, PROMPT_TUNING, PREFIX_TUNING and BOTTLENECK are supported here";
            if PROMPTS.contains(&name) {
                return format!("`peft_type` is {name}, and {known}; {KEEP}");
            }
            format!("`peft_type` is {name}, and {known}; where PEFT can merge it, {MERGE}")
        }
    }
}

/// The error for an adapter's folder whose contents cannot be used here.
pub fn unusable(what: &str) -> String {
    format!("holds {what}, which is not supported here; {MERGE}")
}
