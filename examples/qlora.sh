#!/usr/bin/env bash
# Trains an adapter over a frozen base whose linear layers are kept in 4 bits, uses it, and merges it.
#
#   examples/qlora.sh [FOLDER]      writes FOLDER/wide, FOLDER/qlora and FOLDER/qlora-merged
set -euo pipefail
. "$(dirname "$0")/common.sh"

# The base of pretrain.sh is 96 wide; blocks of 4-bit codes have 64 numbers, so this one is 128 wide.
sed 's/"hidden_size": 96/"hidden_size": 128/' "$data/llama/config.json" > "$out/wide.json"
"$plimsoll" train --config "$out/wide.json" --tokenizer "$tokenizers/chatml" --data "$data/harbour.txt" \
    --seq-len 64 --global-batch 8 --memory 64MiB --threads 2 --max-steps 200 --learning-rate 3e-3 \
    --logging-steps 10 --output-dir "$out/wide"

settings=(--model "$out/wide" --data "$data/lights.jsonl" --seq-len 32 --global-batch 4 --memory 32MiB --threads 2)
settings+=(--lora-r 8 --recompute full)
"$plimsoll" plan "${settings[@]}" --load-in-4bit
below "the arena over 4 bits" "$(arena "${settings[@]}" --load-in-4bit)" "$(arena "${settings[@]}")"

"$plimsoll" train "${settings[@]}" --load-in-4bit --max-steps 100 --learning-rate 5e-3 --logging-steps 10 \
    --save-steps 50 --output-dir "$out/qlora" --stop-after 60
"$plimsoll" train "${settings[@]}" --load-in-4bit --max-steps 100 --learning-rate 5e-3 --logging-steps 10 \
    --save-steps 50 --output-dir "$out/qlora" --resume latest
below "the loss of completions" "$(last_loss "$out/qlora")" 0.2
"$plimsoll" export --merge --model "$out/wide" --adapter "$out/qlora" --out "$out/qlora-merged"

write() { "$plimsoll" generate "$@" --temperature 0 --max-new-tokens 16; }
for pair in port:red starboard:green stern:white; do
    expected="${pair%:*} = ${pair#*:} light"
    over_codes=$(write --model "$out/wide" --adapter "$out/qlora" --load-in-4bit --prompt "${pair%:*} =")
    same "over 4 bits" "$over_codes" "$expected"
    same "merged into the original" "$(write --model "$out/qlora-merged" --prompt "${pair%:*} =")" "$expected"
done
echo "the adapter is in $out/qlora, the merged model in $out/qlora-merged"
