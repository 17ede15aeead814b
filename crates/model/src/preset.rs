//! Models with a name: small shapes that train on a laptop and serve demonstrations and benchmarks, and the
//! published shapes of well-known models, so that one can plan for them without their weights.
//!
//! Figures are those of the `config.json` beside the weights on Hugging Face; tests compare the number of
//! parameters with the published one.

use std::fmt;

use crate::{Architecture, Bert, ExpertNames, Gpt2, Llama, Mixture, Rope, RouterLosses, Stretch};

/// A named shape and the sequence length it is meant for.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// The name that users type.
    pub name: &'static str,
    /// Tokens per sequence: for published models, the length of their first training.
    pub seq: usize,
    /// The model.
    pub model: Architecture,
}

impl Preset {
    /// All presets, family by family and smallest first.
    pub fn all() -> Vec<Preset> {
        let preset = |name, seq, model: Architecture| Preset { name, seq, model };
        let plain = |dims| llama(dims, 1e-6, Rope::plain(10_000.0));
        let llama3 = |dims, factor| {
            let stretch = Stretch::Llama3 { factor, low: 1.0, high: 4.0, original: 8192.0 };
            llama(dims, 1e-5, Rope { base: 500_000.0, stretch: Some(stretch) })
        };
        let qwen2 = |dims| Llama { qkv_bias: true, ..llama(dims, 1e-6, Rope::plain(1_000_000.0)) };
        let qwen3 = |dims, head_width| Llama {
            head_width: Some(head_width),
            qk_norm: true,
            ..llama(dims, 1e-6, Rope::plain(1_000_000.0))
        };
        let tied = |model| Llama { tie_embeddings: true, ..model };
        let mixtral = |model: Llama, experts, balance| {
            let names = ExpertNames::Mixtral;
            let form = Mixture { normalised: true, names, ..mixture([experts, 2, model.ffn], balance) };
            Llama { mixture: Some(form), ..model }
        };
        let qwen3_moe = |model: Llama, numbers| {
            let form = Mixture { normalised: true, ..mixture(numbers, 0.001) };
            Llama { mixture: Some(form), ..model }
        };
        vec![
            //                                layers  C    H  K   F     V
            preset("tiny", 128, plain([4, 128, 4, 2, 344, 512]).into()),
            preset("s", 256, plain([8, 256, 8, 4, 688, 8192]).into()),
            preset("m", 512, plain([12, 512, 8, 4, 1376, 16384]).into()),
            preset("llama-3.2-1b", 8192, tied(llama3([16, 2048, 32, 8, 8192, 128_256], 32.0)).into()),
            preset("llama-3.1-8b", 8192, llama3([32, 4096, 32, 8, 14_336, 128_256], 8.0).into()),
            preset("llama-3.1-70b", 8192, llama3([80, 8192, 64, 8, 28_672, 128_256], 8.0).into()),
            preset("qwen2.5-0.5b", 4096, tied(qwen2([24, 896, 14, 2, 4864, 151_936])).into()),
            preset("qwen2.5-1.5b", 4096, tied(qwen2([28, 1536, 12, 2, 8960, 151_936])).into()),
            preset("qwen2.5-7b", 4096, qwen2([28, 3584, 28, 4, 18_944, 152_064]).into()),
            preset("qwen3-0.6b", 4096, tied(qwen3([28, 1024, 16, 8, 3072, 151_936], 128)).into()),
            preset("tiny-moe", 128, small([4, 128, 4, 2, 172, 512]).into()),
            preset("s-moe", 256, small([8, 256, 8, 4, 344, 8192]).into()),
            preset("mixtral-8x7b", 4096, mixtral(mistral([32, 4096, 32, 8, 14_336, 32_000]), 8, 0.02).into()),
            preset("qwen1.5-moe-a2.7b", 4096, qwen2_moe([24, 2048, 16, 16, 5632, 151_936]).into()),
            preset(
                "qwen3-30b-a3b",
                4096,
                qwen3_moe(qwen3([48, 2048, 32, 4, 6144, 151_936], 128), [128, 8, 768]).into(),
            ),
            preset("olmoe-1b-7b", 4096, olmoe([16, 2048, 16, 16, 1024, 50_304]).into()),
            preset("gpt2", 1024, gpt2([12, 768, 12]).into()),
            preset("gpt2-xl", 1024, gpt2([48, 1600, 25]).into()),
            preset("bert-base", 512, bert([12, 768, 12]).into()),
        ]
    }

