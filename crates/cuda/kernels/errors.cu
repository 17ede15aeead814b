// Errors of a head in place of its loss: rows whose target another word beats, or answers that hold such a row.
//
// Defined by `exec/src/reference/losses.rs` (`head_errors`); the CPU's twin is `exec/src/cpu/head/errors.rs`. Counts are
// whole numbers, so no order of sums changes a bit.
#include "block.cuh"

// 1 where another word is likelier than the target, 0 where none is or the target is ignored, NaN where some logit is no
// number below infinity. One block takes one row; `row` counts from `first_row`, where a chunk of rows begins.
template <class T>
__device__ void mark_errors(const T* logits, const void* bias, int bias_kind, const int* targets, float* marks, i64 words,
                            int ignore, u64* check, i64 first_row) {
    i64 row = first_row + blockIdx.x;
    logits += blockIdx.x * words;
    int target = targets[row];
    bool outside = target != ignore && (target < 0 || target >= words);
    if (outside && threadIdx.x == 0) report(check, row, target);
    bool counts = target != ignore && !outside;
    float chosen = counts ? widen(logits[target]) + (bias ? load_any(bias, bias_kind, target) : 0.0f) : 0.0f;
    bool whole = rows_are_whole<T>(words);
    float beaten = 0.0f, lost = 0.0f;
    for (i64 word = i64(threadIdx.x) * Lanes<T>::N; word < words; word += i64(blockDim.x) * Lanes<T>::N) {
        float numbers[Lanes<T>::N];
        load(logits + word, words - word, whole, numbers);
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++)
            if (word + i < words) {
                float x = numbers[i] + (bias ? load_any(bias, bias_kind, word + i) : 0.0f);
                if (!(x < INFINITY)) lost = 1.0f;
                if (x > chosen || (x == chosen && word + i < target)) beaten = 1.0f;
            }
    }
    lost = block_max(lost);
    beaten = block_max(beaten);
    if (threadIdx.x == 0) marks[row] = !counts ? 0.0f : lost > 0.0f ? NAN : beaten;
}

#define MARK_ERRORS(suffix, T) \
    KERNEL(1024) \
    mark_errors_##suffix(const T* logits, const void* bias, int bias_kind, const int* targets, float* marks, i64 words, \
                         int ignore, u64* check, i64 first_row) { \
        mark_errors(logits, bias, bias_kind, targets, marks, words, ignore, check, first_row); \
    }
FOR_ACTIVATIONS(MARK_ERRORS)

// errors = scale · Σ marks, or with sequences of `length` rows that of the largest mark of each run of targets that are not
// ignored. By one block; a thread takes whole sequences.
KERNEL(256) sum_marks(const float* marks, const int* targets, const float* scale, float* errors, i64 count, i64 length,
                      int ignore) {
    i64 step = length > 0 ? length : 1;
    float total = 0.0f;
    for (i64 first = i64(threadIdx.x) * step; first < count; first += i64(blockDim.x) * step) {
        float open = 0.0f;
        for (i64 row = first; row < first + step; row++) {
            if (targets[row] == ignore) {
                total += open;
                open = 0.0f;
            }
            float mark = marks[row];
            if (mark != mark || mark > open) open = mark;
        }
        total += open;
    }
    total = block_sum(total);
    if (threadIdx.x == 0) *errors = *scale * total;
}
