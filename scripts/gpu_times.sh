#!/usr/bin/env bash
# Times of ops on an NVIDIA GPU, measured in steps of models of several sizes: the file for crates/train/times.
#
#   scripts/gpu_times.sh PLIMSOLL FILE        PLIMSOLL is the program, FILE is written
#
# Takes about four minutes on an H200. Seconds are kept to four digits.
set -eu
program=${1:?usage: scripts/gpu_times.sh PLIMSOLL FILE}
file=${2:?usage: scripts/gpu_times.sh PLIMSOLL FILE}
kept=$(mktemp -d)
half="--weights-dtype bf16 --gradients-dtype bf16 --moments-dtype bf16"

# ops MODEL LENGTH ROWS FLAGS…
ops() {
    local model=$1 length=$2 rows=$3
    shift 3
    echo "$model, $rows x $length $*"
    # Compiled kernels are shared; times are kept apart.
    PLIMSOLL_COSTS= XDG_CACHE_HOME=$kept "$program" bench ops --device cuda --bf16 --model "$model" --seq-len "$length" \
        --global-batch "$rows" --micro-batch "$rows" "$@" > "$kept/log" 2>&1 || { tail -n 3 "$kept/log"; exit 1; }
}

for rows in 1 2 4 8; do ops llama-3.2-1b 2048 "$rows" $half; done
ops llama-3.2-1b 2048 2
for rows in 1 4; do ops llama-3.2-1b 2048 "$rows" --weights-dtype bf16 --lora-r 16; done
ops llama-3.1-8b 4096 1 --weights-dtype bf16 --lora-r 16
for rows in 2 16; do ops qwen2.5-0.5b 1024 "$rows" $half; done
for rows in 4 16; do ops gpt2 1024 "$rows" $half; done
ops s 256 16 $half

python3 - "$kept"/plimsoll/times-*.json "$file" <<'P'
import json, sys
times = json.load(open(sys.argv[1]))
rounded = lambda number: number if number is None else float(f"{number:.4g}")
times["ops"] = {op: [rounded(number) for number in row[:4]] + row[4:] for op, row in times["ops"].items()}
rows = ",\n".join(f"{json.dumps(op)}:{json.dumps(row, separators=(',', ':'))}" for op, row in times["ops"].items())
head = json.dumps({**times, "ops": {}}, separators=(",", ":"))
open(sys.argv[2], "w").write(head[:-2] + "\n" + rows + "\n}}\n")
print(len(times["ops"]), "ops of", times["machine"])
P
rm -rf "$kept"
