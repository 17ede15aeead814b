// Sums down the columns of matrices, the core of bias and norm-weight gradients.
//
// A block of 32 × 8 threads adds one chunk of rows of 32 packs of columns:
//
//   thread (x, y) adds rows y, y + 8, … of its pack; then the eight partial sums of a column meet in shared memory
//
// Grid: (outer · tiles of columns, chunks). The result is one row of f32 for each chunk of each outer slice.
#pragma once
#include "block.cuh"

// `source.add(row, column, whole, total)` adds a pack of row `row` (counted over all outer slices) to `total`.
template <class T, class Source>
__device__ void column_sums(Source source, float* partial, i64 rows, i64 columns, i64 chunk) {
    const int N = Lanes<T>::N;
    __shared__ float part[8][32 * N];
    i64 tiles = (columns + 32 * N - 1) / (32 * N);
    i64 outer = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    i64 column = (tile * 32 + threadIdx.x) * N;
    i64 first = blockIdx.y * chunk, last = min(rows, first + chunk);
    float total[N] = {};
    if (column < columns)
        for (i64 row = first + threadIdx.y; row < last; row += 8)
            source.add(outer * rows + row, column, rows_are_whole<T>(columns), total);
#pragma unroll
    for (int i = 0; i < N; i++) part[threadIdx.y][threadIdx.x * N + i] = total[i];
    __syncthreads();
    for (int i = threadIdx.y * 32 + threadIdx.x; i < 32 * N; i += 256) {
        float sum = 0.0f;
#pragma unroll
        for (int y = 0; y < 8; y++) sum += part[y][i];
        i64 at = tile * 32 * N + i;
        if (at < columns) partial[(outer * gridDim.y + blockIdx.y) * columns + at] = sum;
    }
}
