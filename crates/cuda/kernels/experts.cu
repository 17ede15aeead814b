// Copies of tokens sorted by expert, moved to their rows, and summed back.
//
// Defined by `exec/src/reference/experts.rs`; the CPU's twin is `exec/src/cpu/experts.rs`. The sort counts: copies are
// cut into chunks, a thread stands for an expert and goes through its chunk in order, so copies of an expert keep their
// order whatever runs first. Its three launches count the copies of each chunk, find the rows of experts and the first
// rank of each chunk, and number the copies. A chunk never spans two sequences where a capacity counts them apart.
#include "block.cuh"

struct Sort {
    int experts, tile, most, rows, copies;
    int sequence; // copies
    int chunk;    // copies
    int chunks;   // of a sequence
};

// The copies of this block's chunk, in shared memory; returns the first of them.
__device__ inline int load_chunk(int* indices, const int* from, const Sort& sort, int& count) {
    int first = blockIdx.x / sort.chunks * sort.sequence + blockIdx.x % sort.chunks * sort.chunk;
    int last = min(first + sort.chunk, (int(blockIdx.x) / sort.chunks + 1) * sort.sequence);
    count = last - first;
    for (int i = threadIdx.x; i < count; i += blockDim.x) indices[i] = from[first + i];
    __syncthreads();
    return first;
}

// Counts the copies of each expert in this block's chunk. Returns the first copy; a chunk lies in shared memory.
__device__ inline int count_chunk(int* chunk, const int* indices, int* counts, const Sort& sort, int& count, u64* check) {
    int first = load_chunk(chunk, indices, sort, count);
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        if (chunk[i] < 0 || chunk[i] >= sort.experts) report(check, first + i, chunk[i]);
    for (int expert = threadIdx.x; expert < sort.experts; expert += blockDim.x) {
        int found = 0;
        for (int i = 0; i < count; i++) found += chunk[i] == expert;
        counts[i64(blockIdx.x) * sort.experts + expert] = found;
    }
    return first;
}

// Counts the copies of each expert in each chunk, and marks all rows as empty. A copy to no expert has no row.
KERNEL(256) sort_count(const int* indices, int* places, int* slots, int* counts, Sort sort, u64* check) {
    DYNAMIC_SHARED(shared);
    int* chunk = (int*)shared;
    int count, first = count_chunk(chunk, indices, counts, sort, count, check);
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        if (chunk[i] < 0 || chunk[i] >= sort.experts) places[first + i] = -1;
    for (i64 row = i64(blockIdx.x) * blockDim.x + threadIdx.x; row < sort.rows; row += i64(gridDim.x) * blockDim.x)
        slots[row] = -1;
}

