#!/usr/bin/env bash
# A small BERT learns words, then to tell two kinds of sentences apart; judged by ships it has not read of.
#
#   examples/classify.sh [FOLDER]      writes FOLDER/bert and FOLDER/classifier
set -euo pipefail
. "$(dirname "$0")/common.sh"

sentences() {
    local ship state
    for ship in "$@"; do
        for state in "is dry and light" "floats high" "keeps its line over the water" "carries no more than it may"; do
            printf '{"text": "The %s %s.", "label": "sound"}\n' "$ship" "$state"
        done
        for state in "takes in water" "lies too deep" "has its line under the water" "carries more than it may"; do
            printf '{"text": "The %s %s.", "label": "laden"}\n' "$ship" "$state"
        done
    done
}
sentences ship boat hull barge ferry cutter launch coaster trawler > "$out/train.jsonl"
sentences schooner tanker > "$out/valid.jsonl"
settings=(--seq-len 32 --global-batch 16 --memory 64MiB --threads 2 --logging-steps 20)

"$plimsoll" train --config "$data/bert/config.json" --tokenizer "$tokenizers/bert" --data "$out/train.jsonl" \
    "${settings[@]}" --max-steps 60 --learning-rate 3e-3 --output-dir "$out/bert"
"$plimsoll" train --model "$out/bert" --task classify --data "$out/train.jsonl" --eval-data "$out/valid.jsonl" \
    "${settings[@]}" --max-steps 120 --learning-rate 1e-3 --eval-steps 30 --output-dir "$out/classifier"

# Guessing between two would be ln 2 = 0.69.
below "the validation loss" "$(last_eval_loss "$out/classifier")" 0.2
grep -q '"1": "sound"' "$out/classifier/config.json"
echo "the classifier is in $out/classifier"
