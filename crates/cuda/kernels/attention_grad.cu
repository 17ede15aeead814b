// Attention backward, with no atomic additions: keys and values by one kernel, queries by another.
//
// Defined by `exec/src/reference/transformer.rs` (`Attention::backward`); the CPU's twin is
// `exec/src/cpu/attention_grad.rs`. Both kernels compute the softmax's weights p again from `lse`. With dp = do·vᵀ the
// gradient of the scores is ds = scale·p·(dp − mean), where mean = do·o; then dv = pᵀ·do, dk = dsᵀ·q and dq = ds·k.
#include "attention.cuh"

// mean[b, h, t] = do·o, one warp for each; `count` is B·T·H.
template <class T> __device__ void attention_mean(const T* o, const T* d_o, float* mean, i64 count, Attention a) {
    i64 at = i64(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (at >= count) return;
    float total = 0.0f;
    for (int column = threadIdx.x % 32; column < a.width; column += 32)
        total += widen(o[at * a.width + column]) * widen(d_o[at * a.width + column]);
    total = warp_sum(total);
    i64 head = at % a.heads, t = at / a.heads % a.length, batch = at / a.heads / a.length;
    if (threadIdx.x % 32 == 0) mean[(batch * a.heads + head) * a.length + t] = total;
}

#define ATTENTION_MEAN(suffix, T) \
    KERNEL(256) attention_mean_##suffix(const T* o, const T* d_o, float* mean, i64 count, Attention a) { \
        attention_mean(o, d_o, mean, count, a); \
    }
FOR_ACTIVATIONS(ATTENTION_MEAN)

// dk and dv of a tile of keys. Rows are keys, columns queries. Grid: (tiles of keys, key heads, batch).
//
//   shared   keys | values | queries | do   (ROWS, W) each, then p and ds (ROWS, ROWS + 1)
template <class T, int WIDTH>
__device__ void attention_grad_keys(const T* q, const T* k, const T* v, const float* lse, const float* mean,
                                    const T* d_o, const int* starts, T* dk, T* dv, Attention a) {
    typedef Tiling<WIDTH> G;
    DYNAMIC_SHARED(shared);
    float *keys = shared, *values = keys + G::TILE, *queries = values + G::TILE, *gradients = queries + G::TILE;
    float *weights = gradients + G::TILE, *slopes = weights + G::ROWS * (G::ROWS + 1);
    int key_head = blockIdx.y, group = a.heads / a.key_heads, first_key = blockIdx.x * G::ROWS;
    i64 batch = blockIdx.z, of_queries = batch * a.length * a.heads * a.width;
    i64 of_keys = batch * a.length * a.key_heads * a.width;
    if (starts) starts += batch * a.length;
    int row = threadIdx.x / 8, lane = threadIdx.x % 8, s = first_key + row;

    load_rows<T, WIDTH>(keys, k + of_keys, first_key, a.length, a.key_heads, key_head, a.width);
    load_rows<T, WIDTH>(values, v + of_keys, first_key, a.length, a.key_heads, key_head, a.width);
    float4 total_k[G::PACKS] = {}, total_v[G::PACKS] = {};
    for (int head = key_head * group; head < (key_head + 1) * group; head++) {
        i64 of_head = (batch * a.heads + head) * a.length;
        for (int first = 0; first < a.length; first += G::ROWS) {
            if (!may_see(a, starts, first, first + G::ROWS - 1, first_key, first_key + G::ROWS - 1)) continue;
            __syncthreads();
            load_rows<T, WIDTH>(queries, q + of_queries, first, a.length, a.heads, head, a.width);
            load_rows<T, WIDTH>(gradients, d_o + of_queries, first, a.length, a.heads, head, a.width);
            __syncthreads();
#pragma unroll
            for (int j = 0; j < G::COLUMNS; j++) {
                int column = lane + 8 * j, t = first + column, at = row * (G::ROWS + 1) + column;
                float p = 0.0f, ds = 0.0f;
                if (sees(a, starts, t, s)) {
                    float dot = dot_rows<WIDTH>(queries + column * G::STRIDE, keys + row * G::STRIDE);
                    float dp = dot_rows<WIDTH>(gradients + column * G::STRIDE, values + row * G::STRIDE);
                    p = expf(a.scale * dot - lse[of_head + t]);
                    ds = a.scale * p * (dp - mean[of_head + t]);
                }
                weights[at] = p, slopes[at] = ds;
            }
            __syncthreads();
            add_rows<WIDTH>(total_v, weights + row * (G::ROWS + 1), gradients, lane);
            add_rows<WIDTH>(total_k, slopes + row * (G::ROWS + 1), queries, lane);
        }
    }
    if (s >= a.length) return;
    i64 at = of_keys + (i64(s) * a.key_heads + key_head) * a.width;
    store_row<T, WIDTH>(dk + at, total_k, 1.0f, lane, a.width);
    store_row<T, WIDTH>(dv + at, total_v, 1.0f, lane, a.width);
}

