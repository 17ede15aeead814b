// Dropout: random bits drawn where they are used.
//
// Defined by `exec/src/reference/elementwise.rs` (`dropout`); the CPU's twin is `exec/src/cpu/dropout.rs`. One thread
// draws for four elements of a row and may write over its input.
#include "random.cuh"

// `rng` is [seed low, seed high, step, first row]; x is (rows, columns).
template <class T>
__device__ void dropout(const T* x, const int* rng, T* y, i64 rows, i64 columns, u64 name, u32 threshold, float keep) {
    i64 groups = (columns + 3) / 4, flat = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (flat >= rows * groups) return;
    i64 row = flat / groups, group = flat % groups;
    u32 bits[4];
    quad(stream_of_input(rng, name), u32(rng[3]) + u32(row), u32(group), bits);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        i64 column = 4 * group + i, at = row * columns + column;
        if (column < columns) y[at] = narrow<T>(bits[i] >= threshold ? widen(x[at]) * keep : 0.0f);
    }
}

#define DROPOUT(suffix, T) \
    KERNEL(256) \
    dropout_##suffix(const T* x, const int* rng, T* y, i64 rows, i64 columns, u64 name, u32 threshold, float keep) { \
        dropout(x, rng, y, rows, columns, name, threshold, keep); \
    }
FOR_ACTIVATIONS(DROPOUT)
