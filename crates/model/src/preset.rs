//! Llamas with a name: small shapes that train on a laptop and serve demonstrations and benchmarks.

use std::fmt;

use crate::Llama;

/// A named shape and the sequence length it is meant for.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// What users type.
    pub name: &'static str,
    /// Tokens per sequence.
    pub seq: usize,
    /// The model.
    pub model: Llama,
}

impl Preset {
    /// All presets, smallest first.
    pub fn all() -> [Preset; 3] {
        let llama = |[layers, width, heads, key_heads, ffn, vocab]: [usize; 6]| Llama {
            vocab,
            width,
            layers,
            heads,
            key_heads,
            ffn,
            norm_epsilon: 1e-6,
            rope_base: 10_000.0,
            tie_embeddings: false,
            qkv_bias: false,
            documents: false,
        };
        [
            //                                          layers  C    H  K   F     V
            Preset { name: "tiny", seq: 128, model: llama([4, 128, 4, 2, 344, 512]) },
            Preset { name: "s", seq: 256, model: llama([8, 256, 8, 4, 688, 8192]) },
            Preset { name: "m", seq: 512, model: llama([12, 512, 8, 4, 1376, 16384]) },
        ]
    }

    /// The preset of that name.
    ///
    /// # Errors
    ///
    /// When there is none; the error lists those there are.
    pub fn from_name(name: &str) -> Result<Preset, UnknownPreset> {
        let found = Preset::all().into_iter().find(|preset| preset.name == name);
        found.ok_or_else(|| UnknownPreset { name: name.to_owned() })
    }
}

/// Nothing is known under this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPreset {
    /// What was asked for.
    pub name: String,
}

impl fmt::Display for UnknownPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Preset::all().map(|preset| preset.name).join(", ");
        write!(f, "no model is called `{}`; known are {known}", self.name)
    }
}

impl std::error::Error for UnknownPreset {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_parameters_their_shapes_say() {
        let count = |name: &str| {
            let Preset { model, seq, .. } = Preset::from_name(name).unwrap();
            model.training(1, seq).unwrap().trainable_elements()
        };
        // Two tables V·C, a final norm C, and per layer (2·C·C + 2·C·C·K/H) + 3·F·C + 2·C.
        assert_eq!(count("tiny"), 2 * 65_536 + 128 + 4 * (49_152 + 132_096 + 256));
        assert_eq!(count("s"), 2 * 2_097_152 + 256 + 8 * (196_608 + 528_384 + 512));
        assert_eq!(count("m"), 2 * 8_388_608 + 512 + 12 * (786_432 + 2_113_536 + 1024));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = Preset::from_name("xl").unwrap_err();
        assert_eq!(error.to_string(), "no model is called `xl`; known are tiny, s, m");
    }
}
