// Changes of element type, and sums of values of different types.
//
// Defined by the storing of results in `exec/src/reference/mod.rs`; the CPU's twin is `exec/src/cpu/cast.rs`. A number
// goes by way of f32, as it does there.
#include "block.cuh"

KERNEL(256) cast_any(const void* x, int x_kind, void* y, int y_kind, i64 count) {
    i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) store_any(y, y_kind, i, load_any(x, x_kind, i));
}

// sum = x, or sum += x; each sum is rounded once.
KERNEL(256) accumulate_any(const void* x, int x_kind, void* sum, int sum_kind, i64 count, int add) {
    i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float number = load_any(x, x_kind, i);
    store_any(sum, sum_kind, i, add ? load_any(sum, sum_kind, i) + number : number);
}

// Eight elements a thread, for the casts of training.
KERNEL(256) cast_f32_bf16(const float* x, bf16* y, i64 count) {
    i64 at = (i64(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    float low[4], high[4], both[8];
    load(x + at, count - at, true, low);
    load(x + at + 4, count - at - 4, true, high);
#pragma unroll
    for (int i = 0; i < 4; i++) both[i] = low[i], both[4 + i] = high[i];
    store(y + at, count - at, true, both);
}

KERNEL(256) cast_bf16_f32(const bf16* x, float* y, i64 count) {
    i64 at = (i64(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    float low[4], high[4], both[8];
    load(x + at, count - at, true, both);
#pragma unroll
    for (int i = 0; i < 4; i++) low[i] = both[i], high[i] = both[4 + i];
    store(y + at, count - at, true, low);
    store(y + at + 4, count - at - 4, true, high);
}
