//! Names of parameters in a file, and tensors of a file that no model reads.
//!
//! Parameters here have the names that transformers writes. Files by others, and older ones, leave out the
//! prefix of the model inside its head, or call the halves of a norm gamma and beta. Matrices lie in a file
//! as they lie in the arena, GPT-2's `(in, out)` among them: nothing is transposed on the way.

use crate::{Architecture, Llama};

/// Where a parameter is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredName {
    /// The name transformers writes, and so do we.
    pub name: String,
    /// Names that other files have instead, in the order to try them.
    pub alternatives: Vec<String>,
    /// Whether a file may lack it: the head of a classifier is new when its encoder was trained for words.
    pub optional: bool,
}

impl StoredName {
    /// A tensor that is stored under its own name, and nowhere else.
    pub fn plain(name: &str) -> StoredName {
        StoredName { name: name.to_owned(), alternatives: Vec::new(), optional: false }
    }

    /// All names, in the order to try them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.alternatives).map(String::as_str)
    }
}

impl Architecture {
    /// Where a parameter is found in a file.
    pub fn stored(&self, parameter: &str) -> StoredName {
        let mut names = vec![parameter.to_owned()];
        if let Some(rest) = parameter.strip_prefix(self.prefix()) {
            names.push(rest.to_owned());
        }
        if parameter == "cls.predictions.bias" {
            names.push("cls.predictions.decoder.bias".to_owned());
        }
        if matches!(self, Architecture::Bert(_)) {
            let old: Vec<String> = names.iter().filter_map(|name| old_norm(name)).collect();
            names.extend(old);
        }
        let name = names.remove(0);
        let optional = self.labels().is_some()
            && ["classifier.", "bert.pooler."].iter().any(|head| parameter.starts_with(head));
        StoredName { name, alternatives: names, optional }
    }

    /// Further names in files for a parameter that is used twice, each with that parameter. If the two hold different
    /// numbers, the weights of the file's model are not tied.
    pub fn tied(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            Architecture::Llama(model) if model.tie_embeddings => {
                &[("lm_head.weight", "model.embed_tokens.weight")]
            }
            Architecture::Gpt2(_) => &[("lm_head.weight", "transformer.wte.weight")],
            Architecture::Bert(model) if model.labels.is_none() => &[
                ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
                ("cls.predictions.decoder.bias", "cls.predictions.bias"),
            ],
            _ => &[],
        }
    }

    /// The same model with an untied head, if that can be built.
    #[must_use]
    pub fn untied(&self) -> Option<Architecture> {
        match self {
            Architecture::Llama(model) => Some(Llama { tie_embeddings: false, ..model.clone() }.into()),
            Architecture::Gpt2(_) | Architecture::Bert(_) => None,
        }
    }

    /// Whether a tensor of a file is ignored: tables that are computed, second names of tied weights, and heads for
    /// another task.
    pub fn ignores(&self, stored: &str) -> bool {
        let ends = |suffix: &str| stored.ends_with(suffix);
        match self {
            Architecture::Llama(model) => {
                ends("rotary_emb.inv_freq") || (model.tie_embeddings && stored == "lm_head.weight")
            }
            Architecture::Gpt2(_) => {
                ends(".attn.bias") || ends(".attn.masked_bias") || stored == "lm_head.weight"
            }
            Architecture::Bert(model) => {
                let head = |name: &str| stored.starts_with(name);
                let other_task = match model.labels {
                    Some(_) => head("cls."),
                    None => head("bert.pooler.") || head("pooler.") || head("classifier."),
                };
                let tied = head("cls.predictions.decoder.") || head("cls.seq_relationship.");
                ends("embeddings.position_ids") || tied || other_task
            }
        }
    }

    /// Prefix of the model inside its head.
    fn prefix(&self) -> &'static str {
        match self {
            Architecture::Llama(_) => "model.",
            Architecture::Gpt2(_) => "transformer.",
            Architecture::Bert(_) => "bert.",
        }
    }
}

/// Names that the first BERT's files have for the parts of a norm.
fn old_norm(name: &str) -> Option<String> {
    let halves = [("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")];
    halves.iter().find_map(|(new, old)| Some(format!("{}{old}", name.strip_suffix(new)?)))
}

#[cfg(test)]
mod tests {
    use crate::Preset;

    fn preset(name: &str) -> crate::Architecture {
        Preset::from_name(name).unwrap().model
    }

    #[test]
    fn a_parameter_is_looked_for_under_its_own_name_first_and_then_under_those_of_other_files() {
        let stored = preset("gpt2").stored("transformer.h.0.attn.c_attn.weight");
        assert_eq!(stored.name, "transformer.h.0.attn.c_attn.weight");
        assert_eq!(stored.alternatives, ["h.0.attn.c_attn.weight"]);
        assert_eq!(preset("tiny").stored("lm_head.weight").alternatives, [""; 0]);
        let stored = preset("bert-base").stored("bert.embeddings.LayerNorm.bias");
        let alternatives =
            ["embeddings.LayerNorm.bias", "bert.embeddings.LayerNorm.beta", "embeddings.LayerNorm.beta"];
        assert_eq!(stored.alternatives, alternatives);
        assert_eq!(
            preset("bert-base").stored("cls.predictions.bias").alternatives,
            ["cls.predictions.decoder.bias"]
        );
    }

    #[test]
    fn only_the_head_of_a_classifier_may_be_missing() {
        let (words, labels) = (preset("bert-base"), preset("bert-base").with_labels(3).unwrap());
        let parameters = |model: &crate::Architecture| {
            let graph = model.training(1, 8).unwrap();
            let optional = graph.states().iter().filter(|state| model.stored(&state.name).optional);
            optional.map(|state| state.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(parameters(&words), [""; 0]);
        let head =
            ["bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"];
        assert_eq!(parameters(&labels), head);
    }

    #[test]
    fn tensors_that_nobody_asks_for_are_known_and_parameters_are_not_among_them() {
        let labels = preset("bert-base").with_labels(3).unwrap();
        for (model, stored) in [
            (preset("gpt2"), "h.11.attn.bias"),
            (preset("gpt2"), "lm_head.weight"),
            (preset("llama-3.2-1b"), "lm_head.weight"),
            (preset("llama-3.2-1b"), "model.layers.0.self_attn.rotary_emb.inv_freq"),
            (preset("bert-base"), "bert.embeddings.position_ids"),
            (preset("bert-base"), "cls.predictions.decoder.weight"),
            (preset("bert-base"), "bert.pooler.dense.weight"),
            (labels.clone(), "cls.predictions.bias"),
        ] {
            assert!(model.ignores(stored), "{stored}");
        }
        for model in Preset::all().into_iter().map(|preset| preset.model).chain([labels]) {
            for state in model.training(1, 8).unwrap().states() {
                let stored = model.stored(&state.name);
                for name in stored.alternatives.iter().chain([&stored.name]) {
                    let tied_bias = name == "cls.predictions.decoder.bias";
                    assert!(tied_bias || !model.ignores(name), "{name}");
                }
            }
            for (second, parameter) in model.tied() {
                assert!(model.ignores(second), "{second}");
                assert!(model.training(1, 8).unwrap().states().iter().any(|state| state.name == *parameter));
            }
        }
        assert!(!preset("llama-3.1-8b").ignores("lm_head.weight"));
    }
}
