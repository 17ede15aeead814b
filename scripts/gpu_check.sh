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
    timeout "$limit" "$@" > "$logs/$name.log" 2>&1
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
if [ "$quick" = 0 ]; then
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
