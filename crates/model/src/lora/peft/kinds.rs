//! The settings of each kind of adapter, read and written.

use serde_json::{Map, Value, json};

use super::super::{
    AdapterKind, FeedForward, Intrinsic, Lora, NonLinearity, Pattern, VirtualTokens, refused,
};
use super::fields::{Fields, float, unread, whole};
use super::{AdapterConfigError, short, shortest, wrong};

/// Settings of `LoRA` alone.
const LORA: [&str; 14] = [
    "r",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "use_dora",
    "target_parameters",
    "rank_pattern",
    "alpha_pattern",
    "layers_to_transform",
    "layers_pattern",
    "trainable_token_indices",
    "ensure_weight_tying",
    "bias",
    "init_lora_weights",
];
/// Settings of IA³ alone.
const IA3: [&str; 2] = ["feedforward_modules", "init_ia3_weights"];
/// Settings of bottleneck adapters alone.
const BOTTLENECK: [&str; 6] =
    ["bottleneck_size", "non_linearity", "scaling", "adapter_dropout", "bias", "init_weights"];

/// Settings of prompt and prefix tuning alone. The way in which vectors began changes nothing of trained ones, nor does the
/// network they came from: PEFT saves its results.
const PROMPT: [&str; 12] = [
    "num_virtual_tokens",
    "token_dim",
    "num_layers",
    "num_attention_heads",
    "num_transformer_submodules",
    "prompt_tuning_init",
    "prompt_tuning_init_text",
    "tokenizer_name_or_path",
    "tokenizer_kwargs",
    "encoder_hidden_size",
    "prefix_projection",
    "init_weights",
];

/// Settings of a random subspace alone.
const INTRINSIC: [&str; 3] = ["intrinsic_dimension", "per_layer", "seed"];

/// The adapters that the settings describe.
pub(super) fn read(fields: &Fields) -> Result<Lora, AdapterConfigError> {
    match fields.text("peft_type")?.as_deref() {
        Some("LORA") => read_lora(fields),
        Some("IA3") => {
            fields.refuse_unsupported(&IA3, refused::MERGE)?;
            chosen(fields, AdapterKind::Ia3(feedforward(fields)?))
        }
        Some("BOTTLENECK") => read_bottleneck(fields),
        Some("PROMPT_TUNING") => read_vectors(fields, AdapterKind::Prompt),
        Some("PREFIX_TUNING") => read_vectors(fields, AdapterKind::Prefix),
        Some("INTRINSIC") => read_intrinsic(fields),
        other => Err(wrong(refused::method(other))),
    }
}

fn read_lora(fields: &Fields) -> Result<Lora, AdapterConfigError> {
    fields.refuse_unsupported(&LORA, refused::MERGE)?;
    let dropout = fields.number("lora_dropout", 0.0)?;
    if !(0.0..1.0).contains(&dropout) {
        return Err(fields.must("lora_dropout", "at least 0 and less than 1"));
    }
    let kind = if fields.flag("use_dora")? { AdapterKind::Dora } else { AdapterKind::LowRank };
    Ok(Lora {
        rank: fields.count("r", 8)?,
        alpha: fields.number("lora_alpha", 8.0)?,
        dropout,
        rslora: fields.flag("use_rslora")?,
        target_parameters: fields.target_parameters()?,
        layers: fields.layers()?,
        rank_pattern: fields.patterns("rank_pattern", "a whole number of at least 1", whole)?,
        alpha_pattern: fields.patterns("alpha_pattern", "a number", float)?,
        tokens: fields.tokens()?,
        ..chosen(fields, kind)?
    })
}

fn read_bottleneck(fields: &Fields) -> Result<Lora, AdapterConfigError> {
    fields.refuse_unsupported(&BOTTLENECK, refused::ELSEWHERE)?;
    if fields.number("adapter_dropout", 0.0)? > 0.0 {
        return Err(fields.must("adapter_dropout", "0"));
    }
    let between = fields.text("non_linearity")?.map_or(Ok(NonLinearity::default()), |name| name.parse());
    Ok(Lora {
        rank: fields.count("bottleneck_size", 256)?,
        alpha: fields.number("scaling", 1.0)?,
        ..chosen(fields, AdapterKind::Bottleneck(between.map_err(wrong)?))?
    })
}

