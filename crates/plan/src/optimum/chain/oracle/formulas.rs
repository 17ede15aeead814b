//! The formula of the literature for a layer with plain attention: `s·b·h·(34 + 5·a·s/h)` bytes are kept,
//! `2·s·b·h` with full recompute.
//!
//! The layer is written down as its authors counted it (16-bit values, dropout masks of one byte, nothing fused). The
//! labels that our options are made of decide what is kept.

use crate::remat::{LabelLimits, LabelOp, frontier};

/// Tokens of a micro-batch (s·b), width, heads and tokens of a sequence.
#[derive(Clone, Copy)]
struct Layer {
    tokens: u64,
    width: u64,
    heads: u64,
    sequence: u64,
}

impl Layer {
    /// Forward ops, and the positions of those whose results the backward pass reads.
    fn ops(self) -> (Vec<LabelOp>, Vec<usize>) {
        let whole = 2 * self.tokens * self.width;
        let scores = 2 * self.heads * self.sequence * self.tokens;
        // Name, operands, bytes, whether its result is read in the backward pass.
        let table: [(&str, &[&str], u64, bool); 20] = [
            ("norm 1", &[], whole, true),
            ("q", &["norm 1"], whole, true),
            ("k", &["norm 1"], whole, true),
            ("v", &["norm 1"], whole, true),
            ("scores", &["q", "k"], scores, false),
            ("softmax", &["scores"], scores, true),
            ("mask of softmax", &[], scores / 2, true),
            ("dropout of softmax", &["softmax", "mask of softmax"], scores, true),
            ("attended", &["dropout of softmax", "v"], whole, true),
            ("projected", &["attended"], whole, false),
            ("mask of attention", &[], whole / 2, true),
            ("residual 1", &["projected", "mask of attention"], whole, true),
            ("norm 2", &["residual 1"], whole, true),
            ("up", &["norm 2"], 4 * whole, true),
            ("gelu", &["up"], 4 * whole, true),
            ("down", &["gelu"], whole, false),
            ("mask of mlp", &[], whole / 2, true),
            ("dropped", &["down", "mask of mlp"], whole, false),
            ("y", &["residual 1", "dropped"], whole, false),
            ("end", &["y"], 0, false),
        ];
        let at = |name: &&str| table.iter().position(|row| row.0 == *name).unwrap();
        let op = |(_, deps, bytes, _): &(&str, &[&str], u64, bool)| LabelOp {
            deps: deps.iter().map(at).collect(),
            bytes: *bytes,
            cost: 1.0,
            keepable: true,
        };
        let demanded = (0..table.len()).filter(|&index| table[index].3).collect();
        (table.iter().map(op).collect(), demanded)
    }

    /// `s·b·h·(34 + 5·a·s/h)`.
    fn published(self) -> u64 {
        let Layer { tokens, width, heads, sequence } = self;
        tokens * (34 * width + 5 * heads * sequence)
    }
}

#[test]
fn a_layer_with_plain_attention_keeps_what_the_published_formula_says() {
    let gpt3 = Layer { tokens: 2048, width: 12_288, heads: 96, sequence: 2048 };
    assert_eq!(5 * gpt3.heads * gpt3.sequence / gpt3.width, 80, "the share of plain attention");
    let small = Layer { tokens: 3 * 128, width: 256, heads: 8, sequence: 128 };
    for layer in [gpt3, small] {
        let input = 2 * layer.tokens * layer.width;
        let (ops, demanded) = layer.ops();
        let labels = frontier(&ops, &demanded, &LabelLimits::NONE);
        let nothing_recomputed = labels.iter().find(|label| label.time == 0.0).unwrap();
        // The input of a layer is counted as the output of the layer before it.
        assert_eq!(nothing_recomputed.bytes + input, layer.published());
        let everything_recomputed = labels.iter().min_by_key(|label| label.bytes).unwrap();
        assert_eq!(everything_recomputed.bytes + input, 2 * layer.tokens * layer.width);
    }
}
