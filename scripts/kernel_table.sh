#!/usr/bin/env bash
# Prints registers, shared bytes and stack of every CUDA kernel, compiled without a GPU.
#
#   scripts/kernel_table.sh [--fetch-only] [ARCHITECTURE…]     default: sm_80 sm_89 sm_90a sm_120
#
# NVRTC comes from Python's package index, pinned, into a folder of caches, once (45 MB). To write the committed table again:
#   scripts/kernel_table.sh > crates/cuda/kernels/resources.txt
set -euo pipefail
cd "$(dirname "$0")/.."
version=13.0.88
folder=${XDG_CACHE_HOME:-$HOME/.cache}/plimsoll/nvrtc-$version
python3 scripts/wheel_files.py "nvidia-cuda-nvrtc==$version" "$folder" \
    libnvrtc-builtins.so.13.0=91dcd944d01da9c0f08fff5d779db136a47f6d62bdb63bae900d2f481e92c3a2 \
    libnvrtc.so.13=a49e67e8e74590f1e98de55c39c6287efd3f59e3c3797464d7bbe0fe01349b11
if [ "${1:-}" = --fetch-only ]; then
    exit
fi
if [ $# = 0 ]; then
    set -- sm_80 sm_89 sm_90a sm_120
fi
cargo run --quiet -p plimsoll-cuda --example kernel_table -- "$@" -- "$folder"
