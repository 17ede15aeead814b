// Normal numbers with the CPU's bits.
//
// Defined by `exec/src/random.rs`; `ln`, `sin` and `cos` follow `exec/src/box_muller.rs`, operation by operation. Files that
// include this are compiled without fused multiply-add.
#pragma once
#include "random.cuh"

// ln x for x in 2⁻²⁴ … 1. With x = m·2ᵉ and m in √½ … √2: ln x = e·ln 2 + 2·artanh t, t = (m − 1)/(m + 1).
__device__ inline float ln(float x) {
    u32 bits = __float_as_uint(x);
    int exponent = int(bits >> 23) - 127;
    double m = double(__uint_as_float((bits & 0x007fffff) | 0x3f800000));
    if (m > 1.4142135623730951) m = m * 0.5, exponent = exponent + 1;
    double t = (m - 1.0) / (m + 1.0), square = t * t;
    double series = 1.0 / 21.0;
    for (int odd = 19; odd >= 1; odd -= 2) series = series * square + 1.0 / double(odd);
    return float(double(exponent) * 0.6931471805599453 + 2.0 * t * series);
}

// Cosine and sine of an angle in 0 … 2π.
__device__ inline void cos_sin(float angle, float& cosine, float& sine) {
    int quarter = int(double(angle) * 0.6366197723675814 + 0.5);
    double x = double(angle) - double(quarter) * 1.5707963267948966, square = x * x;
    double s = 1.0, c = 1.0;
    for (int n = 16; n >= 2; n -= 2) s = 1.0 - s * square * (1.0 / double(n * (n + 1)));
    for (int n = 15; n >= 1; n -= 2) c = 1.0 - c * square * (1.0 / double(n * (n + 1)));
    s = s * x;
    double at_cosine = quarter & 1 ? s : c, at_sine = quarter & 1 ? c : s;
    cosine = float((quarter + 1) & 2 ? -at_cosine : at_cosine);
    sine = float(quarter & 2 ? -at_sine : at_sine);
}

// The normal numbers of elements 4·group … 4·group + 3.
__device__ inline void normal_quad(const Stream& stream, i64 group, float (&numbers)[4]) {
    u32 bits[4];
    quad(stream, u32(u64(4 * group) >> 32), u32(4 * group) / 4, bits);
#pragma unroll
    for (int pair = 0; pair < 4; pair += 2) {
        float cosine, sine, radius = sqrtf(-2.0f * ln(1.0f - unit(bits[pair])));
        cos_sin(6.2831855f * unit(bits[pair + 1]), cosine, sine);
        numbers[pair] = radius * cosine, numbers[pair + 1] = radius * sine;
    }
}

// The numbers that belong to `name` by a probe: [seed low, seed high, step, direction].
__device__ inline Stream stream_of_probe(const int* probe, u64 name, u32 direction) {
    return stream_of_input(probe, name + u64(direction));
}
