#!/usr/bin/env bash
# Predicted against measured time of a step, with nothing known of the machine beforehand: the table of
# benchmarks/times_by_default_20261116.md. Takes some minutes; run it on a machine that does nothing else.
#
#   [STEPS=3] [ROUNDS=3] [MODELS="tiny s"] scripts/times_record.sh [plimsoll] [threads]
set -euo pipefail
program=${1:-target/release/plimsoll}
threads=${2:-0}
steps=${STEPS:-3}
rounds=${ROUNDS:-3}
caches=$(mktemp -d)
trap 'rm -rf "$caches"' EXIT
unset PLIMSOLL_COSTS

# One line: the model, predicted times of a step with modelled times and with those of an empty cache, the measured time.
row() {
    local name=$1
    shift
    local folder=$caches/$name
    mkdir -p "$folder"
    step() { XDG_CACHE_HOME=$folder "$program" bench step --threads "$threads" --steps "$steps" --lines 0 "$@" 2> /dev/null; }
    # Of all rounds the quickest, each a mean of several steps.
    local measured=
    for _ in $(seq "$rounds"); do
        local said predicted_now measured_now
        said=$(step "$@")
        measured_now=$(sed -n 's/^a step takes \([0-9.]*\) ms.*/\1/p' <<< "$said")
        predicted_now=$(sed -n 's/.*predicted \([0-9.]*\) ms$/\1/p' <<< "$said")
        [ -n "$measured" ] || cold=$predicted_now
        measured=$(awk -v a="${measured:-$measured_now}" -v b="$measured_now" 'BEGIN { print (a < b) ? a : b }')
    done
    local modelled
    modelled=$(step --costs modelled "$@" | sed -n 's/.*predicted \([0-9.]*\) ms$/\1/p')
    awk -v name="$name" -v modelled="$modelled" -v cold="$cold" -v measured="$measured" 'BEGIN {
        printf "| %s | %.0f | %+.0f %% | %.0f | %+.0f %% | %.0f |\n", name, modelled, 100 * (modelled / measured - 1),
            cold, 100 * (cold / measured - 1), measured }'
}

echo "$("$program" --version), $(uname -sr), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), threads: $threads, load $(cut -d' ' -f1 /proc/loadavg)"
echo "| model | modelled, ms | off by | by default, ms | off by | measured, ms |"
echo "|---|--:|--:|--:|--:|--:|"
for shape in "tiny" "s" "m" "gpt2 --seq-len 512" "bert-base --seq-len 256"; do
    # shellcheck disable=SC2086
    set -- $shape
    model=$1
    shift
    case " ${MODELS:-$model} " in *" $model "*) ;; *) continue ;; esac
    batch=8
    case $model in gpt2 | bert-base | m) batch=2 ;; esac
    data=()
    [ "$model" != bert-base ] || data=(--data examples/data/harbour.txt --tokenizer testdata/tokenizer/bert)
    row "$model" --model "$model" --global-batch "$batch" "${data[@]}" "$@"
    row "$model+lora" --model "$model" --global-batch "$batch" --lora-r 8 "${data[@]}" "$@"
done
