// Attention forward: o = softmax(scale·q·kᵀ + mask)·v and the logarithm of the softmax's divisor.
//
// Defined by `exec/src/reference/transformer.rs` (`Attention::forward`); the CPU's twin is `exec/src/cpu/attention.rs`.
// The T×T matrix never exists: a block takes a tile of queries of one head through the tiles of keys, with the running
// maximum and sum of Milakov and Gimelshein (2018). Grid: (tiles of queries, heads, batch).
//
//   shared   queries (ROWS, W) | keys, then values (ROWS, W) | weights (ROWS, ROWS + 1)
#include "attention.cuh"

template <class T, int WIDTH>
__device__ void attention(const T* q, const T* k, const T* v, const int* starts, T* o, float* lse, Attention a) {
    typedef Tiling<WIDTH> G;
    DYNAMIC_SHARED(shared);
    float *queries = shared, *keys = queries + G::TILE, *weights = keys + G::TILE;
    int head = blockIdx.y, key_head = head * a.key_heads / a.heads, first = blockIdx.x * G::ROWS;
    i64 batch = blockIdx.z;
    q += batch * a.length * a.heads * a.width;
    o += batch * a.length * a.heads * a.width;
    k += batch * a.length * a.key_heads * a.width;
    v += batch * a.length * a.key_heads * a.width;
    if (starts) starts += batch * a.length;
    int row = threadIdx.x / 8, lane = threadIdx.x % 8, t = first + row;

    load_rows<T, WIDTH>(queries, q, first, a.length, a.heads, head, a.width);
    float largest = -INFINITY, sum = 0.0f;
    float4 total[G::PACKS] = {};
    for (int first_key = 0; first_key < a.length; first_key += G::ROWS) {
        if (!may_see(a, starts, first, first + G::ROWS - 1, first_key, first_key + G::ROWS - 1)) continue;
        __syncthreads();
        load_rows<T, WIDTH>(keys, k, first_key, a.length, a.key_heads, key_head, a.width);
        __syncthreads();
        float score[G::COLUMNS], peak = largest;
#pragma unroll
        for (int j = 0; j < G::COLUMNS; j++) {
            int column = lane + 8 * j;
            float dot = dot_rows<WIDTH>(queries + row * G::STRIDE, keys + column * G::STRIDE);
            score[j] = sees(a, starts, t, first_key + column) ? a.scale * dot : -INFINITY;
            peak = fmaxf(peak, score[j]);
        }
        peak = row_max(peak);
        // A row that has seen nothing yet has no maximum to subtract.
        float shift = peak == -INFINITY ? 0.0f : peak, shrink = expf(largest - shift);
        largest = peak;
        sum *= shrink;
#pragma unroll
        for (int j = 0; j < G::COLUMNS; j++) {
            float weight = expf(score[j] - shift);
            sum += weight;
            weights[row * (G::ROWS + 1) + lane + 8 * j] = weight;
        }
#pragma unroll
        for (int pack = 0; pack < G::PACKS; pack++) {
            total[pack].x *= shrink, total[pack].y *= shrink;
            total[pack].z *= shrink, total[pack].w *= shrink;
        }
        __syncthreads();
        load_rows<T, WIDTH>(keys, v, first_key, a.length, a.key_heads, key_head, a.width);
        __syncthreads();
        add_rows<WIDTH>(total, weights + row * (G::ROWS + 1), keys, lane);
    }
    sum = row_sum(sum);
    if (t >= a.length) return;
    store_row<T, WIDTH>(o + (i64(t) * a.heads + head) * a.width, total, 1.0f / sum, lane, a.width);
    if (lane == 0) lse[(batch * a.heads + head) * a.length + t] = largest + logf(sum);
}

#define ATTENTION(suffix, T, WIDTH) \
    KERNEL(Tiling<WIDTH>::THREADS) \
    attention_##suffix##_##WIDTH(const T* q, const T* k, const T* v, const int* starts, T* o, float* lse, Attention a) { \
        attention<T, WIDTH>(q, k, v, starts, o, lse, a); \
    }
FOR_WIDTHS(ATTENTION, f32, float)
FOR_WIDTHS(ATTENTION, bf16, bf16)
