#!/usr/bin/env bash
# Judges this build on an NVIDIA GPU: stages in order, each with a time limit, each ending in one line of JSON.
#
#   scripts/gpu_check.sh [--quick|--ranks] FOLDER        FOLDER holds the programs `plimsoll` and `gpu_stages`
#
# Programs are built elsewhere (a GPU machine may have no Rust), stripped:
#   CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=true cargo build --release -p plimsoll-cli
#   … cargo build --release -p plimsoll-cuda --example gpu_stages
# Logs of the stages go to $OUT if it is set, else to ./gpu_check. The quick form ends in a minute; with --ranks only the stages of
# ranks run, which need NCCL. The quick cases also run under the memory checker of compute-sanitizer: $SANITIZER, or the one on the
# PATH, of a toolkit or of Python's packages (the wheel nvidia-cuda-sanitizer-api has it); SANITIZER=none leaves it out. Folders of
# runs, gigabytes each, go to memory where it has room.
set -u
quick=0 only_ranks=0
if [ "${1:-}" = --quick ]; then quick=1; shift; fi
if [ "${1:-}" = --ranks ]; then only_ranks=1; shift; fi
folder=${1:?usage: scripts/gpu_check.sh [--quick|--ranks] FOLDER}
logs=${OUT:-gpu_check}
mkdir -p "$logs"
cache=$(mktemp -d)
export XDG_CACHE_HOME=$cache
failed=0

# roomy FOLDER: whether the folder has room for a model of a billion parameters with two checkpoints.
roomy() {
    local free
    free=$(df --output=avail -B1G "$1" 2> /dev/null | tail -n 1)
    [ "${free:-0}" -ge "${ROOM_GB:-24}" ]
}

# Where folders of runs lie: a disk may take a minute for one that memory takes in a second.
runs=$cache
if roomy "${MEMORY_FOLDER:-/dev/shm}"; then runs=$(mktemp -d "${MEMORY_FOLDER:-/dev/shm}/gpu_check.XXXXXX"); fi
trap 'rm -rf "$cache" "$runs"' EXIT

