#!/usr/bin/env bash
# Tests ranks that are processes of MPI: builds the program with the feature `mpi`, and runs crates/cli/tests/mpi.rs and the short
# form of crates/cli/tests/kills.rs.
#
#   scripts/mpi.sh [--install-only]
#
# It needs Open MPI with its headers, and libclang, which reads these. Under CI=true they are installed where they are
# missing, from Debian's packages (55 MB), and a machine that cannot have them fails. Elsewhere nothing is installed unasked,
# and the tests are reported as NOT RUN.
set -euo pipefail
cd "$(dirname "$0")/.."

missing() {
    command -v mpicc > /dev/null || echo libopenmpi-dev
    command -v mpirun > /dev/null || echo openmpi-bin
    # libclang-cpp is another library.
    compgen -G '/usr/lib/llvm-*/lib/libclang.so*' > /dev/null || [ -n "${LIBCLANG_PATH:-}" ] || echo libclang-dev
}

packages=$(missing)
if [ -n "$packages" ] && [ "${CI:-}" = true ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q > /dev/null
    # shellcheck disable=SC2086 # one word for each package
    apt-get install -q -y --no-install-recommends $packages > /dev/null
    packages=$(missing)
fi
if [ -n "$packages" ]; then
    # shellcheck disable=SC2086
    echo "NOT RUN: ranks as processes of MPI: this needs" $packages >&2
    if [ "${CI:-}" = true ]; then exit 1; else exit 0; fi
fi
if [ "${1:-}" = --install-only ]; then
    exit
fi
# The whole workspace, so that dependencies have the features of the other tests and are not compiled again. One test at a
# time: each starts several processes.
cargo test --quiet --workspace --features plimsoll-cli/mpi --test mpi --test launch --test kills -- --test-threads 1
