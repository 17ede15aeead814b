#!/usr/bin/env bash
# A small Llama from scratch: a config.json, a tokenizer and a text. The run is stopped on the way and goes on.
#
#   examples/pretrain.sh [FOLDER]      writes FOLDER/base
set -euo pipefail
. "$(dirname "$0")/common.sh"

pretrain() {
    "$plimsoll" train --config "$data/llama/config.json" --tokenizer "$tokenizers/chatml" \
        --data "$data/harbour.txt" --seq-len 64 --global-batch 8 --memory 64MiB --threads 2 \
        --max-steps 200 --learning-rate 3e-3 --logging-steps 10 --save-steps 50 --save-total-limit 2 \
        --output-dir "$out/base" "$@"
}
pretrain --stop-after 80
pretrain --resume latest

# Guessing among 323 tokens would be ln 323 = 5.78.
below "the loss" "$(last_loss "$out/base")" 0.5
same "what follows" \
    "$("$plimsoll" generate --model "$out/base" --prompt "A ship floats because" --temperature 0 --max-new-tokens 16)" \
    "A ship floats because the water it pushes aside"
echo "the model is in $out/base"
