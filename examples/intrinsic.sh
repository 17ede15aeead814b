#!/usr/bin/env bash
# Trains the base of pretrain.sh further in a random subspace of its weights, and looks for the smallest one that gains half
# as much as full training.
#
#   examples/intrinsic.sh [FOLDER]      needs FOLDER/base; writes FOLDER/subspace, FOLDER/subspace-merged and FOLDER/search
set -euo pipefail
. "$(dirname "$0")/common.sh"

settings=(--model "$out/base" --data "$data/lights.jsonl" --seq-len 32 --global-batch 8 --micro-batch 8 --memory 64MiB --threads 2)
below "the arena in a subspace" "$(arena "${settings[@]}" --intrinsic-dimension 500 --recompute full)" \
    "$(arena "${settings[@]}" --recompute full)"
run=("${settings[@]}" --intrinsic-dimension 500 --learning-rate 3e-3 --max-steps 60 --logging-steps 10 --save-steps 30)
"$plimsoll" train "${run[@]}" --output-dir "$out/subspace" --stop-after 30
"$plimsoll" train "${run[@]}" --output-dir "$out/subspace" --resume latest
below "the loss in 500 dimensions" "$(last_loss "$out/subspace")" "$(first_loss "$out/subspace")"
"$plimsoll" export --merge --model "$out/subspace" --out "$out/subspace-merged"

search=("${settings[@]}" --eval-split 0.2 --max-steps 30 --learning-rate 1e-3 --subspace-learning-rate 3e-3 --target 0.5)
"$plimsoll" intrinsic "${search[@]}" --output-dir "$out/search" 2>&1 | tee "$out/search.log"
grep -q "50 % of full training's gain: " "$out/search.log"
grep -q "<circle" "$out/search/intrinsic.html"
echo "ok: the search for a subspace has an answer and a curve"