    /// The preset of that name.
    ///
    /// # Errors
    ///
    /// When there is none; the error lists the known names.
    pub fn from_name(name: &str) -> Result<Preset, UnknownPreset> {
        let found = Preset::all().into_iter().find(|preset| preset.name == name);
        found.ok_or_else(|| UnknownPreset { name: name.to_owned() })
    }
}

fn llama([layers, width, heads, key_heads, ffn, vocab]: [usize; 6], norm_epsilon: f32, rope: Rope) -> Llama {
    Llama {
        vocab,
        width,
        layers,
        heads,
        key_heads,
        head_width: None,
        ffn,
        norm_epsilon,
        rope,
        window: None,
        positions: None,
        tie_embeddings: false,
        qkv_bias: false,
        qk_norm: false,
        whole_qk_norm: false,
        mixture: None,
        documents: false,
    }
}

/// Eight experts, two for each token, in the form of Qwen3-MoE, whose files can also hold one without normalised weights.
fn small(dims: [usize; 6]) -> Llama {
    let model = llama(dims, 1e-6, Rope::plain(10_000.0));
    let form = Mixture { normalised: true, ..mixture([8, 2, model.ffn], 0.01) };
    Llama { qk_norm: true, mixture: Some(form), ..model }
}

fn mistral(dims: [usize; 6]) -> Llama {
    llama(dims, 1e-5, Rope::plain(1_000_000.0))
}

fn mixture([experts, chosen, ffn]: [usize; 3], balance: f32) -> Mixture {
    Mixture {
        experts,
        chosen,
        ffn,
        normalised: false,
        shared: None,
        sparse_step: 1,
        dense_layers: Vec::new(),
        names: ExpertNames::Qwen,
        capacity: None,
        noise: 0.0,
        losses: RouterLosses::balanced(balance),
    }
}

fn qwen2_moe(dims: [usize; 6]) -> Llama {
    let form = Mixture { shared: Some(5632), ..mixture([60, 4, 1408], 0.001) };
    Llama { qkv_bias: true, mixture: Some(form), ..llama(dims, 1e-6, Rope::plain(1_000_000.0)) }
}

fn olmoe(dims: [usize; 6]) -> Llama {
    let model = llama(dims, 1e-5, Rope::plain(10_000.0));
    let form = mixture([64, 8, model.ffn], 0.01);
    Llama { whole_qk_norm: true, mixture: Some(form), ..model }
}

fn gpt2([layers, width, heads]: [usize; 3]) -> Gpt2 {
    let (vocab, positions) = (50_257, 1024);
    Gpt2 { vocab, positions, width, layers, heads, norm_epsilon: 1e-5, dropout: 0.1, documents: false }
}

fn bert([layers, width, heads]: [usize; 3]) -> Bert {
    Bert {
        vocab: 30_522,
        positions: 512,
        token_types: 2,
        width,
        layers,
        heads,
        ffn: 4 * width,
        norm_epsilon: 1e-12,
        dropout: 0.1,
        labels: None,
    }
}

/// Nothing is known under this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPreset {
    /// The requested name.
    pub name: String,
}

impl fmt::Display for UnknownPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<&str> = Preset::all().iter().map(|preset| preset.name).collect();
        write!(f, "no model is called `{}`; known are {}", self.name, known.join(", "))
    }
}

impl std::error::Error for UnknownPreset {}

#[cfg(test)]
mod tests {
    use plimsoll_graph::{Graph, differentiate};

    use super::*;

    fn training(name: &str) -> Graph {
        Preset::from_name(name).unwrap().model.training(1, 128).unwrap()
    }

