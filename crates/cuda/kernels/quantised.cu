// Weights in few bits, made whole right before they are read.
//
// Defined by `exec/src/reference/quantised.rs`; the CPU's twin is `exec/src/cpu/quantised.rs`. A thread takes eight codes,
// which have one scale. Products and sums are rounded one by one: this file is compiled without fused operations.
#include "block.cuh"
#include "quantised.cuh"

#define BLOCK 64
#define SECOND_BLOCK 256
#define INT8_UNIT 7.874015748e-3f

// Eight 4-bit codes, the first in the upper half of a byte, times their scale.
template <class T> __device__ void nf4(const u8* codes, float absmax, T* w, i64 at) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u8 pair = codes[at / 2 + i];
        w[at + 2 * i] = narrow<T>(NF4_NUMBERS[pair >> 4] * absmax);
        w[at + 2 * i + 1] = narrow<T>(NF4_NUMBERS[pair & 15] * absmax);
    }
}

#define DEQUANTISE(suffix, T) \
    KERNEL(256) dequantise_nf4_##suffix(const u8* codes, const float* absmax, T* w, i64 count) { \
        i64 at = 8 * (i64(blockIdx.x) * blockDim.x + threadIdx.x); \
        if (at < count) nf4(codes, absmax[at / BLOCK], w, at); \
    } \
    KERNEL(256) dequantise_double_##suffix( \
        const u8* codes, const u8* scales, const float* second, const float* offset, T* w, i64 count) { \
        i64 at = 8 * (i64(blockIdx.x) * blockDim.x + threadIdx.x), block = at / BLOCK; \
        if (at >= count) return; \
        float scaled = SCALE_NUMBERS[scales[block]] * second[block / SECOND_BLOCK]; \
        nf4(codes, scaled + *offset, w, at); \
    } \
    KERNEL(256) dequantise_int8_##suffix(const u8* codes, const float* absmax, T* w, i64 columns, i64 count) { \
        i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; \
        if (i < count) w[i] = narrow<T>(float((signed char)codes[i]) * absmax[i / columns] * INT8_UNIT); \
    }
FOR_ACTIVATIONS(DEQUANTISE)