# sanitizer: the path of compute-sanitizer, or nothing.
sanitizer() {
    local found
    if [ -n "${SANITIZER:-}" ]; then
        [ "$SANITIZER" = none ] || echo "$SANITIZER"
        return
    fi
    for found in "$(command -v compute-sanitizer)" "${CUDA_HOME:-/usr/local/cuda}"/bin/compute-sanitizer \
        "$(dirname "$(command -v python3)")"/../lib/python3*/site-packages/nvidia/*/bin/compute-sanitizer; do
        if [ -x "$found" ]; then echo "$found"; return; fi
    done
}

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

# train NAME ARGUMENTS…: a run of random weights, and of random tokens unless --data says otherwise, within the stage's limit.
# Its steps are in $cache/NAME.json; it writes no folder.
train() {
    local name=$1
    shift
    timeout "$limit" "$folder/plimsoll" train --seed 1 --logging-steps 1 --json --report-to none "$@" > "$cache/$name.json"
}

# kept NAME ARGUMENTS…: the same with the folder $runs/NAME.
kept() { train "$@" --output-dir "$runs/$1"; }

# field NAME KEY: that number of every step of a run.
field() { grep '"loss"' "$cache/$1.json" | grep -o "\"$2\":[0-9.e+-]*" | cut -d: -f2; }

# ended NAME KEY: that number of a run's end.
ended() { grep '"event":"end"' "$cache/$1.json" | grep -o "\"$2\":[0-9.e+-]*" | cut -d: -f2; }

# same NAME STEPS EXPECTED FOUND: that many steps of two runs, of which either may be several joined by `+`, have the same losses
# within 1e-5 of them.
same() {
    local name=$1 steps=$2 expected=$3 found=$4 run
    for run in "$expected" "$found"; do
        for part in ${run//+/ }; do field "$part" loss; done > "$cache/losses-$run"
    done
    paste "$cache/losses-$expected" "$cache/losses-$found" | awk -v name="$name" -v steps="$steps" '
        NF != 2 { uneven = 1 }
        { d = ($2 - $1) / $1; d = d < 0 ? -d : d; if (d > worst) worst = d }
        END { printf "{\"model\":\"%s\",\"steps\":%d,\"apart\":%.1e}\n", name, NR, worst
              exit !(NR == steps && !uneven && worst < 1e-5) }'
}

# parity MODEL ARGUMENTS…: ten steps on the GPU in f32 have the losses of the processor, which tests compare with PyTorch's.
parity() {
    local model=$1
    shift
    for device in cpu cuda; do
        train "$model-$device" --model "$model" --max-steps 10 --global-batch 4 --memory 4GiB --device "$device" "$@" || return 1
    done
    same "$model" 10 "$model-cpu" "$model-cuda"
}

# resume: a run that begins on one device and goes on with the other has the losses of one that stays on the processor.
resume() {
    local common=(--model tiny --max-steps 10 --global-batch 4 --memory 4GiB) first second
    train whole "${common[@]}" --device cpu || return 1
    for first in cpu cuda; do
        if [ "$first" = cpu ]; then second=cuda; else second=cpu; fi
        kept "begun-$first" "${common[@]}" --device "$first" --stop-after 5 || return 1
        mv "$runs/begun-$first" "$runs/resumed-$second"
        kept "resumed-$second" "${common[@]}" --device "$second" --resume latest || return 1
        rm -rf "${runs:?}/resumed-$second"
        same "tiny $first, then $second" 10 whole "begun-$first+resumed-$second" || return 1
    done
}

# generate: a trained model of f32 weights writes the same text on both devices.
generate() {
    local device
    for _ in $(seq 200); do echo "the keel of a ship is laid first, and the planks follow the frames."; done > "$cache/text.txt"
    kept writer --model tiny --seq-len 64 --data "$cache/text.txt" --max-steps 60 --global-batch 8 --memory 4GiB --device cuda || return 1
    for device in cpu cuda; do
        timeout "$limit" "$folder/plimsoll" generate --model "$runs/writer" --prompt "the keel" --temperature 0 --max-new-tokens 40 \
            --device "$device" --memory 4GiB > "$cache/text-$device" || return 1
    done
    rm -rf "${runs:?}/writer"
    # Bytes that are no text must not break the line.
    printf '{"bytes":%d,"same":%s}\n' "$(wc -c < "$cache/text-cpu")" "$(cmp -s "$cache/text-cpu" "$cache/text-cuda" && echo true || echo false)"
    [ -s "$cache/text-cpu" ] && cmp "$cache/text-cpu" "$cache/text-cuda"
}

# deterministic MODEL ARGUMENTS…: two runs, full recompute, and a budget that decides itself end with the same weights.
deterministic() {
    local hash first="" name how
    local -A ways=([none]="--recompute none --memory 40GiB" [again]="--recompute none --memory 40GiB"
        [full]="--recompute full --memory 40GiB" [budget]="--memory 13GiB")
    for name in none again full budget; do
        read -ra how <<< "${ways[$name]}"
        kept "bits-$name" --max-steps 3 --global-batch 8 --micro-batch 2 --device cuda --full-determinism "${how[@]}" "$@" || return 1
        hash=$(cat "$runs/bits-$name"/model*.safetensors | sha256sum | cut -d' ' -f1)
        local bytes
        bytes=$(cat "$runs/bits-$name"/model*.safetensors | wc -c)
        rm -rf "${runs:?}/bits-$name"
        printf '{"way":"%s","bytes":%d,"sha256":"%s"}\n' "$name" "$bytes" "$hash"
        [ "$bytes" -gt 0 ] || return 1
        first=${first:-$hash}
        [ "$hash" = "$first" ] || return 1
    done
}

# budget GIB STEPS ARGUMENTS…: the driver's count of the card stays below the budget and is one number from the second step
# on, with an evaluation and a save between; the arena is used to the planned byte.
budget() {
    local gib=$1 steps=$2 status
    shift 2
    kept "budget-$gib" --memory "${gib}GiB" --max-steps "$steps" --device cuda --eval-steps 5 --max-eval-samples 8 --save-steps 10 \
        --save-total-limit 1 "$@"
    status=$?
    rm -rf "${runs:?}/budget-$gib"
    [ "$status" -eq 0 ] || return 1
    field "budget-$gib" memory_bytes | tail -n +2 | sort -n | uniq | awk -v gib="$gib" \
        -v planned="$(ended "budget-$gib" planned_peak_bytes)" -v used="$(ended "budget-$gib" measured_peak_bytes)" '
        { most = $1 }
        END { printf "{\"budget_gib\":%s,\"bytes\":%d,\"figures\":%d,\"arena_planned\":%d,\"arena_used\":%d}\n", gib, most, NR, planned, used
              exit !(NR == 1 && most <= gib * 2 ^ 30 && planned > 0 && planned == used) }'
}

# fresh: a folder for caches that holds the compiled kernels and no times.
fresh() {
    local home
    home=$(mktemp -d "$cache/XXXXXX")
    mkdir -p "$home/plimsoll"
    ln -s "$cache/plimsoll/cubin" "$home/plimsoll/cubin"
    echo "$home"
}

# foretold HOME GIB TOLERANCE ARGUMENTS…: the time of a step as it was predicted from the times in a folder for caches.
foretold() {
    local home=$1 gib=$2 tolerance=$3
    shift 3
    XDG_CACHE_HOME=$home timeout "$limit" "$folder/plimsoll" bench step --memory "${gib}GiB" --device cuda --lines 0 "$@" \
        > "$home/out" || return 1
    cat "$home/out"
    # a step takes 1019.500 ms, 64281 tokens/s; predicted 995.200 ms
    awk -v gib="$gib" -v tolerance="$tolerance" '
        /^a step takes / { measured = $4; predicted = $9 }
        END { ratio = measured > 0 ? predicted / measured : 0
              printf "{\"budget_gib\":%s,\"measured_ms\":%s,\"predicted_ms\":%s,\"ratio\":%.3f,\"tolerance\":%s}\n", gib, measured + 0,
                  predicted + 0, ratio, tolerance
              exit !(ratio >= 1 - tolerance && ratio <= 1 + tolerance) }' "$home/out"
}

# predicted GIB TOLERANCE ARGUMENTS…: the same from the committed times.
predicted() { foretold "$(fresh)" "$@"; }

# speed GIB TOKENS ARGUMENTS…: the fastest step in a budget, and at least that many tokens a second.
speed() {
    local gib=$1 least=$2
    shift 2
    train "speed-$gib" --memory "${gib}GiB" --max-steps 6 --global-batch 32 --device cuda "$@" || return 1
    field "speed-$gib" tokens_per_second | sort -n | tail -n 1 | awk -v gib="$gib" -v least="$least" '
        { printf "{\"budget_gib\":%s,\"tokens_per_second\":%.0f,\"wanted\":%s}\n", gib, $1, least; exit !($1 >= least) }'
}

# world FORM ARGUMENTS…: a run alone, then a world of one rank at each stage of ZeRO, whose exchanges run by NCCL. Losses of all steps are
# those of the run alone to the bit, with an evaluation and a save between; the arena is used to the planned byte, and the
# driver's count of the card is one number within the budget from the second step on.
world() {
    local form=$1 zero name how gib=3
    shift
    for zero in alone 0 1 2 3; do
        name="world-$form-$zero"
        how=(--ranks 1 --zero-stage "$zero")
        [ "$zero" = alone ] && how=(--update separate)
        kept "$name" --model s --seq-len 256 --global-batch 8 --micro-batch 8 --max-steps 10 --memory "${gib}GiB" --max-grad-norm 0 \
            --device cuda --full-determinism --eval-steps 5 --max-eval-samples 8 --save-steps 5 --save-total-limit 1 "${how[@]}" "$@" \
            2> "$cache/$name.err"
        local status=$?
        rm -rf "${runs:?}/$name"
        cat "$cache/$name.err"
        [ "$status" = 0 ] || return 1
        paste <(field "world-$form-alone" loss) <(field "$name" loss) > "$cache/losses"
        field "$name" memory_bytes | tail -n +2 | sort -n | uniq | awk -v form="$form" -v zero="$zero" -v gib="$gib" \
            -v nccl="$(sed -n 's/.*exchange values by NCCL \([0-9.]*\).*/\1/p' "$cache/$name.err" | head -n 1)" \
            -v steps="$(wc -l < "$cache/losses")" -v same="$(awk 'NF == 2 && $1 == $2' "$cache/losses" | wc -l)" \
            -v planned="$(ended "$name" planned_peak_bytes)" -v used="$(ended "$name" measured_peak_bytes)" '
            { most = $1 }
            END { printf "{\"form\":\"%s\",\"zero_stage\":\"%s\",\"nccl\":\"%s\",\"steps\":%d,\"same_losses\":%d,\"budget_gib\":%s,\"bytes\":%d,\"figures\":%d,\"arena_planned\":%d,\"arena_used\":%d}\n",
                      form, zero, nccl, steps, same, gib, most, NR, planned, used
                  exit !(steps == 10 && same == 10 && (zero == "alone") == (nccl == "") && NR == 1 && most <= gib * 2 ^ 30 &&
                         planned > 0 && planned == used) }' || return 1
    done
}

