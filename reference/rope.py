"""Prints the rotary frequencies of Llama-3.2-1B as transformers computes them.

The values are in the tests of crates/model/src/rope.rs.
"""

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SCALING = dict(
    rope_type="llama3",
    factor=32.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
    rope_theta=500_000.0,
)


def main():
    config = LlamaConfig(
        hidden_size=2048,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131_072,
        rope_theta=500_000.0,
        rope_parameters=SCALING,
        rope_scaling=SCALING,
    )
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    assert attention_factor == 1.0
    for pair, frequency in enumerate(frequencies.tolist()):
        print(pair, f"{frequency:.9e}")


if __name__ == "__main__":
    main()