    #[test]
    fn presets_have_the_parameters_their_shapes_say() {
        let count = |name: &str| training(name).trainable_elements();
        // Two tables V·C, a final norm C, and per layer (2·C·C + 2·C·C·K/H) + 3·F·C + 2·C.
        assert_eq!(count("tiny"), 2 * 65_536 + 128 + 4 * (49_152 + 132_096 + 256));
        assert_eq!(count("s"), 2 * 2_097_152 + 256 + 8 * (196_608 + 528_384 + 512));
        // Norms of heads, a router C·E and three matrices of each of 8 experts, which are half as wide as the network of the dense model.
        assert_eq!(count("tiny-moe"), 2 * 65_536 + 128 + 4 * (49_152 + 64 + 1024 + 4 * 132_096 + 256));
        assert_eq!(count("s-moe"), 2 * 2_097_152 + 256 + 8 * (196_608 + 64 + 2048 + 4 * 528_384 + 512));
        assert_eq!(count("m"), 2 * 8_388_608 + 512 + 12 * (786_432 + 2_113_536 + 1024));
    }

    #[test]
    fn published_models_have_as_many_parameters_as_published() {
        let published = [
            ("llama-3.2-1b", 1_235_814_400),
            ("llama-3.1-8b", 8_030_261_248),
            ("llama-3.1-70b", 70_553_706_496),
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen2.5-1.5b", 1_543_714_304),
            ("qwen2.5-7b", 7_615_616_512),
            ("qwen3-0.6b", 596_049_920),
            ("mixtral-8x7b", 46_702_792_704),
            ("qwen1.5-moe-a2.7b", 14_315_784_192),
            ("qwen3-30b-a3b", 30_532_122_624),
            ("olmoe-1b-7b", 6_919_161_856),
            ("gpt2", 124_439_808),
            ("gpt2-xl", 1_557_611_200),
            ("bert-base", 109_514_298),
        ];
        for (name, parameters) in published {
            assert_eq!(training(name).trainable_elements(), parameters, "{name}");
        }
        assert_eq!(published.len() + 5, Preset::all().len());
    }

    #[test]
    fn every_preset_can_be_differentiated_and_has_a_gradient_for_every_parameter() {
        for Preset { name, model, seq } in Preset::all() {
            assert!(seq >= 128, "{name}");
            let forward = model.training(1, 128).unwrap();
            let graph = differentiate(&forward, forward.output_named("loss").unwrap()).unwrap();
            graph.verify().unwrap();
            for state in forward.states().iter().filter(|state| state.name.ends_with("weight")) {
                let gradient = plimsoll_graph::gradient_name(&state.name);
                assert!(graph.state_named(&gradient).is_some(), "{name}: {gradient}");
            }
        }
    }

    #[test]
    fn parameters_have_the_names_and_shapes_of_the_published_files() {
        for (preset, name, shape) in [
            ("llama-3.2-1b", "model.layers.15.mlp.down_proj.weight", &[2048, 8192][..]),
            ("llama-3.1-70b", "model.layers.79.self_attn.k_proj.weight", &[1024, 8192]),
            ("llama-3.1-8b", "lm_head.weight", &[128_256, 4096]),
            ("qwen2.5-7b", "model.layers.0.self_attn.k_proj.bias", &[512]),
            ("qwen3-0.6b", "model.layers.27.self_attn.q_norm.weight", &[128]),
            ("qwen3-0.6b", "model.layers.0.self_attn.o_proj.weight", &[1024, 2048]),
            ("gpt2-xl", "transformer.h.47.attn.c_attn.weight", &[1600, 4800]),
            ("bert-base", "bert.encoder.layer.11.intermediate.dense.weight", &[3072, 768]),
        ] {
            let graph = training(preset);
            let state = graph.state_named(name).unwrap_or_else(|| panic!("{preset} has no {name}"));
            assert_eq!(graph.state(state).ty.shape[..], *shape, "{preset}: {name}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = Preset::from_name("xl").unwrap_err().to_string();
        assert!(
            error.starts_with("no model is called `xl`; known are tiny, s, m, llama-3.2-1b, "),
            "{error}"
        );
        assert!(Preset::all().iter().all(|preset| error.contains(preset.name)), "{error}");
    }
}
