#!/usr/bin/env bash
# Judges this build on an NVIDIA GPU: stages in order, each with a time limit, each ending in one line of JSON.
#
#   scripts/gpu_check.sh [--quick] FOLDER        FOLDER holds the programs `plimsoll` and `gpu_stages`
#
# Programs are built elsewhere (a GPU machine may have no Rust), stripped:
#   CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=true cargo build --release -p plimsoll-cli
#   … cargo build --release -p plimsoll-cuda --example gpu_stages
# Logs of the stages go to $OUT if it is set, else to ./gpu_check. With SANITIZER=…/compute-sanitizer (the wheel
# nvidia-cuda-sanitizer-api has it) the quick cases also run under its memory checker.
set -u
quick=0
if [ "${1:-}" = --quick ]; then quick=1; shift; fi
folder=${1:?usage: scripts/gpu_check.sh [--quick] FOLDER}
logs=${OUT:-gpu_check}
mkdir -p "$logs"
cache=$(mktemp -d)
export XDG_CACHE_HOME=$cache
failed=0

# stage NAME SECONDS COMMAND…: a line of JSON with its status and seconds; the last lines of its log where it fails.
stage() {
    local name=$1 limit=$2 start end status
    shift 2
    start=$(date +%s.%N)
    if [ "$(type -t "$1")" = function ]; then
        # `train` limits the runs of a function.
        "$@" > "$logs/$name.log" 2>&1
    else
        timeout "$limit" "$@" > "$logs/$name.log" 2>&1
    fi
    status=$?
    end=$(date +%s.%N)
    printf '{"stage":"%s","status":%d,"seconds":%.1f,"log":"%s.log"}\n' "$name" "$status" \
        "$(echo "$end $start" | awk '{ print $1 - $2 }')" "$name"
    if [ "$status" -ne 0 ]; then
        failed=$((failed + 1))
        grep -E 'FAIL|error' "$logs/$name.log" | head -40
        tail -n 3 "$logs/$name.log"
    fi
}

# train NAME ARGUMENTS…: a run of random weights and tokens within the stage's limit, its steps in $cache/NAME.json.
train() {
    local name=$1
    shift
    timeout "$limit" "$folder/plimsoll" train --seed 1 --logging-steps 1 --json --report-to none --output-dir "$cache/$name" "$@" \
        > "$cache/$name.json"
    local status=$?
    rm -rf "${cache:?}/$name"
    return "$status"
}

# field NAME KEY: that number of every step of a run.
field() { grep '"loss"' "$cache/$1.json" | grep -o "\"$2\":[0-9.e+-]*" | cut -d: -f2; }

# parity MODEL ARGUMENTS…: ten steps on the GPU in f32 have the losses of the processor, which tests compare with PyTorch's.
parity() {
    local model=$1
    shift
    for device in cpu cuda; do
        train "$model-$device" --model "$model" --max-steps 10 --global-batch 4 --memory 4GiB --device "$device" "$@" || return 1
    done
    paste <(field "$model-cpu" loss) <(field "$model-cuda" loss) | awk -v model="$model" '
        { d = ($2 - $1) / $1; d = d < 0 ? -d : d; if (d > worst) worst = d }
        END { printf "{\"model\":\"%s\",\"steps\":%d,\"apart\":%.1e}\n", model, NR, worst; exit !(NR == 10 && worst < 1e-5) }'
}

# budget GIB STEPS ARGUMENTS…: the driver's count of the card stays below the budget and is one number from the second step
# on, with an evaluation and a save between.
budget() {
    local gib=$1 steps=$2
    shift 2
    train "budget-$gib" --memory "${gib}GiB" --max-steps "$steps" --device cuda --eval-steps 5 --max-eval-samples 8 --save-steps 10 \
        --save-total-limit 1 "$@" || return 1
    field "budget-$gib" memory_bytes | tail -n +2 | sort -n | uniq | awk -v gib="$gib" '
        { most = $1 } END { printf "{\"budget_gib\":%s,\"bytes\":%d,\"figures\":%d}\n", gib, most, NR
        exit !(NR == 1 && most <= gib * 2 ^ 30) }' || return 1
}

