// Probabilities of experts with the logarithm of their divisor, the choice of the largest, and the gradients of both.
//
// Defined by `exec/src/reference/routing.rs`; the CPU's twin is `exec/src/cpu/routing.rs`. Rows are as wide as there are
// experts: tens or hundreds of columns, which one block reads three times from its cache. Few columns are chosen, so a warp
// goes through its row once for each of them.
#include "block.cuh"

// p = softmax(x) and lse = log Σ exp(x), both f32.
template <class T> __device__ void softmax_lse(const T* x, float* p, float* lse, i64 columns) {
    float largest = -INFINITY, sum = 0.0f;
    for (i64 column = threadIdx.x; column < columns; column += blockDim.x) largest = fmaxf(largest, widen(x[column]));
    largest = block_max(largest);
    for (i64 column = threadIdx.x; column < columns; column += blockDim.x) sum += expf(widen(x[column]) - largest);
    sum = block_sum(sum);
    float inverse = 1.0f / sum;
    for (i64 column = threadIdx.x; column < columns; column += blockDim.x)
        p[column] = expf(widen(x[column]) - largest) * inverse;
    if (threadIdx.x == 0) *lse = largest + logf(sum);
}

#define SOFTMAX_LSE(suffix, T) \
    KERNEL(512) softmax_lse_##suffix(const T* x, float* p, float* lse, i64 columns) { \
        softmax_lse(x + blockIdx.x * columns, p + blockIdx.x * columns, lse + blockIdx.x, columns); \
    }
FOR_ACTIVATIONS(SOFTMAX_LSE)

// dx = p·(dp − Σ dp·p + dlse); a cotangent that is missing is null.
KERNEL(512) softmax_lse_grad(const float* p, const float* dp, const float* dlse, float* dx, i64 columns) {
    i64 at = blockIdx.x * columns;
    float mean = 0.0f;
    if (dp) {
        for (i64 column = threadIdx.x; column < columns; column += blockDim.x) mean += p[at + column] * dp[at + column];
        mean = block_sum(mean);
    }
    float shift = (dlse ? dlse[blockIdx.x] : 0.0f) - mean;
    for (i64 column = threadIdx.x; column < columns; column += blockDim.x)
        dx[at + column] = p[at + column] * ((dp ? dp[at + column] : 0.0f) + shift);
}

// Columns are compared as floats, which hold them exactly up to 2^24.
#define NO_COLUMN -1.0f

// Whether score `a` of column `i` comes before score `b` of column `j`: the larger first, of equals the lower column.
__device__ inline bool comes_before(float a, float i, float b, float j) { return a > b || (a == b && i < j); }

// A score that is not a number is reported, and never chosen.
KERNEL(32) top_k(const float* scores, float* weights, int* indices, i64 columns, int k, u64* check) {
    i64 row = blockIdx.x;
    scores += row * columns;
    for (i64 column = threadIdx.x; column < columns; column += 32)
        if (scores[column] != scores[column]) report(check, row, int(column));
    float last = INFINITY, last_column = NO_COLUMN;
    for (int chosen = 0; chosen < k; chosen++) {
        float best = -INFINITY, found = NO_COLUMN;
        for (i64 column = threadIdx.x; column < columns; column += 32) {
            float score = scores[column], here = float(column);
            bool left = comes_before(last, last_column, score, here);
            if (left && (found == NO_COLUMN || comes_before(score, here, best, found))) best = score, found = here;
        }
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            float other = __shfl_xor_sync(FULL_WARP, best, distance);
            float other_column = __shfl_xor_sync(FULL_WARP, found, distance);
            bool nothing_here = found == NO_COLUMN, nothing_there = other_column == NO_COLUMN;
            if (!nothing_there && (nothing_here || comes_before(other, other_column, best, found)))
                best = other, found = other_column;
        }
        if (threadIdx.x == 0) {
            weights[row * k + chosen] = best;
            indices[row * k + chosen] = found == NO_COLUMN ? 0 : int(found);
        }
        last = best, last_column = found;
    }
}

// Each column gathers the gradients of the places that chose it: one at most for a router's choice.
KERNEL(256) top_k_grad(const int* indices, const float* dweights, float* dscores, i64 columns, int k, u64* check) {
    i64 row = blockIdx.x;
    indices += row * k, dweights += row * k;
    for (int chosen = threadIdx.x; chosen < k; chosen += blockDim.x)
        if (indices[chosen] < 0 || indices[chosen] >= columns) report(check, row, indices[chosen]);
    for (i64 column = threadIdx.x; column < columns; column += blockDim.x) {
        float sum = 0.0f;
        for (int chosen = 0; chosen < k; chosen++)
            if (indices[chosen] == column) sum += dweights[chosen];
        dscores[row * columns + column] = sum;
    }
}
