// Shared by all kernels: element types, 16-byte packs, and sums over a warp and a block.
//
// No header of a CUDA toolkit is needed. Values are widened to f32 on load and rounded to nearest even on store, so a
// kernel is written once over the element type `T` of activations. Operands that are small beside them (weights of
// norms, biases, results of sums) are reached by a tag (`Kind`) instead of a type.
//
// The same sources are compiled for the host by `host/cuda_on_host.h`, which runs a block's threads as fibers; what the
// GPU does in one instruction of its own has an ordinary twin here.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifdef PLIMSOLL_ON_HOST
#define DYNAMIC_SHARED(name) float* const name = host_dynamic_shared()
#else
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) float name[]
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif

// One block on a multiprocessor is enough for the compiler: it then takes registers before it takes the stack, which the
// context does not have.
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)

// Expands `X` once for each element type of activations.
#define FOR_ACTIVATIONS(X) X(f32, float) X(bf16, bf16)

#define FULL_WARP 0xffffffffu

// ---- element types ------------------------------------------------------------------------------------------------

struct bf16 {
    u16 bits;
};

// Tags of element types, in the order of `plimsoll_graph::DType`.
enum Kind { F32 = 0, BF16 = 1, F16 = 2, I32 = 3, I16 = 4, U8 = 5 };

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

template <class T> __device__ inline T narrow(float x);
template <> __device__ inline float narrow<float>(float x) { return x; }
template <> __device__ inline bf16 narrow<bf16>(float x) {
    bf16 result;
#ifdef PLIMSOLL_ON_HOST
    u32 bits = __float_as_uint(x);
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    result.bits = u16(nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
#endif
    return result;
}

__device__ inline float half_to_float(u16 bits) {
#ifdef PLIMSOLL_ON_HOST
    return host_half_to_float(bits);
#else
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
#endif
}

__device__ inline u16 float_to_half(float x) {
#ifdef PLIMSOLL_ON_HOST
    return host_float_to_half(x);
#else
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#endif
}

// Element `i` of an operand of any type.
__device__ inline float load_any(const void* p, int kind, i64 i) {
    switch (kind) {
        case F32: return ((const float*)p)[i];
        case BF16: return widen(((const bf16*)p)[i]);
        case F16: return half_to_float(((const u16*)p)[i]);
        case I32: return float(((const int*)p)[i]);
        case I16: return float(((const short*)p)[i]);
        default: return float(((const u8*)p)[i]);
    }
}

// Stores to an operand of any type, rounded to nearest even; integers hold the nearest number in their range.
__device__ inline void store_any(void* p, int kind, i64 i, float x) {
    switch (kind) {
        case F32: ((float*)p)[i] = x; break;
        case BF16: ((bf16*)p)[i] = narrow<bf16>(x); break;
        case F16: ((u16*)p)[i] = float_to_half(x); break;
        case I32: ((int*)p)[i] = __float2int_rn(x); break;
        case I16: ((short*)p)[i] = short(min(32767, max(-32768, __float2int_rn(x)))); break;
        default: ((u8*)p)[i] = u8(min(255, max(0, __float2int_rn(x)))); break;
    }
}

// ---- 16 bytes at a time -------------------------------------------------------------------------------------------

template <class T> struct Lanes {
    static const int N = 16 / sizeof(T);
};

struct __align__(16) Quad {
    u32 word[4];
};

__device__ inline void unpack(const Quad& quad, float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = __uint_as_float(quad.word[i]);
}
__device__ inline void unpack(const Quad& quad, float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(quad.word[i] << 16);
        x[2 * i + 1] = __uint_as_float(quad.word[i] & 0xffff0000u);
    }
}
__device__ inline Quad pack(const float (&x)[4]) {
    Quad quad;
#pragma unroll
    for (int i = 0; i < 4; i++) quad.word[i] = __float_as_uint(x[i]);
    return quad;
}
__device__ inline Quad pack(const float (&x)[8]) {
    Quad quad;
#pragma unroll
    for (int i = 0; i < 4; i++) quad.word[i] = narrow<bf16>(x[2 * i]).bits | u32(narrow<bf16>(x[2 * i + 1]).bits) << 16;
    return quad;
}

// The first `count` of as many elements as fit 16 bytes; zeros after them. `whole` says that the address is a multiple
// of 16, which lets a full pack travel at once.
template <class T> __device__ inline void load(const T* p, i64 count, bool whole, float (&x)[Lanes<T>::N]) {
    if (whole && count >= Lanes<T>::N) {
        unpack(*(const Quad*)p, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < Lanes<T>::N; i++) x[i] = i < count ? widen(p[i]) : 0.0f;
}

template <class T> __device__ inline void store(T* p, i64 count, bool whole, const float (&x)[Lanes<T>::N]) {
    if (whole && count >= Lanes<T>::N) {
        *(Quad*)p = pack(x);
        return;
    }
#pragma unroll
    for (int i = 0; i < Lanes<T>::N; i++)
        if (i < count) p[i] = narrow<T>(x[i]);
}

// Whether every row of so many elements begins at a multiple of 16 bytes; operands themselves do.
template <class T> __device__ inline bool rows_are_whole(i64 columns) { return columns % Lanes<T>::N == 0; }

// ---- sums over threads --------------------------------------------------------------------------------------------
// Each has one order, fixed by the number of threads; every thread gets the result.

__device__ inline float warp_sum(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(FULL_WARP, x, distance);
    return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, distance));
    return x;
}

__device__ inline float block_sum(float x) {
    __shared__ float part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) part[warp] = x;
    __syncthreads();
    return warp_sum(lane < warps ? part[lane] : 0.0f);
}

__device__ inline float block_max(float x) {
    __shared__ float part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) part[warp] = x;
    __syncthreads();
    return warp_max(lane < warps ? part[lane] : -INFINITY);
}

// ---- trouble found late -------------------------------------------------------------------------------------------

// Remembers an id that lies outside its table: the one that stands first. The host reads the word when it next waits.
__device__ inline void report(u64* check, i64 position, int id) { atomicMin(check, u64(position) << 32 | u32(id)); }
