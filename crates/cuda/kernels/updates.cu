// Norm of the gradients and the optimizers' rules, over state of every element type.
//
// Defined by `exec/src/reference/updates.rs` and `stored.rs`; the CPU's twins are `exec/src/cpu/updates.rs` and
// `stored.rs`, whose f32 operations are repeated here one by one. This file is compiled without fused multiply-add, so
// that a step has the CPU's bits.
//
// A warp takes a block of 256 elements, the one whose 8-bit moments share a scale; a lane takes eight in a row.
#include "codes.cuh"
#include "normal.cuh"

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

// ---- how state is kept --------------------------------------------------------------------------------------------

enum Weights { WHOLE, STOCHASTIC, SPLIT };
enum Moments { NONE, PLAIN, HALF, BLOCKS };

#define PER_LANE 8

// Addresses of what an update reads and writes; those that a form of storage lacks are null.
struct Ranges {
    const void* grad;
    int grad_kind;
    void* parameter;
    short* lower;
    void* moment[2];
    float* largest[2];
    const int* rng;
    u64 name;
    i64 count;
};

template <class T> __device__ inline void load_eight(const T* p, i64 at, i64 count, float (&x)[PER_LANE]) {
#pragma unroll
    for (int pack = 0; pack < PER_LANE; pack += Lanes<T>::N) {
        float part[Lanes<T>::N];
        load(p + at + pack, count - at - pack, true, part);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) x[pack + i] = part[i];
    }
}

template <class T> __device__ inline void store_eight(T* p, i64 at, i64 count, const float (&x)[PER_LANE]) {
#pragma unroll
    for (int pack = 0; pack < PER_LANE; pack += Lanes<T>::N) {
        float part[Lanes<T>::N];
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) part[i] = x[pack + i];
        store(p + at + pack, count - at - pack, true, part);
    }
}

template <int FORM> __device__ inline void load_parameter(const Ranges& r, i64 at, float (&x)[PER_LANE]) {
    if (FORM == WHOLE) {
        load_eight((const float*)r.parameter, at, r.count, x);
    } else {
        load_eight((const bf16*)r.parameter, at, r.count, x);
    }
    if (FORM == SPLIT) {
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (at + i < r.count) x[i] = __uint_as_float(__float_as_uint(x[i]) + u32(int(r.lower[at + i])));
    }
}

// Rounded up or down at random: with even bits, the mean is x.
__device__ inline u16 stochastic(float x, u32 bits) {
    u32 raised = (__float_as_uint(x) + (bits >> 16)) >> 16, kept = __float_as_uint(x) >> 16 | u32(isnan(x));
    return u16(isfinite(x) ? raised : kept);
}

template <int FORM> __device__ inline void store_parameter(const Ranges& r, i64 at, const float (&x)[PER_LANE]) {
    if (FORM == WHOLE) {
        store_eight((float*)r.parameter, at, r.count, x);
        return;
    }
    u16* upper = (u16*)r.parameter;
    u32 bits[2][4];
    if (FORM == STOCHASTIC) {
        Stream stream = stream_of_input(r.rng, r.name);
        // Row and element of a flat index: row 0 below 2³² elements.
        quad(stream, u32(at >> 32), u32(at) / 4, bits[0]);
        quad(stream, u32(at >> 32), u32(at) / 4 + 1, bits[1]);
    }
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        if (at + i >= r.count) continue;
        if (FORM == STOCHASTIC) {
            upper[at + i] = stochastic(x[i], bits[i / 4][i % 4]);
        } else {
            u32 whole = __float_as_uint(x[i]);
            upper[at + i] = u16((whole + 0x8000) >> 16);
            r.lower[at + i] = short(u16(whole));
        }
    }
}

// The tables of codes in shared memory: numbers and middles of the signed table, then of the unsigned one.
__device__ inline void load_codes(float (&table)[4][256]) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        table[0][i] = SIGNED_NUMBERS[i], table[1][i] = SIGNED_MIDDLES[i];
        table[2][i] = UNSIGNED_NUMBERS[i], table[3][i] = UNSIGNED_MIDDLES[i];
    }
    __syncthreads();
}

// The code of the entry nearest to x; of a positive number that must not become zero, that of the least one above.
__device__ inline u8 nearest(const float* numbers, const float* middles, float x, bool positive) {
    int code = 0;
#pragma unroll
    for (int half = 128; half > 0; half /= 2) code += x > middles[code + half - 1] ? half : 0;
    return u8(positive && x > 0.0f && numbers[code] <= 0.0f ? code + 1 : code);
}

template <int FORM>
__device__ inline void load_moment(const Ranges& r, int which, const float (*table)[256], i64 at, float (&x)[PER_LANE]) {
    if (FORM == PLAIN) load_eight((const float*)r.moment[which], at, r.count, x);
    if (FORM == HALF) load_eight((const bf16*)r.moment[which], at, r.count, x);
    if (FORM == BLOCKS) {
        const u8* codes = (const u8*)r.moment[which];
        float largest = at < r.count ? r.largest[which][at / 256] : 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) x[i] = at + i < r.count ? table[2 * which][codes[at + i]] * largest : 0.0f;
    }
}

template <int FORM>
__device__ inline void store_moment(const Ranges& r, int which, const float (*table)[256], i64 at,
                                    const float (&x)[PER_LANE]) {
    if (FORM == PLAIN) store_eight((float*)r.moment[which], at, r.count, x);
    if (FORM == HALF) store_eight((bf16*)r.moment[which], at, r.count, x);
    if (FORM == BLOCKS) {
        u8* codes = (u8*)r.moment[which];
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (at + i < r.count) largest = fmaxf(largest, fabsf(x[i]));
        largest = warp_max(largest);
        // A block of zeros has no scale to divide by; whatever its codes are, they stand for zeros.
        float inverse = largest > 0.0f ? 1.0f / largest : 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (at + i < r.count)
                codes[at + i] = nearest(table[2 * which], table[2 * which + 1], x[i] * inverse, which == 1);
        if (threadIdx.x % 32 == 0 && at < r.count) r.largest[which][at / 256] = largest;
    }
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

// Element of the first lane of this thread; a block of threads takes eight blocks of 256.
__device__ inline i64 first_of_lane() { return (i64(blockIdx.x) * blockDim.x + threadIdx.x) * PER_LANE; }

__device__ inline void load_gradient(const Ranges& r, i64 at, float (&x)[PER_LANE]) {
    if (r.grad_kind == F32) load_eight((const float*)r.grad, at, r.count, x);
    else load_eight((const bf16*)r.grad, at, r.count, x);
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
