// Sums over axes: each run of summed axes is the middle of (outer, terms, inner).
//
// Defined by `exec/src/reference/movement.rs` (`sum`); the CPU's twin is `exec/src/cpu/sums.rs`. Terms are cut into
// chunks by shape alone; each chunk yields one partial sum in scratch, and partial sums are added in their order.
#include "columns.cuh"

// inner > 1: columns of each outer slice.
template <class T> struct Plain {
    const T* x;
    i64 inner;
    __device__ void add(i64 row, i64 column, bool whole, float (&total)[Lanes<T>::N]) const {
        float numbers[Lanes<T>::N];
        load(x + row * inner + column, inner - column, whole, numbers);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) total[i] += numbers[i];
    }
};

#define SUM_MIDDLE(suffix, T) \
    KERNEL(256) sum_middle_##suffix(const T* x, float* partial, i64 terms, i64 inner, i64 chunk) { \
        column_sums<T>(Plain<T>{x, inner}, partial, terms, inner, chunk); \
    }
FOR_ACTIVATIONS(SUM_MIDDLE)

// inner = 1: one block adds a chunk of one outer slice. Grid (outer, chunks).
template <class T> __device__ void sum_last(const T* x, float* partial, i64 terms, i64 chunk) {
    i64 outer = blockIdx.x, first = blockIdx.y * chunk, last = min(terms, first + chunk);
    float total = 0.0f;
    for (i64 i = first + threadIdx.x; i < last; i += blockDim.x) total += widen(x[outer * terms + i]);
    total = block_sum(total);
    if (threadIdx.x == 0) partial[outer * gridDim.y + blockIdx.y] = total;
}

#define SUM_LAST(suffix, T) \
    KERNEL(256) sum_last_##suffix(const T* x, float* partial, i64 terms, i64 chunk) { \
        sum_last(x, partial, terms, chunk); \
    }
FOR_ACTIVATIONS(SUM_LAST)

// (outer, chunks, inner) → (outer, inner), in the order of chunks, rounded once into a result of any type.
KERNEL(256) finish_sums(const float* partial, void* sum, int sum_kind, i64 count, i64 inner, int chunks, int add) {
    i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= count) return;
    const float* from = partial + at / inner * chunks * inner + at % inner;
    float total = 0.0f;
    for (int chunk = 0; chunk < chunks; chunk++) total += from[chunk * inner];
    store_any(sum, sum_kind, at, add ? load_any(sum, sum_kind, at) + total : total);
}
