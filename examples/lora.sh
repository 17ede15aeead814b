#!/usr/bin/env bash
# Trains an adapter for the model of pretrain.sh in a small budget, uses it, and merges it.
#
#   examples/lora.sh [FOLDER]      writes FOLDER/adapter and FOLDER/merged; starts from FOLDER/base, which pretrain.sh
#                                  makes if need be
set -euo pipefail
. "$(dirname "$0")/common.sh"
[ -e "$out/base/model.safetensors" ] || "$here/pretrain.sh" "$out"

settings=(--model "$out/base" --data "$data/lights.jsonl" --seq-len 32 --global-batch 4 --memory 32MiB --threads 2)
"$plimsoll" plan "${settings[@]}" --lora-r 8
below "the arena with adapters" "$(arena "${settings[@]}" --lora-r 8)" "$(arena "${settings[@]}")"

"$plimsoll" train "${settings[@]}" --lora-r 8 \
    --max-steps 100 --learning-rate 5e-3 --logging-steps 10 --output-dir "$out/adapter"
"$plimsoll" export --merge --model "$out/base" --adapter "$out/adapter" --out "$out/merged"

below "the loss of completions" "$(last_loss "$out/adapter")" 0.2
write() { "$plimsoll" generate "$@" --temperature 0 --max-new-tokens 16; }
for word in port starboard stern; do
    with_adapter=$(write --model "$out/base" --adapter "$out/adapter" --prompt "$word =")
    same "$word, merged" "$(write --model "$out/merged" --prompt "$word =")" "$with_adapter"
done
same "the light at the stern" "$with_adapter" "stern = white light"
echo "the adapter is in $out/adapter, the merged model in $out/merged"
