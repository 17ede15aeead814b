// Layer norm and root-mean-square norm over the last axis, forward and backward.
//
// Defined by `exec/src/reference/norms.rs`; the CPU's twin is `exec/src/cpu/norms.rs`. One block takes one row; sums and
// statistics are f32 whatever the element type. Weights and biases are vectors of any type.
#include "columns.cuh"

// Visits the packs of a row that belong to this thread: `body(column, count)`.
#define FOR_PACKS(T, columns) \
    for (i64 column = i64(threadIdx.x) * Lanes<T>::N; column < (columns); column += i64(blockDim.x) * Lanes<T>::N)

// As many numbers of a vector of any type as a pack has, from column `column` on, which is a multiple of that; zeros
// behind its end. f32 and, where a pack fills 16 bytes, bf16 travel 16 bytes at a time: read one by one, the numbers of a
// weight would be eight scattered loads for each load of a row.
__device__ inline void unpack_halves(const bf16* p, float (&x)[8]) { unpack(*(const Quad*)p, x); }
__device__ inline void unpack_halves(const bf16* p, float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = widen(p[i]);
}
template <int N>
__device__ inline void load_vector(const void* w, int kind, i64 column, i64 columns, float (&x)[N]) {
    bool full = column + N <= columns;
    if (full && kind == F32) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float four[4];
            unpack(*(const Quad*)((const float*)w + column + i), four);
#pragma unroll
            for (int j = 0; j < 4; j++) x[i + j] = four[j];
        }
    } else if (full && kind == BF16) {
        unpack_halves((const bf16*)w + column, x);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = column + i < columns ? load_any(w, kind, column + i) : 0.0f;
    }
}

template <class T> __device__ inline float sum_over_row(const T* x, i64 columns, float shift, bool square) {
    float total = 0.0f;
    bool whole = rows_are_whole<T>(columns);
    FOR_PACKS(T, columns) {
        float numbers[Lanes<T>::N];
        load(x + column, columns - column, whole, numbers);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++)
            if (column + i < columns) {
                float number = numbers[i] - shift;
                total += square ? number * number : number;
            }
    }
    return block_sum(total);
}

// y = w·(x − mean)·rstd [+ b]
template <class T>
__device__ inline void normalise(const T* x, const void* w, int w_kind, const void* b, int b_kind, T* y, i64 columns,
                                 float mean, float rstd) {
    bool whole = rows_are_whole<T>(columns);
    FOR_PACKS(T, columns) {
        float numbers[Lanes<T>::N], weights[Lanes<T>::N], biases[Lanes<T>::N];
        load(x + column, columns - column, whole, numbers);
        load_vector(w, w_kind, column, columns, weights);
        if (b) load_vector(b, b_kind, column, columns, biases);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) {
            float number = weights[i] * ((numbers[i] - mean) * rstd);
            numbers[i] = b ? number + biases[i] : number;
        }
        store(y + column, columns - column, whole, numbers);
    }
}

#define LAYER_NORM(suffix, T) \
    KERNEL(1024) \
    layer_norm_##suffix(const T* x, const void* w, int w_kind, const void* b, int b_kind, T* y, float* means, \
                        float* rstds, i64 columns, float epsilon) { \
        i64 row = blockIdx.x; \
        x += row * columns, y += row * columns; \
        float mean = sum_over_row(x, columns, 0.0f, false) / float(columns); \
        float variance = sum_over_row(x, columns, mean, true) / float(columns); \
        float rstd = 1.0f / sqrtf(variance + epsilon); \
        if (threadIdx.x == 0) means[row] = mean, rstds[row] = rstd; \
        normalise(x, w, w_kind, b, b_kind, y, columns, mean, rstd); \
    }
FOR_ACTIVATIONS(LAYER_NORM)