fn read_vectors(fields: &Fields, kind: fn(VirtualTokens) -> AdapterKind) -> Result<Lora, AdapterConfigError> {
    fields.refuse_unsupported(&PROMPT, refused::KEEP)?;
    let needed = |key: &str| match fields.count(key, 0)? {
        0 => Err(fields.must(key, "a whole number of at least 1")),
        count => Ok(count),
    };
    if fields.count("num_transformer_submodules", 1)? != 1 {
        return Err(fields.must("num_transformer_submodules", "1"));
    }
    let kind = kind(VirtualTokens {
        count: needed("num_virtual_tokens")?,
        width: needed("token_dim")?,
        layers: needed("num_layers")?,
        heads: needed("num_attention_heads")?,
    });
    Ok(Lora { kind, ..Lora::default() })
}

fn read_intrinsic(fields: &Fields) -> Result<Lora, AdapterConfigError> {
    fields.refuse_unsupported(&INTRINSIC, refused::ELSEWHERE)?;
    let dimension = match fields.count("intrinsic_dimension", 0)? {
        0 => return Err(fields.must("intrinsic_dimension", "a whole number of at least 1")),
        dimension => dimension,
    };
    let seed = match fields.get("seed") {
        Some(Value::Number(seed)) if seed.is_u64() => seed.as_u64().unwrap_or_default(),
        _ => return Err(fields.must("seed", "a whole number")),
    };
    let kind = AdapterKind::Intrinsic(Intrinsic { dimension, per_layer: fields.flag("per_layer")?, seed });
    Ok(Lora {
        modules_to_save: fields.names("modules_to_save")?.unwrap_or_default(),
        kind,
        ..Lora::default()
    })
}

/// Adapters of a kind with the settings that all kinds have.
fn chosen(fields: &Fields, kind: AdapterKind) -> Result<Lora, AdapterConfigError> {
    Ok(Lora {
        kind,
        targets: fields.targets()?,
        excluded: fields.excluded()?,
        modules_to_save: fields.names("modules_to_save")?.unwrap_or_default(),
        ..Lora::default()
    })
}

fn feedforward(fields: &Fields) -> Result<FeedForward, AdapterConfigError> {
    let key = "feedforward_modules";
    if let Some(Value::String(text)) = fields.get(key) {
        return Pattern::whole(text).map(FeedForward::Pattern).map_err(unread);
    }
    let names = fields.names(key)?;
    let mut names = names.ok_or_else(|| fields.must(key, "a list of names or a pattern"))?;
    names.sort();
    Ok(FeedForward::Names(names))
}

fn figures(VirtualTokens { count, width, layers, heads }: VirtualTokens) -> Value {
    json!({
        "num_virtual_tokens": count,
        "token_dim": width,
        "num_layers": layers,
        "num_attention_heads": heads,
        "num_transformer_submodules": 1,
    })
}

/// The settings of an adapter's kind, in addition to those that adapters of all kinds have.
pub(super) fn settings(lora: &Lora) -> Map<String, Value> {
    let own = match &lora.kind {
        AdapterKind::LowRank | AdapterKind::Dora => json!({
            "bias": "none",
            "init_lora_weights": true,
            "lora_alpha": short(lora.alpha),
            "lora_dropout": shortest(lora.dropout),
            "r": lora.rank,
            "use_dora": lora.kind == AdapterKind::Dora,
            "use_rslora": lora.rslora,
        }),
        AdapterKind::Ia3(feedforward) => json!({
            "feedforward_modules": match feedforward {
                FeedForward::Names(names) => json!(names),
                FeedForward::Pattern(pattern) => json!(pattern.text()),
            },
            "init_ia3_weights": true,
        }),
        AdapterKind::Bottleneck(between) => json!({
            "bottleneck_size": lora.rank,
            "non_linearity": between.name(),
            "scaling": short(lora.alpha),
        }),
        AdapterKind::Prompt(vectors) => {
            let mut own = figures(*vectors);
            own["prompt_tuning_init"] = json!("RANDOM");
            own
        }
        AdapterKind::Intrinsic(Intrinsic { dimension, per_layer, seed }) => json!({
            "intrinsic_dimension": dimension,
            "per_layer": per_layer,
            "seed": seed,
        }),
        AdapterKind::Prefix(vectors) => {
            let mut own = figures(*vectors);
            own["encoder_hidden_size"] = json!(vectors.width);
            own["prefix_projection"] = json!(false);
            own
        }
    };
    match own {
        Value::Object(own) => own,
        _ => Map::new(),
    }
}
