// CUDA's words for a host compiler, so that kernels can be run and judged without a GPU.
//
// A block's threads are fibers of one system thread: each runs until it ends or waits for its block or its warp. Shared
// memory is static memory of that thread, since it runs one block at a time. This tests indexing, masks, orders of sums and rounding; it
// says nothing about races between threads that wait for nothing, nor about speed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define PLIMSOLL_ON_HOST 1
#define __device__
#define __global__ __attribute__((visibility("default")))
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct uint3 {
    unsigned x, y, z;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

extern thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;

// Waits for all threads of the block, or of the warp, that have not ended.
void __syncthreads();
void host_sync_warp();
float* host_dynamic_shared();
unsigned host_exchange(unsigned bits, int lane_xor);
// Shows an address to the warp and waits; what a lane has shown is read until the warp waits again.
void host_show(const void* address);
const void* host_shown(int lane);

inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline float __shfl_xor_sync(unsigned, float x, int distance) {
    return __uint_as_float(host_exchange(__float_as_uint(x), distance));
}
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }

template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }

// Another thread never runs in between.
inline unsigned long long atomicMin(unsigned long long* at, unsigned long long x) {
    unsigned long long old = *at;
    if (x < old) *at = x;
    return old;
}

using std::isfinite;
using std::isnan;
inline void sincospif(float x, float* sine, float* cosine) {
    const double pi = 3.14159265358979323846;
    *sine = float(std::sin(pi * x));
    *cosine = float(std::cos(pi * x));
}

inline float host_half_to_float(unsigned short bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    float size = exponent == 31  ? (mantissa ? NAN : INFINITY)
                 : exponent == 0 ? std::ldexp(float(mantissa), -24)
                                 : std::ldexp(float(1024 + mantissa), exponent - 25);
    return bits & 0x8000 ? -size : size;
}

// Rounds by adding in a binade whose last place is that of the result.
inline unsigned short host_float_to_half(float x) {
    unsigned short sign = __float_as_uint(x) >> 16 & 0x8000;
    double size = std::fabs(double(x));
    if (std::isnan(x)) return sign | 0x7e00;
    if (size >= 65520.0) return sign | 0x7c00;
    if (size < std::ldexp(1.0, -14)) return sign | (unsigned short)std::nearbyint(std::ldexp(size, 24));
    int exponent;
    std::frexp(size, &exponent); // size in ½·2ᵉ … 2ᵉ
    int mantissa = int(std::nearbyint(std::ldexp(size, 11 - exponent)));
    return sign | (unsigned short)(((exponent + 13) << 10) + mantissa);
}

// ---- what a file of kernels offers ------------------------------------------------------------------------------------

struct HostKernel {
    const char* name;
    void (*call)(void** args);
};

template <unsigned... I> struct Indices {};
template <unsigned N, unsigned... I> struct Count : Count<N - 1, N - 1, I...> {};
template <unsigned... I> struct Count<0, I...> {
    typedef Indices<I...> Type;
};
template <class... A, unsigned... I> void host_apply(void (*kernel)(A...), void** args, Indices<I...>) {
    (void)args;
    kernel(*(A*)args[I]...);
}
template <class... A> void host_call(void (*kernel)(A...), void** args) {
    host_apply(kernel, args, typename Count<sizeof...(A)>::Type());
}
