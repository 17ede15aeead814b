#!/usr/bin/env bash
# Prints registers, shared bytes and stack of every CUDA kernel, compiled without a GPU.
#
#   scripts/kernel_table.sh [--fetch-only] [ARCHITECTURE…]     default: sm_80 sm_89 sm_90a sm_120
#
# NVRTC comes from PyPI, pinned, into a folder of caches, once. To write the committed table again:
#   scripts/kernel_table.sh > crates/cuda/kernels/resources.txt
set -euo pipefail
cd "$(dirname "$0")/.."
version=13.0.88
folder=${XDG_CACHE_HOME:-$HOME/.cache}/plimsoll/nvrtc-$version
if [ ! -e "$folder/libnvrtc.so.13" ]; then
    wheel=$(mktemp -d)
    python3 -m pip download --quiet --no-deps --dest "$wheel" "nvidia-cuda-nvrtc==$version" >&2
    python3 -m zipfile -e "$wheel"/*.whl "$wheel/unpacked"
    mkdir -p "$folder"
    find "$wheel/unpacked" -name 'libnvrtc*.so*' ! -name '*.alt.*' -exec cp {} "$folder" \;
    rm -r "$wheel"
fi
if [ "${1:-}" = --fetch-only ]; then
    exit
fi
if [ $# = 0 ]; then
    set -- sm_80 sm_89 sm_90a sm_120
fi
cargo run --quiet -p plimsoll-cuda --example kernel_table -- "$@" -- "$folder"
