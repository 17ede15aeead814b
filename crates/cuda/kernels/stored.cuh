// How optimizers keep a parameter and its moments, for kernels that step it.
//
// Defined by `exec/src/reference/stored.rs`; the CPU's twin is `exec/src/cpu/stored.rs`. A warp takes a block of 256
// elements, the one whose 8-bit moments share a scale; a lane takes eight in a row.
#pragma once
#include "codes.cuh"
#include "normal.cuh"

enum Weights { WHOLE, STOCHASTIC, SPLIT };
enum Moments { NONE, PLAIN, HALF, BLOCKS };

#define PER_LANE 8

// Addresses of what an update reads and writes; those that a form of storage lacks are null.
struct Ranges {
    const void* grad;
    int grad_kind;
    void* parameter;
    short* lower;
    void* moment[2];
    float* largest[2];
    const int* rng;
    u64 name;
    i64 count;
};

template <class T> __device__ inline void load_eight(const T* p, i64 at, i64 count, float (&x)[PER_LANE]) {
#pragma unroll
    for (int pack = 0; pack < PER_LANE; pack += Lanes<T>::N) {
        float part[Lanes<T>::N];
        load(p + at + pack, count - at - pack, true, part);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) x[pack + i] = part[i];
    }
}

template <class T> __device__ inline void store_eight(T* p, i64 at, i64 count, const float (&x)[PER_LANE]) {
#pragma unroll
    for (int pack = 0; pack < PER_LANE; pack += Lanes<T>::N) {
        float part[Lanes<T>::N];
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) part[i] = x[pack + i];
        store(p + at + pack, count - at - pack, true, part);
    }
}

template <int FORM> __device__ inline void load_parameter(const Ranges& r, i64 at, float (&x)[PER_LANE]) {
    if (FORM == WHOLE) {
        load_eight((const float*)r.parameter, at, r.count, x);
    } else {
        load_eight((const bf16*)r.parameter, at, r.count, x);
    }
    if (FORM == SPLIT) {
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (at + i < r.count) x[i] = __uint_as_float(__float_as_uint(x[i]) + u32(int(r.lower[at + i])));
    }
}

// Rounded up or down at random: with even bits, the mean is x.
__device__ inline u16 stochastic(float x, u32 bits) {
    u32 raised = (__float_as_uint(x) + (bits >> 16)) >> 16, kept = __float_as_uint(x) >> 16 | u32(isnan(x));
    return u16(isfinite(x) ? raised : kept);
}

template <int FORM> __device__ inline void store_parameter(const Ranges& r, i64 at, const float (&x)[PER_LANE]) {
    if (FORM == WHOLE) {
        store_eight((float*)r.parameter, at, r.count, x);
        return;
    }
    u16* upper = (u16*)r.parameter;
    u32 bits[2][4];
    if (FORM == STOCHASTIC) {
        Stream stream = stream_of_input(r.rng, r.name);
        // Row and element of a flat index: row 0 below 2³² elements.
        quad(stream, u32(at >> 32), u32(at) / 4, bits[0]);
        quad(stream, u32(at >> 32), u32(at) / 4 + 1, bits[1]);
    }
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        if (at + i >= r.count) continue;
        if (FORM == STOCHASTIC) {
            upper[at + i] = stochastic(x[i], bits[i / 4][i % 4]);
        } else {
            u32 whole = __float_as_uint(x[i]);
            upper[at + i] = u16((whole + 0x8000) >> 16);
            r.lower[at + i] = short(u16(whole));
        }
    }
}

// The tables of codes in shared memory: numbers and middles of the signed table, then of the unsigned one.
__device__ inline void load_codes(float (&table)[4][256]) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        table[0][i] = SIGNED_NUMBERS[i], table[1][i] = SIGNED_MIDDLES[i];
        table[2][i] = UNSIGNED_NUMBERS[i], table[3][i] = UNSIGNED_MIDDLES[i];
    }
    __syncthreads();
}

// The code of the entry nearest to x; of a positive number that must not become zero, that of the least one above.
__device__ inline u8 nearest(const float* numbers, const float* middles, float x, bool positive) {
    int code = 0;
#pragma unroll
    for (int half = 128; half > 0; half /= 2) code += x > middles[code + half - 1] ? half : 0;
    return u8(positive && x > 0.0f && numbers[code] <= 0.0f ? code + 1 : code);
}

template <int FORM>
__device__ inline void load_moment(const Ranges& r, int which, const float (*table)[256], i64 at, float (&x)[PER_LANE]) {
    if (FORM == PLAIN) load_eight((const float*)r.moment[which], at, r.count, x);
    if (FORM == HALF) load_eight((const bf16*)r.moment[which], at, r.count, x);
    if (FORM == BLOCKS) {
        const u8* codes = (const u8*)r.moment[which];
        float largest = at < r.count ? r.largest[which][at / 256] : 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) x[i] = at + i < r.count ? table[2 * which][codes[at + i]] * largest : 0.0f;
    }
}

template <int FORM>
__device__ inline void store_moment(const Ranges& r, int which, const float (*table)[256], i64 at,
                                    const float (&x)[PER_LANE]) {
    if (FORM == PLAIN) store_eight((float*)r.moment[which], at, r.count, x);
    if (FORM == HALF) store_eight((bf16*)r.moment[which], at, r.count, x);
    if (FORM == BLOCKS) {
        u8* codes = (u8*)r.moment[which];
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (at + i < r.count) largest = fmaxf(largest, fabsf(x[i]));
        largest = warp_max(largest);
        // A block of zeros has no scale to divide by; whatever its codes are, they stand for zeros.
        float inverse = largest > 0.0f ? 1.0f / largest : 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (at + i < r.count)
                codes[at + i] = nearest(table[2 * which], table[2 * which + 1], x[i] * inverse, which == 1);
        if (threadIdx.x % 32 == 0 && at < r.count) r.largest[which][at / 256] = largest;
    }
}

// The first element of this lane; a block of threads takes eight blocks of 256.
__device__ inline i64 first_of_lane() { return (i64(blockIdx.x) * blockDim.x + threadIdx.x) * PER_LANE; }

__device__ inline void load_gradient(const Ranges& r, i64 at, float (&x)[PER_LANE]) {
    if (r.grad_kind == F32) load_eight((const float*)r.grad, at, r.count, x);
    else load_eight((const bf16*)r.grad, at, r.count, x);
}
