#!/usr/bin/env bash
# A small mixture of experts from scratch, once with everything kept and once with everything recomputed: the losses are equal.
#
#   examples/experts.sh [FOLDER]      writes FOLDER/mixture
set -euo pipefail
. "$(dirname "$0")/common.sh"

mixture() {
    "$plimsoll" train --config "$data/mixture/config.json" --tokenizer "$tokenizers/chatml" \
        --data "$data/harbour.txt" --seq-len 64 --global-batch 8 --micro-batch 4 --memory 64MiB --threads 2 \
        --max-steps 200 --learning-rate 3e-3 --logging-steps 10 "$@"
}
mixture --output-dir "$out/mixture"
mixture --recompute full --output-dir "$out/mixture-recomputed"

# Guessing among 323 tokens would be ln 323 = 5.78.
below "the loss" "$(last_loss "$out/mixture")" 0.5
same "the loss with everything recomputed" "$(last_loss "$out/mixture-recomputed")" "$(last_loss "$out/mixture")"
# 2 is an even load of two experts for each token, 8 would be all tokens on the same.
balance=$(sed -n 's/.*"router_balance":\([^,}]*\).*/\1/p' "$out/mixture/metrics.jsonl" | tail -n 1)
below "the balance of experts" "$balance" 3
same "what follows" \
    "$("$plimsoll" generate --model "$out/mixture" --prompt "A ship floats because" --temperature 0 --max-new-tokens 16)" \
    "A ship floats because the water it pushes aside"
echo "the model is in $out/mixture"
