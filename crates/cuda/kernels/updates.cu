// Norm of the gradients and the optimizers' rules, over state of every element type.
//
// Defined by `exec/src/reference/updates.rs` and `stored.rs`; the CPU's twins are `exec/src/cpu/updates.rs` and
// `stored.rs`, whose f32 operations are repeated here one by one. This file is compiled without fused multiply-add, so
// that a step has the CPU's bits.
//
// A warp takes a block of 256 elements, the one whose 8-bit moments share a scale; a lane takes eight in a row.
#include "stored.cuh"

// ---- norm of the gradients ----------------------------------------------------------------------------------------

#define SQUARES_PER_BLOCK 16384

// One partial sum for each 16384 elements.
KERNEL(256) sum_squares(const void* x, int kind, float* partial, i64 count) {
    i64 first = i64(blockIdx.x) * SQUARES_PER_BLOCK, last = min(count, first + SQUARES_PER_BLOCK);
    float total = 0.0f;
    for (i64 i = first + threadIdx.x; i < last; i += 256) {
        float number = load_any(x, kind, i);
        total += number * number;
    }
    total = block_sum(total);
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

// Adds the partial sums in f64 by one block: each thread every 256th, then the threads in their order.
KERNEL(256) finish_squares(const float* partial, float* sum, i64 count) {
    __shared__ double part[256];
    double total = 0.0;
    for (i64 i = threadIdx.x; i < count; i += 256) total += double(partial[i]);
    part[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < 256; i++) total += part[i];
    *sum = float(total);
}

#define SUMS_PER_LAUNCH 64

struct Sums {
    const float* at[SUMS_PER_LAUNCH];
};

// Adds up to 64 sums of squares in their order to `total`, which the first launch begins. By one thread.
KERNEL(32) add_squares(Sums sums, int count, double* total, int begin) {
    if (threadIdx.x != 0) return;
    double all = begin ? 0.0 : *total;
    for (int i = 0; i < count; i++) all += double(*sums.at[i]);
    *total = all;
}

// A limit of 0 or below means none.
KERNEL(32) clip_scale(const double* total, float* norm, float* scale, float max_norm) {
    if (threadIdx.x != 0) return;
    double root = sqrt(*total);
    double limit = max_norm > 0.0f ? fmin(double(max_norm) / (root + 1e-6), 1.0) : 1.0;
    *norm = float(root);
    // Judged as it is stored: a norm that overflows f32 is as useless as one that overflowed before.
    *scale = isfinite(float(root)) ? float(limit) : NAN;
}

// ---- rules --------------------------------------------------------------------------------------------------------

struct Descent {
    float decay, momentum;
    float ahead_gradient, ahead_sum; // factors of the gradient and of the running sum in the step
};

struct Sign {
    float sign_moment, sign_gradient; // β₁ and 1 − β₁, rounded once
    float moment, gradient; // β₂ and 1 − β₂
    float decay;
};

struct Adam {
    float beta1, beta2, rest1, rest2; // rest is 1 − β, rounded once
    float epsilon, decay;
};

// βⁿ in f64 by squaring: 1 − βⁿ cancels for β near 1.
__device__ inline double power_of(double base, u32 exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent /= 2, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

template <int W, int M>
__device__ void sgd(const Ranges& r, const float* lr_at, const float* scale_at, const Descent& d) {
    __shared__ float table[4][256];
    float lr = *lr_at, scale = *scale_at;
    if (!isfinite(scale)) return;
    if (M == BLOCKS) load_codes(table);
    i64 at = first_of_lane();
    float grad[PER_LANE], p[PER_LANE], m[PER_LANE] = {};
    load_gradient(r, at, grad);
    load_parameter<W>(r, at, p);
    load_moment<M>(r, 0, table, at, m);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        float g = scale * grad[i] + d.decay * p[i];
        if (M == NONE) {
            p[i] = p[i] - lr * g;
        } else {
            m[i] = d.momentum * m[i] + g;
            p[i] = p[i] - lr * (d.ahead_gradient * g + d.ahead_sum * m[i]);
        }
    }
    store_parameter<W>(r, at, p);
    store_moment<M>(r, 0, table, at, m);
}

template <int W, int M>
__device__ void lion(const Ranges& r, const float* lr_at, const float* scale_at, const Sign& s) {
    __shared__ float table[4][256];
    float lr = *lr_at, scale = *scale_at;
    if (!isfinite(scale)) return;
    if (M == BLOCKS) load_codes(table);
    i64 at = first_of_lane();
    float grad[PER_LANE], p[PER_LANE], m[PER_LANE];
    load_gradient(r, at, grad);
    load_parameter<W>(r, at, p);
    load_moment<M>(r, 0, table, at, m);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        float g = scale * grad[i];
        float mixed = s.sign_moment * m[i] + s.sign_gradient * g;
        float sign = (mixed > 0.0f ? 1.0f : 0.0f) - (mixed < 0.0f ? 1.0f : 0.0f);
        p[i] = p[i] - lr * (sign + s.decay * p[i]);
        m[i] = s.moment * m[i] + s.gradient * g;
    }
    store_parameter<W>(r, at, p);
    store_moment<M>(r, 0, table, at, m);
}

