// Layer norm and root-mean-square norm over the last axis, forward and backward.
//
// Defined by `exec/src/reference/norms.rs`; the CPU's twin is `exec/src/cpu/norms.rs`. One block takes one row; sums and
// statistics are f32 whatever the element type. Weights and biases are vectors of any type.
#include "columns.cuh"

// Visits the packs of a row that belong to this thread: `body(column, count)`.
#define FOR_PACKS(T, columns) \
    for (i64 column = i64(threadIdx.x) * Lanes<T>::N; column < (columns); column += i64(blockDim.x) * Lanes<T>::N)

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
        float numbers[Lanes<T>::N];
        load(x + column, columns - column, whole, numbers);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++)
            if (column + i < columns) {
                float number = load_any(w, w_kind, column + i) * ((numbers[i] - mean) * rstd);
                numbers[i] = b ? number + load_any(b, b_kind, column + i) : number;
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
        float numbers[Lanes<T>::N], gradients[Lanes<T>::N];
        load(x + column, columns - column, whole, numbers);
        load(dy + column, columns - column, whole, gradients);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++)
            if (column + i < columns) {
                float g = load_any(w, w_kind, column + i) * gradients[i];
                shift += g;
                slope += g * ((numbers[i] - mean) * rstd);
            }
    }
    shift = centred ? block_sum(shift) / float(columns) : 0.0f;
    slope = block_sum(slope) / float(columns);
    FOR_PACKS(T, columns) {
        float numbers[Lanes<T>::N], gradients[Lanes<T>::N];
        load(x + column, columns - column, whole, numbers);
        load(dy + column, columns - column, whole, gradients);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++)
            if (column + i < columns) {
                float g = load_any(w, w_kind, column + i) * gradients[i];
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
