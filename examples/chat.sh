#!/usr/bin/env bash
# Fine-tunes the model of pretrain.sh with conversations, so that it answers in its chat template.
#
#   examples/chat.sh [FOLDER]      writes FOLDER/chat; starts from FOLDER/base, which pretrain.sh makes if need be
set -euo pipefail
. "$(dirname "$0")/common.sh"
[ -e "$out/base/model.safetensors" ] || "$here/pretrain.sh" "$out"

"$plimsoll" train --model "$out/base" --data "$data/chat.jsonl" \
    --seq-len 128 --global-batch 4 --memory 64MiB --threads 2 \
    --num-train-epochs 40 --learning-rate 2e-3 --logging-steps 10 --output-dir "$out/chat"

answer() { "$plimsoll" generate --model "$out/chat" --chat --prompt "$1" --temperature 0; }
below "the loss of answers" "$(last_loss "$out/chat")" 0.1
same "port" "$(answer "What is port?")" "The left side of a ship."
same "the keel" "$(answer "What is the keel?")" "The long beam at the bottom."
echo "the model is in $out/chat"
