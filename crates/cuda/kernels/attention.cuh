// Shared by the attention kernels: visibility, tiles in shared memory, and the geometry of a block.
//
// A block has eight threads for each row of its tile: thread (row, lane) makes the scores of columns lane, lane + 8, …
// and holds packs of four columns lane, lane + 8, … of what the row accumulates. Heads narrower than the compiled width
// are filled with zeros. Arithmetic is f32 on the ordinary units: this is the path for every mask, every width and
// machines without cuDNN, not the fast one.
#pragma once
#include "block.cuh"

struct Attention {
    int length, heads, key_heads, width;
    int causal, window; // window 0: unlimited
    float scale;
};

// Rows of a tile for a compiled width: what four tiles of shared memory allow on every architecture.
template <int WIDTH> struct Tiling {
    static const int ROWS = WIDTH <= 128 ? 32 : 16;
    static const int THREADS = 8 * ROWS;
    static const int COLUMNS = ROWS / 8;   // scores of a thread
    static const int PACKS = WIDTH / 32;   // packs of four of a thread
    static const int STRIDE = WIDTH + 4;   // floats between rows; the pad spreads rows over banks
    static const int TILE = ROWS * STRIDE; // floats of a tile
};

// Whether position s is visible from t; `starts` is null without documents.
__device__ inline bool sees(const Attention& a, const int* starts, int t, int s) {
    if (t >= a.length || s >= a.length) return false;
    bool in_order = !a.causal || s <= t;
    bool near = a.window == 0 || abs(t - s) < a.window;
    return in_order && near && (starts == nullptr || starts[t] == starts[s]);
}

// Whether any of keys first_key … last_key can be visible from any of queries first … last: bounds only, so a tile that
// passes may still hold nothing. Documents lie one behind the other, so their starts never fall.
__device__ inline bool may_see(const Attention& a, const int* starts, int first, int last, int first_key, int last_key) {
    last = min(last, a.length - 1), last_key = min(last_key, a.length - 1);
    if (a.causal && first_key > last) return false;
    if (a.window && (first - last_key >= a.window || first_key - last >= a.window)) return false;
    return starts == nullptr || (last_key >= starts[first] && last >= starts[first_key]);
}

// Rows `first …` of one head of x (T, heads, width), as f32; zeros behind the end.
template <class T, int WIDTH>
__device__ void load_rows(float* tile, const T* x, int first, int length, int heads, int head, int width) {
    typedef Tiling<WIDTH> G;
    for (int i = threadIdx.x; i < G::ROWS * WIDTH; i += G::THREADS) {
        int row = i / WIDTH, column = i % WIDTH;
        bool inside = first + row < length && column < width;
        tile[row * G::STRIDE + column] = inside ? widen(x[(i64(first + row) * heads + head) * width + column]) : 0.0f;
    }
}

template <int WIDTH> __device__ inline float dot_rows(const float* a, const float* b) {
    float total = 0.0f;
#pragma unroll 4
    for (int i = 0; i < WIDTH; i += 4) {
        float4 x = *(const float4*)(a + i), y = *(const float4*)(b + i);
        total += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
    }
    return total;
}

// total += Σ weights[i] · rows[i], for this thread's packs of columns.
template <int WIDTH>
__device__ inline void add_rows(float4 (&total)[Tiling<WIDTH>::PACKS], const float* weights, const float* rows, int lane) {
    typedef Tiling<WIDTH> G;
#pragma unroll 4
    for (int i = 0; i < G::ROWS; i++) {
        float weight = weights[i];
#pragma unroll
        for (int pack = 0; pack < G::PACKS; pack++) {
            float4 x = *(const float4*)(rows + i * G::STRIDE + 4 * (lane + 8 * pack));
            total[pack].x += weight * x.x, total[pack].y += weight * x.y;
            total[pack].z += weight * x.z, total[pack].w += weight * x.w;
        }
    }
}

template <class T, int WIDTH>
__device__ void store_row(T* row, const float4 (&total)[Tiling<WIDTH>::PACKS], float factor, int lane, int width) {
#pragma unroll
    for (int pack = 0; pack < Tiling<WIDTH>::PACKS; pack++) {
        int column = 4 * (lane + 8 * pack);
        float4 x = total[pack];
        if (column < width) row[column] = narrow<T>(factor * x.x);
        if (column + 1 < width) row[column + 1] = narrow<T>(factor * x.y);
        if (column + 2 < width) row[column + 2] = narrow<T>(factor * x.z);
        if (column + 3 < width) row[column + 3] = narrow<T>(factor * x.w);
    }
}

// Sum and largest over the eight threads of a row.
__device__ inline float row_sum(float x) {
    for (int distance = 4; distance > 0; distance /= 2) x += __shfl_xor_sync(FULL_WARP, x, distance);
    return x;
}
__device__ inline float row_max(float x) {
    for (int distance = 4; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, distance));
    return x;
}

#define FOR_WIDTHS(X, suffix, T) X(suffix, T, 32) X(suffix, T, 64) X(suffix, T, 128) X(suffix, T, 256)
