#!/usr/bin/env bash
# Trains the base of pretrain.sh further without a backward pass: with MeZO's slopes, and with an evolution strategy over
# adapters, in less memory than AdamW takes.
#
#   examples/zeroth_order.sh [FOLDER]      needs FOLDER/base; writes FOLDER/mezo and FOLDER/es
set -euo pipefail
. "$(dirname "$0")/common.sh"

settings=(--model "$out/base" --data "$data/lights.jsonl" --seq-len 32 --global-batch 8 --micro-batch 8 --memory 64MiB --threads 2)
"$plimsoll" plan "${settings[@]}" --methods
below "the arena without gradients" "$(arena "${settings[@]}" --optim mezo)" "$(arena "${settings[@]}" --recompute full)"

"$plimsoll" train "${settings[@]}" --optim mezo --zo-directions 4 --learning-rate 2e-4 --max-steps 120 --logging-steps 20 \
    --save-steps 60 --output-dir "$out/mezo" --stop-after 60
"$plimsoll" train "${settings[@]}" --optim mezo --zo-directions 4 --learning-rate 2e-4 --max-steps 120 --logging-steps 20 \
    --save-steps 60 --output-dir "$out/mezo" --resume latest
below "the loss after slopes" "$(last_loss "$out/mezo")" "$(first_loss "$out/mezo")"

"$plimsoll" train "${settings[@]}" --lora-r 4 --optim es --population 16 --zo-eps 0.02 --learning-rate 2e-2 --max-steps 60 \
    --logging-steps 20 --output-dir "$out/es"
below "the loss after ranks" "$(last_loss "$out/es")" "$(first_loss "$out/es")"
echo "the models are in $out/mezo and $out/es"