// dq of a tile of queries. Rows are queries, columns keys. Grid: (tiles of queries, heads, batch).
//
//   shared   queries | do | keys | values   (ROWS, W) each, then ds (ROWS, ROWS + 1)
template <class T, int WIDTH>
__device__ void attention_grad_queries(const T* q, const T* k, const T* v, const float* lse, const float* mean,
                                       const T* d_o, const int* starts, T* dq, Attention a) {
    typedef Tiling<WIDTH> G;
    DYNAMIC_SHARED(shared);
    float *queries = shared, *gradients = queries + G::TILE, *keys = gradients + G::TILE, *values = keys + G::TILE;
    float* slopes = values + G::TILE;
    int head = blockIdx.y, key_head = head * a.key_heads / a.heads, first = blockIdx.x * G::ROWS;
    i64 batch = blockIdx.z, of_queries = batch * a.length * a.heads * a.width;
    i64 of_keys = batch * a.length * a.key_heads * a.width;
    if (starts) starts += batch * a.length;
    int row = threadIdx.x / 8, lane = threadIdx.x % 8, t = first + row;
    i64 of_row = (batch * a.heads + head) * a.length + min(t, a.length - 1);
    float row_lse = lse[of_row], row_mean = mean[of_row];

    load_rows<T, WIDTH>(queries, q + of_queries, first, a.length, a.heads, head, a.width);
    load_rows<T, WIDTH>(gradients, d_o + of_queries, first, a.length, a.heads, head, a.width);
    float4 total[G::PACKS] = {};
    for (int first_key = 0; first_key < a.length; first_key += G::ROWS) {
        if (!may_see(a, starts, first, first + G::ROWS - 1, first_key, first_key + G::ROWS - 1)) continue;
        __syncthreads();
        load_rows<T, WIDTH>(keys, k + of_keys, first_key, a.length, a.key_heads, key_head, a.width);
        load_rows<T, WIDTH>(values, v + of_keys, first_key, a.length, a.key_heads, key_head, a.width);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < G::COLUMNS; j++) {
            int column = lane + 8 * j;
            float ds = 0.0f;
            if (sees(a, starts, t, first_key + column)) {
                float dot = dot_rows<WIDTH>(queries + row * G::STRIDE, keys + column * G::STRIDE);
                float dp = dot_rows<WIDTH>(gradients + row * G::STRIDE, values + column * G::STRIDE);
                ds = a.scale * expf(a.scale * dot - row_lse) * (dp - row_mean);
            }
            slopes[row * (G::ROWS + 1) + column] = ds;
        }
        __syncthreads();
        add_rows<WIDTH>(total, slopes + row * (G::ROWS + 1), keys, lane);
    }
    if (t < a.length) store_row<T, WIDTH>(dq + of_queries + (i64(t) * a.heads + head) * a.width, total, 1.0f, lane, a.width);
}

#define ATTENTION_GRAD(suffix, T, WIDTH) \
    KERNEL(Tiling<WIDTH>::THREADS) \
    attention_grad_keys_##suffix##_##WIDTH(const T* q, const T* k, const T* v, const float* lse, const float* mean, \
                                           const T* d_o, const int* starts, T* dk, T* dv, Attention a) { \
        attention_grad_keys<T, WIDTH>(q, k, v, lse, mean, d_o, starts, dk, dv, a); \
    } \
    KERNEL(Tiling<WIDTH>::THREADS) \
    attention_grad_queries_##suffix##_##WIDTH(const T* q, const T* k, const T* v, const float* lse, const float* mean, \
                                              const T* d_o, const int* starts, T* dq, Attention a) { \
        attention_grad_queries<T, WIDTH>(q, k, v, lse, mean, d_o, starts, dq, a); \
    }
FOR_WIDTHS(ATTENTION_GRAD, f32, float)
FOR_WIDTHS(ATTENTION_GRAD, bf16, bf16)