# one_gpu: two processes on one GPU, which NCCL refuses, are refused before it is asked, by rank 0 and with the reason.
one_gpu() {
    local rank processes=() failed=0
    for rank in 0 1; do
        RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 CUDA_VISIBLE_DEVICES=0 \
            timeout "$limit" "$folder/plimsoll" train --model tiny --device cuda --memory 2GiB --max-steps 2 --global-batch 4 \
            --report-to none --output-dir "$runs/one-gpu" > /dev/null 2> "$cache/one-gpu-$rank.err" &
        processes+=($!)
    done
    for rank in 0 1; do wait "${processes[$rank]}" || failed=$((failed + 1)); done
    cat "$cache"/one-gpu-?.err
    printf '{"processes":2,"failed":%d,"refused":%s}\n' "$failed" \
        "$(grep -q 'ranks 0 and 1 are on one GPU' "$cache/one-gpu-0.err" && echo true || echo false)"
    [ "$failed" = 2 ] && grep -q 'ranks 0 and 1 are on one GPU' "$cache/one-gpu-0.err"
}

# ranks_stages: exchanges by NCCL, one by one and in training.
ranks_stages() {
    local form
    stage ranks 60 "$folder/gpu_stages" ranks "$cache/plimsoll/cubin"
    cat "$logs/ranks.log"
    stage nccl-one-gpu 120 one_gpu
    tail -n 1 "$logs/nccl-one-gpu.log"
    for form in f32 bf16; do
        local how=()
        [ "$form" = bf16 ] && how=(--bf16)
        stage "nccl-ranks-$form" 60 world "$form" "${how[@]}"
        grep '"zero_stage"' "$logs/nccl-ranks-$form.log"
    done
    stage nccl-budget 60 budget 2 20 --model s --seq-len 256 --global-batch 8 --ranks 1 --zero-stage 3
    tail -n 1 "$logs/nccl-budget.log"
}