// Turns counts into the rank that the first copy of a chunk has among its expert's rows; `left` says how many more copies
// of the sequence the expert takes. One block.
KERNEL(1024) sort_ranges(int* counts, int* left, int* ranges, int chunks, Sort sort) {
    for (int expert = threadIdx.x; expert < sort.experts; expert += blockDim.x) {
        int total = 0, here = 0;
        for (int chunk = 0; chunk < chunks; chunk++) {
            i64 at = i64(chunk) * sort.experts + expert;
            int count = counts[at];
            if (chunk % sort.chunks == 0) here = 0;
            int room = max(sort.most - here, 0);
            counts[at] = total, left[at] = room;
            here += count, total += min(count, room);
        }
        ranges[2 * expert + 1] = total;
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    int row = 0;
    for (int expert = 0; expert < sort.experts; expert++) {
        ranges[2 * expert] = row;
        row = (row + ranges[2 * expert + 1] + sort.tile - 1) / sort.tile * sort.tile;
    }
}

KERNEL(256)
sort_place(const int* indices, const int* ranks, const int* left, const int* ranges, int* places, int* slots, Sort sort) {
    DYNAMIC_SHARED(shared);
    int* chunk = (int*)shared;
    int count, first = load_chunk(chunk, indices, sort, count);
    for (int expert = threadIdx.x; expert < sort.experts; expert += blockDim.x) {
        i64 at = i64(blockIdx.x) * sort.experts + expert;
        int row = ranges[2 * expert] + ranks[at], room = left[at];
        for (int i = 0; i < count; i++) {
            if (chunk[i] != expert) continue;
            if (room > 0) {
                places[first + i] = row;
                slots[row] = first + i;
                row++, room--;
            } else {
                places[first + i] = -1;
            }
        }
    }
}

KERNEL(256) count_copies(const int* indices, int* counts, Sort sort, u64* check) {
    DYNAMIC_SHARED(shared);
    int count;
    count_chunk((int*)shared, indices, counts, sort, count, check);
}

// Copies that are sent to each expert, and those that have a row. One block.
KERNEL(1024) finish_counts(const int* counts, const int* ranges, float* sums, int chunks, int experts) {
    for (int expert = threadIdx.x; expert < experts; expert += blockDim.x) {
        int sum = 0;
        for (int chunk = 0; chunk < chunks; chunk++) sum += counts[i64(chunk) * experts + expert];
        sums[expert] = float(sum), sums[experts + expert] = float(ranges[2 * expert + 1]);
    }
}

// y[row] = x[slot / copies], times the copy's weight where there are weights; one block for each row.
template <class T>
__device__ void dispatch(const T* x, const int* slots, const float* weights, T* y, i64 width, int copies, i64 all) {
    const int N = Lanes<T>::N;
    i64 slot = slots[blockIdx.x];
    bool filled = slot >= 0 && slot < all, whole = rows_are_whole<T>(width);
    float weight = filled && weights ? weights[slot] : 1.0f;
    x += slot / copies * width, y += blockIdx.x * width;
    for (i64 column = threadIdx.x * N; column < width; column += blockDim.x * N) {
        float numbers[N] = {};
        if (filled) load(x + column, width - column, whole, numbers);
#pragma unroll
        for (int i = 0; i < N; i++) numbers[i] *= weight;
        store(y + column, width - column, whole, numbers);
    }
}

// y[token] = Σ weight·h[place] over the copies that have a row, in their order; one block for each token.
template <class T>
__device__ void combine(const T* h, const int* places, const float* weights, T* y, i64 width, int copies, i64 rows) {
    const int N = Lanes<T>::N;
    bool whole = rows_are_whole<T>(width);
    places += i64(blockIdx.x) * copies, y += blockIdx.x * width;
    for (i64 column = threadIdx.x * N; column < width; column += blockDim.x * N) {
        float sums[N] = {};
        for (int copy = 0; copy < copies; copy++) {
            i64 place = places[copy];
            if (place < 0 || place >= rows) continue;
            float weight = weights ? weights[i64(blockIdx.x) * copies + copy] : 1.0f, numbers[N];
            load(h + place * width + column, width - column, whole, numbers);
#pragma unroll
            for (int i = 0; i < N; i++) sums[i] += weight * numbers[i];
        }
        store(y + column, width - column, whole, sums);
    }
}

// dweight[copy] = h[place] · dy[token], 0 for a copy without a row; one warp for each copy.
template <class T>
__device__ void combine_grad_weights(const T* h, const T* dy, const int* places, float* dweights, i64 width, int copies,
                                     i64 all, i64 rows) {
    const int N = Lanes<T>::N;
    i64 copy = i64(blockIdx.x) * 4 + threadIdx.x / 32;
    if (copy >= all) return;
    i64 place = places[copy];
    bool whole = rows_are_whole<T>(width);
    float sum = 0.0f;
    if (place >= 0 && place < rows) {
        h += place * width, dy += copy / copies * width;
        for (i64 column = threadIdx.x % 32 * N; column < width; column += 32 * N) {
            float a[N], b[N];
            load(h + column, width - column, whole, a);
            load(dy + column, width - column, whole, b);
#pragma unroll
            for (int i = 0; i < N; i++) sum += a[i] * b[i];
        }
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) dweights[copy] = sum;
}

#define ROWS_OF_EXPERTS(suffix, T) \
    KERNEL(256) dispatch_##suffix(const T* x, const int* slots, const float* weights, T* y, i64 width, int copies, i64 all) { \
        dispatch(x, slots, weights, y, width, copies, all); \
    } \
    KERNEL(256) combine_##suffix(const T* h, const int* places, const float* weights, T* y, i64 width, int copies, i64 rows) { \
        combine(h, places, weights, y, width, copies, rows); \
    } \
    KERNEL(128) combine_grad_weights_##suffix(const T* h, const T* dy, const int* places, float* dweights, i64 width, \
                                              int copies, i64 all, i64 rows) { \
        combine_grad_weights(h, dy, places, dweights, width, copies, all, rows); \
    }
FOR_ACTIVATIONS(ROWS_OF_EXPERTS)
