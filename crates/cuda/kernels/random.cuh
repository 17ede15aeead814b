// Random numbers with the CPU's bits: Philox, and functions made of IEEE operations alone.
//
// Defined by `exec/src/random.rs`. `ln`, `sin` and `cos` follow `exec/src/box_muller.rs` operation by operation, in f64
// with no fused multiply-add, so both devices round alike.
#pragma once
#include "block.cuh"

struct Stream {
    u32 key[2];
    u32 step;
};

// The numbers that belong to `name` by the graph's input `rng`: [seed low, seed high, step, …].
__device__ inline Stream stream_of(u64 seed, u64 name, u32 step) {
    u64 mixed = seed ^ (name << 17 | name >> 47) ^ name * 0x9e3779b97f4a7c15ull;
    Stream stream = {{u32(mixed), u32(mixed >> 32)}, step};
    return stream;
}

__device__ inline Stream stream_of_input(const int* rng, u64 name) {
    return stream_of(u64(u32(rng[0])) | u64(u32(rng[1])) << 32, name, u32(rng[2]));
}

// The four numbers of elements 4·group … 4·group + 3 of `row`.
__device__ inline void quad(const Stream& stream, u32 row, u32 group, u32 (&bits)[4]) {
    u32 c0 = group, c1 = row, c2 = stream.step, c3 = 0, k0 = stream.key[0], k1 = stream.key[1];
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u64 a = u64(c0) * 0xd2511f53u, b = u64(c2) * 0xcd9e8d57u;
        c0 = u32(b >> 32) ^ c1 ^ k0;
        c1 = u32(b);
        c2 = u32(a >> 32) ^ c3 ^ k1;
        c3 = u32(a);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    bits[0] = c0, bits[1] = c1, bits[2] = c2, bits[3] = c3;
}

// A fraction in 0..1 with 24 bits.
__device__ inline float unit(u32 bits) { return float(bits >> 8) * (1.0f / 16777216.0f); }
