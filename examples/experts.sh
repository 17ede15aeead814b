#!/usr/bin/env bash
# A small mixture of experts from scratch, once with everything kept and once with everything recomputed: the losses are equal.
#
# Then biases steer the experts in place of a loss, and adapters are trained on them.
#
#   examples/experts.sh [FOLDER]      writes FOLDER/mixture and FOLDER/mixture-adapter
set -euo pipefail
. "$(dirname "$0")/common.sh"

mixture() {
    "$plimsoll" train --config "$data/mixture/config.json" --tokenizer "$tokenizers/chatml" \
        --data "$data/harbour.txt" --seq-len 64 --global-batch 8 --micro-batch 4 --memory 64MiB --threads 2 \
        --learning-rate 3e-3 --logging-steps 10 "$@"
}
mixture --max-steps 200 --output-dir "$out/mixture"
mixture --max-steps 200 --recompute full --output-dir "$out/mixture-recomputed"

# Guessing among 323 tokens would be ln 323 = 5.78.
below "the loss" "$(last_loss "$out/mixture")" 0.5
same "the loss with everything recomputed" "$(last_loss "$out/mixture-recomputed")" "$(last_loss "$out/mixture")"
# 2 is an even load of two experts for each token, 8 would be all tokens on the same.
balance=$(sed -n 's/.*"router_balance":\([^,}]*\).*/\1/p' "$out/mixture/metrics.jsonl" | tail -n 1)
below "the balance of experts" "$balance" 3
same "what follows" \
    "$("$plimsoll" generate --model "$out/mixture" --prompt "A ship floats because" --temperature 0 --max-new-tokens 16)" \
    "A ship floats because the water it pushes aside"

# Biases steer the choice of experts in place of a balance loss.
mixture --router-aux-loss bias --max-steps 60 --output-dir "$out/mixture-steered"
below "the loss of experts that biases steer" "$(last_loss "$out/mixture-steered")" 4

# Adapters of the experts themselves, by the names that PEFT gives them.
"$plimsoll" train --model "$out/mixture" --data "$data/lights.jsonl" --seq-len 64 --global-batch 4 --memory 64MiB --threads 2 \
    --lora-r 4 --lora-target-modules q_proj,v_proj --lora-target-parameters mlp.experts.gate_up_proj,mlp.experts.down_proj \
    --max-steps 20 --learning-rate 3e-3 --logging-steps 1 --output-dir "$out/mixture-adapter"
below "the loss of adapters" "$(last_loss "$out/mixture-adapter")" "$(first_loss "$out/mixture-adapter")"
echo "the model is in $out/mixture"
