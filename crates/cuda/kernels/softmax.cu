// Softmax over the last axis, and cross-entropy with or without its gradient.
//
// Defined by `exec/src/reference/norms.rs` (`softmax`) and `losses.rs`; the CPU's twins are `exec/src/cpu/softmax.rs` and
// `head.rs`. One block takes one row and runs through it twice: once for the largest number and the divisor together,
// once for the results, which may lie over the row itself.
#include "block.cuh"

struct Divisor {
    float largest;
    float sum; // Σ exp(x − largest)
};

__device__ inline float power(float x, float largest) { return x == largest ? 1.0f : expf(x - largest); }

// The largest number of x [+ bias] and the sum of the powers below it, over the whole row.
template <class T> __device__ Divisor divisor(const T* x, const void* bias, int bias_kind, i64 columns) {
    bool whole = rows_are_whole<T>(columns);
    float largest = -INFINITY, sum = 0.0f;
    for (i64 column = i64(threadIdx.x) * Lanes<T>::N; column < columns; column += i64(blockDim.x) * Lanes<T>::N) {
        float numbers[Lanes<T>::N];
        load(x + column, columns - column, whole, numbers);
        float peak = largest;
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++)
            if (column + i < columns) {
                if (bias) numbers[i] += load_any(bias, bias_kind, column + i);
                peak = fmaxf(peak, numbers[i]);
            }
        sum *= power(largest, peak);
        largest = peak;
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++)
            if (column + i < columns) sum += power(numbers[i], largest);
    }
    Divisor result;
    result.largest = block_max(largest);
    result.sum = block_sum(sum * power(largest, result.largest));
    return result;
}

template <class T> __device__ void softmax(const T* x, T* y, i64 columns) {
    bool whole = rows_are_whole<T>(columns);
    Divisor d = divisor(x, nullptr, F32, columns);
    float inverse = 1.0f / d.sum;
    for (i64 column = i64(threadIdx.x) * Lanes<T>::N; column < columns; column += i64(blockDim.x) * Lanes<T>::N) {
        float numbers[Lanes<T>::N];
        load(x + column, columns - column, whole, numbers);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) numbers[i] = power(numbers[i], d.largest) * inverse;
        store(y + column, columns - column, whole, numbers);
    }
}

#define SOFTMAX(suffix, T) \
    KERNEL(1024) softmax_##suffix(const T* x, T* y, i64 columns) { \
        softmax(x + blockIdx.x * columns, y + blockIdx.x * columns, columns); \
    }
FOR_ACTIVATIONS(SOFTMAX)

// dx = y·(dy − Σ dy·y)
template <class T> __device__ void softmax_grad(const T* y, const T* dy, T* dx, i64 columns) {
    bool whole = rows_are_whole<T>(columns);
    float mean = 0.0f;
    for (i64 column = i64(threadIdx.x) * Lanes<T>::N; column < columns; column += i64(blockDim.x) * Lanes<T>::N) {
        float numbers[Lanes<T>::N], gradients[Lanes<T>::N];
        load(y + column, columns - column, whole, numbers);
        load(dy + column, columns - column, whole, gradients);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) mean += numbers[i] * gradients[i];
    }
    mean = block_sum(mean);
    for (i64 column = i64(threadIdx.x) * Lanes<T>::N; column < columns; column += i64(blockDim.x) * Lanes<T>::N) {
        float numbers[Lanes<T>::N], gradients[Lanes<T>::N];
        load(y + column, columns - column, whole, numbers);
        load(dy + column, columns - column, whole, gradients);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) numbers[i] *= gradients[i] - mean;
        store(dx + column, columns - column, whole, numbers);
    }
}

#define SOFTMAX_GRAD(suffix, T) \
    KERNEL(1024) softmax_grad_##suffix(const T* y, const T* dy, T* dx, i64 columns) { \
        i64 at = blockIdx.x * columns; \
        softmax_grad(y + at, dy + at, dx + at, columns); \
    }
FOR_ACTIVATIONS(SOFTMAX_GRAD)

// Logits (rows, words), of which this block has one row; `losses` and `gradient` are null where they are not wanted.
// A row whose target is `ignore` has neither. `row` counts from `first_row`, where a chunk of rows begins.
template <class T>
__device__ void cross_entropy(const T* logits, const void* bias, int bias_kind, const int* targets, const float* scale,
                              float* losses, T* gradient, i64 words, int ignore, u64* check, i64 first_row) {
    i64 row = first_row + blockIdx.x;
    logits += blockIdx.x * words;
    if (gradient) gradient += blockIdx.x * words;
    int target = targets[row];
    bool outside = target != ignore && (target < 0 || target >= words);
    bool counts = target != ignore && !outside;
    if (outside && threadIdx.x == 0) report(check, row, target);
    // Read before the gradient may lie over it.
    float chosen = counts ? widen(logits[target]) + (bias ? load_any(bias, bias_kind, target) : 0.0f) : 0.0f;
    Divisor d = divisor(logits, bias, bias_kind, words);
    if (losses && threadIdx.x == 0) losses[row] = counts ? d.largest + logf(d.sum) - chosen : 0.0f;
    if (!gradient) return;
    bool whole = rows_are_whole<T>(words);
    float factor = *scale, inverse = 1.0f / d.sum;
    float one = isfinite(chosen) ? 1.0f : NAN; // a loss that is not finite allows no update
    for (i64 word = i64(threadIdx.x) * Lanes<T>::N; word < words; word += i64(blockDim.x) * Lanes<T>::N) {
        float numbers[Lanes<T>::N];
        load(logits + word, words - word, whole, numbers);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) {
            float shift = bias && word + i < words ? load_any(bias, bias_kind, word + i) : 0.0f;
            float p = power(numbers[i] + shift, d.largest) * inverse;
            numbers[i] = counts ? factor * (p - (word + i == target ? one : 0.0f)) : 0.0f;
        }
        store(gradient + word, words - word, whole, numbers);
    }
}

#define CROSS_ENTROPY(suffix, T) \
    KERNEL(1024) \
    cross_entropy_##suffix(const T* logits, const void* bias, int bias_kind, const int* targets, const float* scale, \
                           float* losses, T* gradient, i64 words, int ignore, u64* check, i64 first_row) { \
        cross_entropy(logits, bias, bias_kind, targets, scale, losses, gradient, words, ignore, check, first_row); \
    }
FOR_ACTIVATIONS(CROSS_ENTROPY)

// loss = scale · Σ losses, by one block.
KERNEL(1024) sum_losses(const float* losses, const float* scale, float* loss, i64 count) {
    float total = 0.0f;
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) total += losses[i];
    total = block_sum(total);
    if (threadIdx.x == 0) *loss = *scale * total;
}
