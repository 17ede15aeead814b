#!/usr/bin/env bash
# A small BERT learns words, then to tell two kinds of sentences apart; judged by ships it has not read of.
#
#   examples/classify.sh [FOLDER]      writes FOLDER/bert and FOLDER/classifier
set -euo pipefail
. "$(dirname "$0")/common.sh"

settings=(--data "$data/ships_train.jsonl" --seq-len 32 --global-batch 16 --memory 64MiB --threads 2 --logging-steps 20)
"$plimsoll" train --config "$data/bert/config.json" --tokenizer "$tokenizers/bert" "${settings[@]}" \
    --max-steps 60 --learning-rate 3e-3 --output-dir "$out/bert"
"$plimsoll" train --model "$out/bert" --task classify "${settings[@]}" \
    --eval-data "$data/ships_valid.jsonl" --eval-steps 30 \
    --max-steps 120 --learning-rate 1e-3 --output-dir "$out/classifier"

# Guessing between two would be ln 2 = 0.69.
below "the validation loss" "$(last_eval_loss "$out/classifier")" 0.2
grep -q '"1": "sound"' "$out/classifier/config.json"
echo "the classifier is in $out/classifier"