template <int W, int M>
__device__ void adamw(const Ranges& r, const float* lr_at, const float* step_at, const float* scale_at, const Adam& a) {
    __shared__ float table[4][256], unbias[2];
    float lr = *lr_at, scale = *scale_at;
    if (!isfinite(scale)) return;
    if (threadIdx.x < 2) {
        double beta = double(threadIdx.x == 0 ? a.beta1 : a.beta2);
        unbias[threadIdx.x] = float(1.0 / (1.0 - power_of(beta, u32(*step_at))));
    }
    if (M == BLOCKS) load_codes(table);
    __syncthreads();
    float unbias1 = unbias[0], unbias2 = unbias[1];
    i64 at = first_of_lane();
    float grad[PER_LANE], p[PER_LANE], m[PER_LANE], v[PER_LANE];
    load_gradient(r, at, grad);
    load_parameter<W>(r, at, p);
    load_moment<M>(r, 0, table, at, m);
    load_moment<M>(r, 1, table, at, v);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        float g = scale * grad[i];
        m[i] = a.beta1 * m[i] + a.rest1 * g;
        v[i] = a.beta2 * v[i] + a.rest2 * (g * g);
        float direction = m[i] * unbias1 / (sqrtf(v[i] * unbias2) + a.epsilon);
        p[i] = p[i] - lr * (direction + a.decay * p[i]);
    }
    store_parameter<W>(r, at, p);
    store_moment<M>(r, 0, table, at, m);
    store_moment<M>(r, 1, table, at, v);
}

// ---- steps without gradients --------------------------------------------------------------------------------------

// The place of a loss among all, as −½ … ½; equal ones share theirs, and one that is not finite is among the last.
__device__ inline double rank_of(const float* losses, int count, float loss) {
    float key = isfinite(loss) ? loss : INFINITY;
    int below = 0, equal = 0;
    for (int i = 0; i < count; i++) {
        float other = isfinite(losses[i]) ? losses[i] : INFINITY;
        below += other < key, equal += other == key;
    }
    return (double(below) + 0.5 * double(max(equal - 1, 0))) / double(max(count - 1, 1)) - 0.5;
}

// The factor of each direction from the losses of its two probes, all NaN where the step must change nothing. One block.
KERNEL(256) probe_factors(const float* losses, float* factors, int directions, float size, int ranked) {
    float lost = 0.0f;
    for (int i = threadIdx.x; i < 2 * directions; i += 256) lost += isfinite(losses[i]) ? 0.0f : 1.0f;
    lost = block_sum(lost);
    bool refused = ranked ? lost == 2 * directions : lost > 0;
    double distance = ranked ? 1.0 : double(size);
    for (int d = threadIdx.x; d < directions; d += 256) {
        float in = losses[2 * d], against = losses[2 * d + 1];
        double difference = ranked ? rank_of(losses, 2 * directions, in) - rank_of(losses, 2 * directions, against)
                                   : double(in) - double(against);
        factors[d] = refused ? NAN : float(difference / (distance * double(2 * directions)));
    }
}

template <int W>
__device__ void probe_step(const Ranges& r, const float* lr_at, const int* probe, const float* factors, int directions,
                           u64 stream, float decay) {
    if (!isfinite(factors[0])) return;
    float lr = *lr_at;
    i64 at = first_of_lane();
    float p[PER_LANE], slope[PER_LANE] = {};
    for (int d = 0; d < directions; d++) {
        Stream drawn = stream_of_probe(probe, stream, u32(d));
        float factor = factors[d];
#pragma unroll
        for (int half = 0; half < PER_LANE; half += 4) {
            float z[4];
            normal_quad(drawn, (at + half) / 4, z);
#pragma unroll
            for (int i = 0; i < 4; i++) slope[half + i] = slope[half + i] + factor * z[i];
        }
    }
    load_parameter<W>(r, at, p);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) p[i] = p[i] - lr * (slope[i] + decay * p[i]);
    store_parameter<W>(r, at, p);
}

#define PROBE_STEP(name, W) \
    KERNEL(256) probe_step_##name(Ranges ranges, const float* lr, const int* probe, const float* factors, int directions, \
                                  u64 stream, float decay) { \
        probe_step<W>(ranges, lr, probe, factors, directions, stream, decay); \
    }

PROBE_STEP(f32, WHOLE)
PROBE_STEP(stochastic, STOCHASTIC)
PROBE_STEP(split, SPLIT)

#define SGD(name, W, M) \
    KERNEL(256) sgd_##name(Ranges ranges, const float* lr, const float* scale, Descent descent) { \
        sgd<W, M>(ranges, lr, scale, descent); \
    }
#define ADAMW(name, W, M) \
    KERNEL(256) adamw_##name(Ranges ranges, const float* lr, const float* step, const float* scale, Adam adam) { \
        adamw<W, M>(ranges, lr, step, scale, adam); \
    }
#define LION(name, W, M) \
    KERNEL(256) lion_##name(Ranges ranges, const float* lr, const float* scale, Sign sign) { \
        lion<W, M>(ranges, lr, scale, sign); \
    }
#define ALL(name, W, M) SGD(name, W, M) ADAMW(name, W, M) LION(name, W, M)

SGD(f32_none, WHOLE, NONE)
SGD(stochastic_none, STOCHASTIC, NONE)
SGD(split_none, SPLIT, NONE)
ALL(f32_f32, WHOLE, PLAIN)
ALL(f32_bf16, WHOLE, HALF)
ALL(f32_blocks, WHOLE, BLOCKS)
ALL(stochastic_f32, STOCHASTIC, PLAIN)
ALL(stochastic_bf16, STOCHASTIC, HALF)
ALL(stochastic_blocks, STOCHASTIC, BLOCKS)
ALL(split_f32, SPLIT, PLAIN)
ALL(split_bf16, SPLIT, HALF)
ALL(split_blocks, SPLIT, BLOCKS)
