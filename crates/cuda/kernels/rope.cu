// Rotary positions: pairs (i, i + D/2) of each head turned by an angle that grows with the position.
//
// Defined by `exec/src/reference/transformer.rs` (`rope`); the CPU's twin is `exec/src/cpu/rope.rs`. The angle is formed
// and reduced in f64, so late positions are as exact as early ones, and in half turns, so that no slow path of `sin`
// with its stack is compiled in. One thread turns one pair of eight heads and may write over its input.
#include "block.cuh"

#define HEADS_PER_THREAD 8

// x (B, T, H, D); frequencies f32 (D/2); positions (B, T) or null for 0, 1, 2, …
template <class T>
__device__ void rope(const T* x, const float* frequencies, const int* positions, T* y, i64 tokens, int length, int heads,
                     int width, float sign) {
    int half = width / 2;
    i64 flat = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (flat >= tokens * half) return;
    i64 token = flat / half;
    int pair = int(flat % half);
    double position = positions ? double(positions[token]) : double(token % length);
    double turns = position * double(frequencies[pair]) * 0.31830988618379067154; // half turns: angle ÷ π
    float sine, cosine;
    sincospif(float(turns - 2.0 * rint(0.5 * turns)), &sine, &cosine);
    sine *= sign;
    int last = min(heads, int(blockIdx.y + 1) * HEADS_PER_THREAD);
    for (int head = blockIdx.y * HEADS_PER_THREAD; head < last; head++) {
        i64 at = (token * heads + head) * width + pair;
        float first = widen(x[at]), second = widen(x[at + half]);
        y[at] = narrow<T>(first * cosine - second * sine);
        y[at + half] = narrow<T>(second * cosine + first * sine);
    }
}

#define ROPE(suffix, T) \
    KERNEL(256) \
    rope_##suffix(const T* x, const float* frequencies, const int* positions, T* y, i64 tokens, int length, int heads, \
                  int width, float sign) { \
        rope(x, frequencies, positions, y, tokens, length, heads, width, sign); \
    }
FOR_ACTIVATIONS(ROPE)
