// Optimizers that take a parameter as matrices: Adafactor and Muon.
//
// Defined by `exec/src/reference/optimizers.rs`; the CPU's twins are `exec/src/cpu/adafactor.rs` and `muon.rs`. A
// parameter of more than two axes is several matrices; a vector is one row. Kernels that write state leave it alone where
// the scale is not finite.
#include "columns.cuh"
#include "stored.cuh"

// ---- Adafactor ----------------------------------------------------------------------------------------------------

// The sum of g² + ε over each row. One block to a row.
KERNEL(256) squares_of_rows(const void* grad, int kind, const float* scale, float* sums, i64 columns, float epsilon) {
    i64 first = i64(blockIdx.x) * columns;
    float total = 0.0f, factor = *scale;
    for (i64 i = threadIdx.x; i < columns; i += 256) {
        float g = factor * load_any(grad, kind, first + i);
        total += g * g + epsilon;
    }
    total = block_sum(total);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

template <class T> struct Squares {
    const T* grad;
    i64 columns;
    float scale, epsilon;
    __device__ void add(i64 row, i64 column, bool whole, float (&total)[Lanes<T>::N]) const {
        float g[Lanes<T>::N];
        load(grad + row * columns + column, columns - column, whole, g);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) total[i] += (scale * g[i]) * (scale * g[i]) + epsilon;
    }
};

// The same over each column: partial sums of chunks, which `finish_sums` adds.
#define SQUARES_OF_COLUMNS(suffix, T) \
    KERNEL(256) squares_of_columns_##suffix(const T* grad, const float* scale, float* partial, i64 rows, i64 columns, \
                                            i64 chunk, float epsilon) { \
        column_sums<T>(Squares<T>{grad, columns, *scale, epsilon}, partial, rows, columns, chunk); \
    }
FOR_ACTIVATIONS(SQUARES_OF_COLUMNS)

// Moves running means on by sums of `terms` squares; they decay by 1 − stepʳ.
KERNEL(256) move_means(const float* sums, float* means, const float* step, const float* scale, float rate, i64 terms,
                       i64 count) {
    i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= count || !isfinite(*scale)) return;
    float beta = float(1.0 - pow(double(*step), double(rate)));
    means[at] = beta * means[at] + (1.0f - beta) * float(double(sums[at]) / double(terms));
}

// The mean of the rows' means of each matrix. One block to a matrix.
KERNEL(256) centres_of_rows(const float* rows, float* centres, i64 count) {
    const float* own = rows + i64(blockIdx.x) * count;
    float total = 0.0f;
    for (i64 i = threadIdx.x; i < count; i += 256) total += own[i];
    total = block_sum(total);
    if (threadIdx.x == 0) centres[blockIdx.x] = total / float(count);
}

// A gradient is divided by the roots of these means: its row's over the mean of all rows, and its column's. A vector has
// columns alone.
struct Factors {
    const float *rows, *columns, *centres;
    i64 row_count, column_count;

    __device__ float of_row(i64 row) const {
        return rows ? 1.0f / sqrtf(rows[row] / centres[row / row_count]) : 1.0f;
    }
    __device__ float of_column(i64 row, i64 column) const {
        return 1.0f / sqrtf(columns[row / row_count * column_count + column]);
    }
};

// The sum of u² over each row, u being the step before it is clipped. One block to a row.
KERNEL(256) squares_of_steps(const void* grad, int kind, const float* scale, Factors by, float* sums) {
    i64 row = blockIdx.x;
    float total = 0.0f, factor = *scale, of_row = by.of_row(row);
    for (i64 column = threadIdx.x; column < by.column_count; column += 256) {
        float u = factor * load_any(grad, kind, row * by.column_count + column) * (of_row * by.of_column(row, column));
        total += u * u;
    }
    total = block_sum(total);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

template <int W>
__device__ void adafactor(const Ranges& r, const float* lr_at, const float* scale_at, const Factors& by,
                          const float* squares, float threshold, float decay) {
    float lr = *lr_at, scale = *scale_at;
    i64 at = first_of_lane();
    if (!isfinite(scale) || at >= r.count) return;
    float clip = fmaxf(sqrtf(*squares / float(r.count)) / threshold, 1.0f);
    i64 row = at / by.column_count, column = at % by.column_count;
    float grad[PER_LANE], p[PER_LANE], of_row = by.of_row(row);
    load_gradient(r, at, grad);
    load_parameter<W>(r, at, p);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        if (at + i >= r.count) continue;
        float u = scale * grad[i] * (of_row * by.of_column(row, column));
        p[i] = p[i] - lr * (u / clip + decay * p[i]);
        if (++column == by.column_count && at + i + 1 < r.count) column = 0, of_row = by.of_row(++row);
    }
    store_parameter<W>(r, at, p);
}

