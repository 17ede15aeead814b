// The choice of experts by probabilities with biases, and the step of those biases.
//
// Defined by `exec/src/reference/routing.rs` and `balance.rs`; the CPU's twins are `exec/src/cpu/routing.rs` and `balance.rs`.
// A warp goes through its row once for each column chosen, as `routing.cu` does without biases.
#include "block.cuh"

// Columns are compared as floats, which hold them exactly up to 2^24.
#define NO_COLUMN -1.0f

// Whether sum `a` of column `i` comes before sum `b` of column `j`: the larger first, of equals the lower column.
__device__ inline bool precedes(float a, float i, float b, float j) { return a > b || (a == b && i < j); }

// A sum that is not a number is reported, and never chosen.
KERNEL(32)
steered_top_k(const float* scores, const float* p, const float* bias, float* weights, int* indices, i64 columns, int k,
              u64* check) {
    i64 row = blockIdx.x;
    scores += row * columns, p += row * columns;
    for (i64 column = threadIdx.x; column < columns; column += 32) {
        float sum = p[column] + bias[column];
        if (sum != sum) report(check, row, int(column));
    }
    float last = INFINITY, last_column = NO_COLUMN;
    for (int chosen = 0; chosen < k; chosen++) {
        float best = -INFINITY, found = NO_COLUMN;
        for (i64 column = threadIdx.x; column < columns; column += 32) {
            float sum = p[column] + bias[column], here = float(column);
            bool left = precedes(last, last_column, sum, here);
            if (left && (found == NO_COLUMN || precedes(sum, here, best, found))) best = sum, found = here;
        }
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            float other = __shfl_xor_sync(FULL_WARP, best, distance);
            float other_column = __shfl_xor_sync(FULL_WARP, found, distance);
            bool nothing_here = found == NO_COLUMN, nothing_there = other_column == NO_COLUMN;
            if (!nothing_there && (nothing_here || precedes(other, other_column, best, found)))
                best = other, found = other_column;
        }
        if (threadIdx.x == 0) {
            int column = found == NO_COLUMN ? 0 : int(found);
            weights[row * k + chosen] = scores[column];
            indices[row * k + chosen] = column;
        }
        last = best, last_column = found;
    }
}

// bias += rate · sign(mean − count). Counts are whole numbers: their sums in f64 are exact in any order. One block.
KERNEL(256) steer_bias(const float* counts, const float* scale, float* bias, i64 count, int experts, float rate) {
    __shared__ double part[256];
    double sum = 0.0;
    for (i64 i = threadIdx.x; i < count; i += 256) sum += counts[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    double total = part[0];
    if (!isfinite(*scale)) return;
    for (int expert = threadIdx.x; expert < experts; expert += 256) {
        double own = 0.0;
        for (i64 i = expert; i < count; i += experts) own += counts[i];
        double above = total - own * experts;
        if (above != 0.0) bias[expert] += above > 0.0 ? rate : -rate;
    }
}