# small MIB: the program as it is carried here, without its debug information, takes no more.
small() {
    local bytes
    bytes=$(stat -c %s "$folder/plimsoll") || return 1
    printf '{"bytes":%d,"at_most":%d}\n' "$bytes" "$(($1 << 20))"
    [ "$bytes" -le "$(($1 << 20))" ]
}
half=(--bf16 --weights-dtype bf16 --gradients-dtype bf16 --moments-dtype bf16)
large=(--model llama-3.2-1b --seq-len 2048 "${half[@]}")

nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv,noheader || {
    echo '{"stage":"driver","status":1}'
    exit 1
}
if [ "$only_ranks" = 1 ]; then
    ranks_stages
    rm -rf "$cache"
    printf '{"stage":"all","failed":%d}\n' "$failed"
    exit "$((failed > 0))"
fi
stage size 10 small 40
tail -n 1 "$logs/size.log"
if [ "$quick" = 1 ]; then
    stage conformance 60 "$folder/plimsoll" check --device cuda --quick
else
    stage conformance 240 "$folder/plimsoll" check --device cuda
fi
tail -n 1 "$logs/conformance.log"
if [ "$quick" = 0 ] && grep -qE '^([0-9]+) of \1 cases hold' "$logs/conformance.log"; then
    # Lines for crates/cuda/kernels/judged.txt.
    card=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
    "$folder/gpu_stages" kernels "$cache" | sed "s/\$/ $(date +%F) $card/" > "$logs/judged.txt"
