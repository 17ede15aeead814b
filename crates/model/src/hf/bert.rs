//! `config.json` of BERT, for masked words and for labels of whole texts.
//!
//! Refused: positions that are not absolute, decoders, other activations than the erf form of gelu, a head
//! over words of its own, and classifiers of several labels at once or of numbers (regression).

use serde_json::{Map, Value, json};

use super::ConfigError;
use super::keys::{Keys, decimal};
use crate::{Architecture, Bert, Labels};

pub(super) fn masked(keys: &Keys, notes: &mut Vec<String>) -> Result<Architecture, ConfigError> {
    keys.must_be("tie_word_embeddings", true)?;
    Ok(encoder(keys, notes)?.into())
}

pub(super) fn classifier(keys: &Keys, notes: &mut Vec<String>) -> Result<Architecture, ConfigError> {
    let problem = "single_label_classification";
    keys.one_of("problem_type", problem, &[problem])?;
    let model = encoder(keys, notes)?;
    let count = match label_names(keys).len() {
        0 => keys.optional_count("num_labels")?.unwrap_or(2),
        count => count,
    };
    if count < 2 {
        let key = if keys.get("id2label").is_some() { "id2label" } else { "num_labels" };
        return Err(keys.wrong(key, "two labels or more"));
    }
    let dropout = keys.probability("classifier_dropout", model.dropout)?;
    Ok(Bert { labels: Some(Labels { count, dropout }), ..model }.into())
}

fn encoder(keys: &Keys, notes: &mut Vec<String>) -> Result<Bert, ConfigError> {
    keys.one_of("hidden_act", "gelu", &["gelu"])?;
    keys.one_of("position_embedding_type", "absolute", &["absolute"])?;
    keys.must_be("is_decoder", false)?;
    keys.must_be("add_cross_attention", false)?;
    if keys.probability("attention_probs_dropout_prob", 0.1)? > 0.0 {
        notes.push(
            "`attention_probs_dropout_prob` is not applied: attention weights never exist as a matrix".into(),
        );
    }
    let width = keys.count("hidden_size")?;
    Ok(Bert {
        vocab: keys.count("vocab_size")?,
        positions: keys.count("max_position_embeddings")?,
        token_types: keys.optional_count("type_vocab_size")?.unwrap_or(2),
        width,
        layers: keys.layers("num_hidden_layers")?,
        heads: keys.divisor("num_attention_heads", "hidden_size", width)?,
        ffn: keys.count("intermediate_size")?,
        norm_epsilon: keys.positive("layer_norm_eps", 1e-12)? as f32,
        dropout: keys.probability("hidden_dropout_prob", 0.1)?,
        labels: None,
    })
}

/// The names in `id2label`, by number; a number without a name is called as transformers calls it.
pub(super) fn label_names(keys: &Keys) -> Vec<String> {
    let Some(Value::Object(names)) = keys.get("id2label") else { return Vec::new() };
    let name = |number: usize| match names.get(&number.to_string()).and_then(Value::as_str) {
        Some(name) => name.to_owned(),
        None => format!("LABEL_{number}"),
    };
    (0..names.len()).map(name).collect()
}

/// `names` are those of the labels; a label without one gets transformers' name.
pub(super) fn write(model: &Bert, names: &[String]) -> Value {
    let class = if model.labels.is_some() { "BertForSequenceClassification" } else { "BertForMaskedLM" };
    let mut config = json!({
        "architectures": [class],
        "attention_probs_dropout_prob": 0.0,
        "hidden_act": "gelu",
        "hidden_dropout_prob": decimal(model.dropout),
        "hidden_size": model.width,
        "initializer_range": 0.02,
        "intermediate_size": model.ffn,
        "layer_norm_eps": decimal(model.norm_epsilon),
        "max_position_embeddings": model.positions,
        "model_type": "bert",
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "tie_word_embeddings": true,
        "type_vocab_size": model.token_types,
        "vocab_size": model.vocab,
    });
    if let (Some(labels), Value::Object(config)) = (model.labels, &mut config) {
        let name = |i: usize| names.get(i).cloned().unwrap_or_else(|| format!("LABEL_{i}"));
        let numbers = 0..labels.count;
        let id2label: Map<String, Value> = numbers.clone().map(|i| (i.to_string(), name(i).into())).collect();
        let label2id: Map<String, Value> = numbers.map(|i| (name(i), i.into())).collect();
        // In the file, null means that the classifier has the same dropout as the rest of the model.
        let own = labels.dropout.to_bits() != model.dropout.to_bits();
        config.insert("classifier_dropout".into(), if own { decimal(labels.dropout) } else { Value::Null });
        config.insert("id2label".into(), Value::Object(id2label));
        config.insert("label2id".into(), Value::Object(label2id));
    }
    config
}