# speed GIB TOKENS ARGUMENTS…: the fastest step in a budget, and at least that many tokens a second.
speed() {
    local gib=$1 least=$2
    shift 2
    train "speed-$gib" --memory "${gib}GiB" --max-steps 6 --global-batch 32 --device cuda "$@" || return 1
    field "speed-$gib" tokens_per_second | sort -n | tail -n 1 | awk -v gib="$gib" -v least="$least" '
        { printf "{\"budget_gib\":%s,\"tokens_per_second\":%.0f,\"wanted\":%s}\n", gib, $1, least; exit !($1 >= least) }'
}
half=(--bf16 --weights-dtype bf16 --gradients-dtype bf16 --moments-dtype bf16)
large=(--model llama-3.2-1b --seq-len 2048 "${half[@]}")

nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv,noheader || {
    echo '{"stage":"driver","status":1}'
    exit 1
}
stage conformance 240 "$folder/plimsoll" check --device cuda
tail -n 1 "$logs/conformance.log"
if grep -qE '^([0-9]+) of \1 cases hold' "$logs/conformance.log"; then
    # Lines for crates/cuda/kernels/judged.txt.
    card=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
    "$folder/gpu_stages" kernels "$cache" | sed "s/\$/ $(date +%F) $card/" > "$logs/judged.txt"
fi
stage faults 60 "$folder/gpu_stages" faults "$cache/plimsoll/cubin"
stage draws 60 "$folder/gpu_stages" draws "$cache/plimsoll/cubin"
stage ranks 60 "$folder/gpu_stages" ranks "$cache/plimsoll/cubin"
cat "$logs/ranks.log"
stage memory 60 "$folder/gpu_stages" memory "$cache/plimsoll/cubin"
cat "$logs/memory.log"
if [ -n "${SANITIZER:-}" ]; then
    # A kernel is looked for in one module after the other: that a call finds none is no error of ours.
    memcheck=("$SANITIZER" --tool memcheck --report-api-errors no --error-exitcode 9)
    for family in norm attention embedding head adamw softmax sort_by combine grouped balance; do
        stage "memcheck-$family" 120 "${memcheck[@]}" "$folder/plimsoll" check --device cuda "$family"
    done
else
    echo '{"stage":"memcheck","status":"NOT RUN","why":"SANITIZER is not set"}'
fi
stage parity-tiny 60 parity tiny
tail -n 1 "$logs/parity-tiny.log"
stage budget-small 60 budget 2 20 --model s --seq-len 256 --global-batch 8
tail -n 1 "$logs/budget-small.log"
if [ "$quick" = 0 ]; then
    for model in s tiny-moe; do
        stage "parity-$model" 120 parity "$model"
        tail -n 1 "$logs/parity-$model.log"
    done
    for gib in 12 16 24 40; do
        stage "budget-$gib" 120 budget "$gib" 20 --global-batch 8 "${large[@]}"
        tail -n 1 "$logs/budget-$gib.log"
    done
    # Figures of an H200; another card is slower, and its lines say by how much.
    stage speed-22 60 speed 22 55000 "${large[@]}"
    tail -n 1 "$logs/speed-22.log"
    stage speed-16 60 speed 16 50000 "${large[@]}"
    tail -n 1 "$logs/speed-16.log"
    stage products 120 "$folder/gpu_stages" products "$cache/plimsoll/cubin"
    cat "$logs/products.log"
    stage attention 120 "$folder/gpu_stages" attention "$cache/plimsoll/cubin"
    cat "$logs/attention.log"
    stage experts 120 "$folder/gpu_stages" experts "$cache/plimsoll/cubin"
    cat "$logs/experts.log"
    # Half a second for each plan, whose kernels are compiled here.
    stage plans 240 "$folder/gpu_stages" plans "$cache/plimsoll/cubin"
    cat "$logs/plans.log"
fi
rm -rf "$cache"
printf '{"stage":"all","failed":%d}\n' "$failed"
exit "$((failed > 0))"
