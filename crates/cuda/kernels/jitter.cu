// Jitter: every element is multiplied by a number near 1, drawn where it is used.
//
// Defined by `exec/src/reference/elementwise.rs` (`jitter`); the CPU's twin is `exec/src/cpu/dropout.rs`. One thread
// draws for four elements of a row and may write over its input.
#include "random.cuh"

// `rng` is [seed low, seed high, step, first row]; x is (rows, columns); factors reach from `least` over `span`.
template <class T>
__device__ void jitter(const T* x, const int* rng, T* y, i64 rows, i64 columns, u64 name, float least, float span) {
    i64 groups = (columns + 3) / 4, flat = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (flat >= rows * groups) return;
    i64 row = flat / groups, group = flat % groups;
    u32 bits[4];
    quad(stream_of_input(rng, name), u32(rng[3]) + u32(row), u32(group), bits);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        i64 column = 4 * group + i, at = row * columns + column;
        if (column < columns) y[at] = narrow<T>(widen(x[at]) * (least + span * unit(bits[i])));
    }
}

#define JITTER(suffix, T) \
    KERNEL(256) \
    jitter_##suffix(const T* x, const int* rng, T* y, i64 rows, i64 columns, u64 name, float least, float span) { \
        jitter(x, rng, y, rows, columns, name, least, span); \
    }
FOR_ACTIVATIONS(JITTER)