fi
stage faults 60 "$folder/gpu_stages" faults "$cache/plimsoll/cubin"
stage draws 60 "$folder/gpu_stages" draws "$cache/plimsoll/cubin"
stage lost 60 "$folder/gpu_stages" lost "$cache/plimsoll/cubin"
if [ "$quick" = 1 ]; then
    stage ranks 60 "$folder/gpu_stages" ranks "$cache/plimsoll/cubin"
    cat "$logs/ranks.log"
fi
stage memory 60 "$folder/gpu_stages" memory "$cache/plimsoll/cubin"
cat "$logs/memory.log"
checker=$(sanitizer)
if [ -n "$checker" ]; then
    # A kernel is looked for in one module after the other: that a call finds none is no error of ours.
    memcheck=("$checker" --tool memcheck --report-api-errors no --error-exitcode 9)
    stage memcheck 400 "${memcheck[@]}" "$folder/plimsoll" check --device cuda --quick
    tail -n 1 "$logs/memcheck.log"
else
    echo '{"stage":"memcheck","status":"NOT RUN","why":"no compute-sanitizer was found; SANITIZER can name one"}'
fi
stage parity-tiny 60 parity tiny
tail -n 1 "$logs/parity-tiny.log"
stage budget-small 60 budget 2 20 --model s --seq-len 256 --global-batch 8
tail -n 1 "$logs/budget-small.log"
stage resume 60 resume
grep '"model"' "$logs/resume.log"
stage generate 60 generate
tail -n 1 "$logs/generate.log"
if [ "$quick" = 0 ]; then
    for model in s tiny-moe; do
        stage "parity-$model" 120 parity "$model"
        tail -n 1 "$logs/parity-$model.log"
    done
    ranks_stages
    for gib in 12 16 24 40; do
        stage "budget-$gib" 120 budget "$gib" 20 --global-batch 8 "${large[@]}"
        tail -n 1 "$logs/budget-$gib.log"
    done
    stage determinism 120 deterministic "${large[@]}"
    grep '"way"' "$logs/determinism.log"
    for gib in 12 16 24 40; do
        stage "prediction-$gib" 60 predicted "$gib" 0.10 --global-batch 32 "${large[@]}"
        tail -n 1 "$logs/prediction-$gib.log"
    done
    # A shape that had no part in the committed times.
    stage prediction-other 60 predicted 12 0.15 --global-batch 16 --model qwen3-0.6b --seq-len 2048 "${half[@]}"
    tail -n 1 "$logs/prediction-other.log"
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
printf '{"stage":"all","failed":%d}\n' "$failed"
exit "$((failed > 0))"
