// APOLLO: a gradient scaled by moments of its random projection.
//
// Defined by `exec/src/reference/apollo.rs`; the CPU's twin is `exec/src/cpu/apollo.rs`. A channel is a line of the longer
// side of a matrix: a row, or a column of a matrix with more columns than rows. Nothing changes where the scale is not finite.
#include "stored.cuh"

// Normal numbers of the projection that `step` uses, four to a thread; they have the CPU's bits.
KERNEL(256) apollo_projection(float* to, const int* rng, const float* step, u64 name, i64 gap, float deviation, i64 count) {
    i64 group = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (4 * group >= count) return;
    Stream stream = stream_of_input(rng, name);
    stream.step = u32((i64(fmaxf(*step, 1.0f)) - 1) / gap);
    float numbers[4];
    normal_quad(stream, group, numbers);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        i64 at = 4 * group + i;
        if (at < count) to[at] = deviation * numbers[i];
    }
}

struct Moving {
    float first, first_rest, second, second_rest; // rest is 1 − β, rounded once
    float epsilon;
};

// Moves the moments of each channel's projection on; the squared norm of the channel as AdamW would step it, and of the
// projection itself. One block to a channel.
KERNEL(256) apollo_channels(const float* low, void* m, void* v, int kind, const float* scale, Moving by, i64 rank,
                            float* stepped, float* of_low) {
    i64 first = i64(blockIdx.x) * rank;
    float factor = *scale, step_squares = 0.0f, low_squares = 0.0f;
    if (!isfinite(factor)) return;
    for (i64 i = threadIdx.x; i < rank; i += 256) {
        i64 at = first + i;
        float r = factor * low[at];
        float new_m = by.first * load_any(m, kind, at) + by.first_rest * r;
        float new_v = by.second * load_any(v, kind, at) + by.second_rest * (r * r);
        float step = new_m / (sqrtf(new_v) + by.epsilon);
        store_any(m, kind, at, new_m);
        store_any(v, kind, at, new_v);
        step_squares += step * step;
        low_squares += r * r;
    }
    step_squares = block_sum(step_squares);
    low_squares = block_sum(low_squares);
    if (threadIdx.x == 0) stepped[blockIdx.x] = step_squares, of_low[blockIdx.x] = low_squares;
}

struct Limit {
    float growth, least_norm;
    int whole; // one factor for the matrix
};

// The factors of one matrix, in the place of `stepped`, and the norm of its scaled gradient, which grows by `growth` at
// most. By one block.
KERNEL(256) apollo_factors(float* stepped, const float* of_low, const float* squares, float* norm, const float* scale,
                           Limit by, i64 channels) {
    if (!isfinite(*scale)) return;
    float all_steps = 0.0f, all_low = 0.0f, total = 0.0f, before = *norm;
    for (i64 i = threadIdx.x; i < channels; i += 256) all_steps += stepped[i], all_low += of_low[i];
    all_steps = block_sum(all_steps);
    all_low = block_sum(all_low);
    for (i64 i = threadIdx.x; i < channels; i += 256) {
        float step = by.whole ? all_steps : stepped[i], low = by.whole ? all_low : of_low[i];
        float factor = sqrtf(step) / (sqrtf(low) + by.least_norm);
        stepped[i] = factor;
        total += factor * factor * squares[i];
    }
    float now = sqrtf(block_sum(total));
    float limiter = before > 0.0f ? fmaxf(now / (before + by.least_norm), by.growth) / by.growth : 1.0f;
    for (i64 i = threadIdx.x; i < channels; i += 256) stepped[i] = stepped[i] / limiter;
    if (threadIdx.x == 0) *norm = now / limiter;
}

struct Stepping {
    float beta1, beta2, root, decay; // root of the scale
    i64 rows, columns;
};

template <int W>
__device__ void apollo(const Ranges& r, const float* lr_at, const float* step_at, const float* scale_at,
                       const float* factors, const Stepping& by) {
    float lr = *lr_at, scale = *scale_at;
    i64 at = first_of_lane();
    if (!isfinite(scale) || at >= r.count) return;
    double t = double(*step_at), rest1 = 1.0 - pow(double(by.beta1), t), rest2 = 1.0 - pow(double(by.beta2), t);
    // The decay that follows the step in the original is taken from the step beforehand.
    float size = float(double(by.root) * sqrt(rest2) / rest1 * (1.0 - double(lr) * double(by.decay)));
    float grad[PER_LANE], p[PER_LANE];
    load_gradient(r, at, grad);
    load_parameter<W>(r, at, p);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        if (at + i >= r.count) continue;
        i64 row = (at + i) / by.columns;
        i64 channel = by.rows >= by.columns ? row : row / by.rows * by.columns + (at + i) % by.columns;
        p[i] = p[i] - lr * (size * factors[channel] * (scale * grad[i]) + by.decay * p[i]);
    }
    store_parameter<W>(r, at, p);
}

#define APOLLO(name, W) \
    KERNEL(256) apollo_##name(Ranges ranges, const float* lr, const float* step, const float* scale, const float* factors, \
                              Stepping by) { \
        apollo<W>(ranges, lr, step, scale, factors, by); \
    }
APOLLO(f32, WHOLE)
APOLLO(stochastic, STOCHASTIC)
APOLLO(split, SPLIT)
