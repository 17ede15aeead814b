#!/usr/bin/env bash
# Prints engine and scratch of cuDNN's plans for attention on an H200, made without a GPU.
#
#   scripts/attention_plans.sh [--fetch-only | --check]
#
# Three libraries of cuDNN come from Python's package index, pinned, into a folder of caches, once (17 MB). `--fetch-only`
# stops there; `--check` compares with the committed table. To write that table again:
#   scripts/attention_plans.sh > crates/cuda/kernels/attention_plans.txt
set -euo pipefail
cd "$(dirname "$0")/.."
version=9.19.0.56
folder=${XDG_CACHE_HOME:-$HOME/.cache}/plimsoll/cudnn-$version
python3 scripts/wheel_files.py "nvidia-cudnn-cu13==$version" "$folder" \
    libcudnn.so.9=94f44e2e8fb2d4bca8c534b14f03ef84e095376dad72a257fd854377ef0b3427 \
    libcudnn_graph.so.9=e292c689093f22325bffb7f84e68c58067c062a5cdd5534914ac1449f0a4e23f \
    libcudnn_engines_runtime_compiled.so.9=1b0025cfeab270688d4563e287a5009389464ff140d0ebcf708314223523b99b
if [ "${1:-}" = --fetch-only ]; then
    exit
fi
if [ "${1:-}" = --check ]; then
    exec cargo test --quiet -p plimsoll-cuda --test attention_plans
fi
stand_ins=$(mktemp -d)
trap 'rm -r "$stand_ins"' EXIT
for library in driver:libcuda.so.1 compiler:libnvrtc.so.13; do
    cc -shared -fPIC -O1 "-Wl,-soname,${library#*:}" -o "$stand_ins/${library#*:}" "crates/cuda/described/${library%:*}.c"
done
cargo run --quiet -p plimsoll-cuda --example attention_plans -- crates/cuda/described/h200.json "$stand_ins" "$folder"