#define RMS_NORM(suffix, T) \
    KERNEL(1024) rms_norm_##suffix(const T* x, const void* w, int w_kind, T* y, float* rstds, i64 columns, float epsilon) { \
        i64 row = blockIdx.x; \
        x += row * columns, y += row * columns; \
        float rstd = 1.0f / sqrtf(sum_over_row(x, columns, 0.0f, true) / float(columns) + epsilon); \
        if (threadIdx.x == 0) rstds[row] = rstd; \
        normalise(x, w, w_kind, nullptr, F32, y, columns, 0.0f, rstd); \
    }
FOR_ACTIVATIONS(RMS_NORM)

// With n the normalised row and g = w·dy: dx = rstd·(g − mean(g) − n·mean(g·n)); without a mean, `centred` is false and
// the middle term is missing.
template <class T>
__device__ void norm_grad_input(const T* x, const void* w, int w_kind, float mean, float rstd, const T* dy, T* dx,
                                i64 columns, bool centred) {
    bool whole = rows_are_whole<T>(columns);
    float shift = 0.0f, slope = 0.0f;
    FOR_PACKS(T, columns) {
        float numbers[Lanes<T>::N], gradients[Lanes<T>::N], weights[Lanes<T>::N];
        load(x + column, columns - column, whole, numbers);
        load(dy + column, columns - column, whole, gradients);
        load_vector(w, w_kind, column, columns, weights);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++)
            if (column + i < columns) {
                float g = weights[i] * gradients[i];
                shift += g;
                slope += g * ((numbers[i] - mean) * rstd);
            }
    }
    shift = centred ? block_sum(shift) / float(columns) : 0.0f;
    slope = block_sum(slope) / float(columns);
    FOR_PACKS(T, columns) {
        float numbers[Lanes<T>::N], gradients[Lanes<T>::N], weights[Lanes<T>::N];
        load(x + column, columns - column, whole, numbers);
        load(dy + column, columns - column, whole, gradients);
        load_vector(w, w_kind, column, columns, weights);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) {
            float g = weights[i] * gradients[i];
            numbers[i] = rstd * (g - shift - (numbers[i] - mean) * rstd * slope);
        }
        store(dx + column, columns - column, whole, numbers);
    }
}

// `means` is null for the root-mean-square norm.
#define NORM_GRAD_INPUT(suffix, T) \
    KERNEL(1024) \
    norm_grad_input_##suffix(const T* x, const void* w, int w_kind, const float* means, const float* rstds, \
                             const T* dy, T* dx, i64 columns) { \
        i64 row = blockIdx.x, at = row * columns; \
        norm_grad_input(x + at, w, w_kind, means ? means[row] : 0.0f, rstds[row], dy + at, dx + at, columns, \
                        means != nullptr); \
    }
FOR_ACTIVATIONS(NORM_GRAD_INPUT)

// dw = Σ rows n·dy, as partial sums.
template <class T> struct Normalised {
    const T* x;
    const float* means;
    const float* rstds;
    const T* dy;
    i64 columns;
    __device__ void add(i64 row, i64 column, bool whole, float (&total)[Lanes<T>::N]) const {
        float numbers[Lanes<T>::N], gradients[Lanes<T>::N];
        load(x + row * columns + column, columns - column, whole, numbers);
        load(dy + row * columns + column, columns - column, whole, gradients);
        float mean = means ? means[row] : 0.0f, rstd = rstds[row];
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) total[i] += (numbers[i] - mean) * rstd * gradients[i];
    }
};

#define NORM_GRAD_WEIGHT(suffix, T) \
    KERNEL(256) \
    norm_grad_weight_##suffix(const T* x, const float* means, const float* rstds, const T* dy, float* partial, i64 rows, \
                              i64 columns, i64 chunk) { \
        column_sums<T>(Normalised<T>{x, means, rstds, dy, columns}, partial, rows, columns, chunk); \
    }
FOR_ACTIVATIONS(NORM_GRAD_WEIGHT)