#define ADAFACTOR(name, W) \
    KERNEL(256) adafactor_##name(Ranges ranges, const float* lr, const float* scale, Factors by, const float* squares, \
                                 float threshold, float decay) { \
        adafactor<W>(ranges, lr, scale, by, squares, threshold, decay); \
    }
ADAFACTOR(f32, WHOLE)
ADAFACTOR(stochastic, STOCHASTIC)
ADAFACTOR(split, SPLIT)

// ---- Muon ---------------------------------------------------------------------------------------------------------

struct Momentum {
    float rate, rest; // rest is 1 − rate, rounded once
    int nesterov;
};

// Moves the running mean of gradients on and writes the direction that follows from it, of type T.
template <int M, class T>
__device__ void muon_direction(const Ranges& r, const float* scale_at, const Momentum& rule, T* direction) {
    float scale = *scale_at;
    if (!isfinite(scale)) return;
    i64 at = first_of_lane();
    float grad[PER_LANE], m[PER_LANE], step[PER_LANE];
    load_gradient(r, at, grad);
    load_moment<M>(r, 0, nullptr, at, m);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        float g = rule.rest * (scale * grad[i]);
        m[i] = rule.rate * m[i] + g;
        step[i] = rule.nesterov ? rule.rate * m[i] + g : m[i];
    }
    store_moment<M>(r, 0, nullptr, at, m);
    store_eight(direction, at, r.count, step);
}

#define MUON_DIRECTION(name, M, T) \
    KERNEL(256) muon_direction_##name(Ranges ranges, const float* scale, Momentum rule, T* direction) { \
        muon_direction<M>(ranges, scale, rule, direction); \
    }
MUON_DIRECTION(f32_f32, PLAIN, float)
MUON_DIRECTION(f32_bf16, PLAIN, bf16)
MUON_DIRECTION(bf16_f32, HALF, float)
MUON_DIRECTION(bf16_bf16, HALF, bf16)

// Divides a matrix by its norm.
template <class T> __device__ void muon_normalise(const T* x, T* y, const float* squares, float least, i64 count) {
    i64 at = first_of_lane();
    float inverse = 1.0f / fmaxf(sqrtf(*squares), least), numbers[PER_LANE];
    load_eight(x, at, count, numbers);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) numbers[i] *= inverse;
    store_eight(y, at, count, numbers);
}

#define MUON_NORMALISE(suffix, T) \
    KERNEL(256) muon_normalise_##suffix(const T* x, T* y, const float* squares, float least, i64 count) { \
        muon_normalise(x, y, squares, least, count); \
    }
FOR_ACTIVATIONS(MUON_NORMALISE)

struct Polynomial {
    float first, second, third;
};

// B ← first·1 + second·A + third·B for squares with `side` rows, where B is A². The unit matrix saves an addend of the
// product that follows.
template <class T> __device__ void muon_polynomial(const T* a, T* b, const Polynomial& by, i64 side) {
    i64 count = side * side, at = first_of_lane();
    float one[PER_LANE], two[PER_LANE];
    load_eight(a, at, count, one);
    load_eight(b, at, count, two);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        two[i] = by.second * one[i] + by.third * two[i];
        if ((at + i) % (side + 1) == 0) two[i] += by.first;
    }
    store_eight(b, at, count, two);
}

#define MUON_POLYNOMIAL(suffix, T) \
    KERNEL(256) muon_polynomial_##suffix(const T* a, T* b, Polynomial by, i64 side) { \
        muon_polynomial(a, b, by, side); \
    }
FOR_ACTIVATIONS(MUON_POLYNOMIAL)

template <int W>
__device__ void muon(const Ranges& r, const float* lr_at, const float* scale_at, const void* steps, int kind, float size,
                     float decay) {
    float lr = *lr_at;
    if (!isfinite(*scale_at)) return;
    i64 at = first_of_lane();
    float step[PER_LANE], p[PER_LANE];
    if (kind == F32) load_eight((const float*)steps, at, r.count, step);
    else load_eight((const bf16*)steps, at, r.count, step);
    load_parameter<W>(r, at, p);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) p[i] = p[i] - lr * (size * step[i] + decay * p[i]);
    store_parameter<W>(r, at, p);
}

#define MUON(name, W) \
    KERNEL(256) muon_##name(Ranges ranges, const float* lr, const float* scale, const void* steps, int kind, float size, \
                            float decay) { \
        muon<W>(ranges, lr, scale, steps, kind, size, decay); \
    }
MUON(f32, WHOLE)
MUON(stochastic, STOCHASTIC)
MUON(split, SPLIT)
