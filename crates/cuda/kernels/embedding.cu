// Rows of a table by id, and the gradient of the table.
//
// Defined by `exec/src/reference/transformer.rs` (`embedding`, `embedding_grad`); the CPU's twin is
// `exec/src/cpu/embedding.rs`. The gradient sorts positions by id, so that each row of the table has one writer and one
// order of terms: keys are `id, position`, all different, and any sort gives the same list.
//
//   keys ─▶ tiles sorted in shared memory ─▶ runs merged two by two ─▶ one block for each id that occurs
#include "block.cuh"

#define SORT_TILE 1024
#define NO_KEY 0xffffffffffffffffull

// One block copies one row of `bytes` bytes as elements of type `E`; a bad id yields zeros.
template <class E> __device__ void embedding(const E* table, const int* ids, E* y, i64 columns, int rows, u64* check) {
    i64 position = blockIdx.x;
    int id = ids[position];
    bool inside = id >= 0 && id < rows;
    if (!inside && threadIdx.x == 0) report(check, position, id);
    const E* from = table + i64(inside ? id : 0) * columns;
    for (i64 column = threadIdx.x; column < columns; column += blockDim.x)
        y[position * columns + column] = inside ? from[column] : E();
}

KERNEL(256) embedding_2(const u16* table, const int* ids, u16* y, i64 columns, int rows, u64* check) {
    embedding(table, ids, y, columns, rows, check);
}
KERNEL(256) embedding_4(const u32* table, const int* ids, u32* y, i64 columns, int rows, u64* check) {
    embedding(table, ids, y, columns, rows, check);
}
KERNEL(256) embedding_16(const Quad* table, const int* ids, Quad* y, i64 columns, int rows, u64* check) {
    embedding(table, ids, y, columns, rows, check);
}

// Keys of one tile, sorted. Ids outside the table and places behind the end sort last.
KERNEL(512) embedding_keys(const int* ids, u64* keys, i64 count, int rows, u64* check) {
    __shared__ u64 tile[SORT_TILE];
    for (int i = threadIdx.x; i < SORT_TILE; i += 512) {
        i64 position = i64(blockIdx.x) * SORT_TILE + i;
        u64 key = NO_KEY;
        if (position < count) {
            int id = ids[position];
            if (id >= 0 && id < rows) key = u64(id) << 32 | u32(position);
            else report(check, position, id);
        }
        tile[i] = key;
    }
    // Bitonic: sequences of doubling size, each pair compared by one thread.
    for (int size = 2; size <= SORT_TILE; size *= 2)
        for (int distance = size / 2; distance > 0; distance /= 2) {
            __syncthreads();
            int low = 2 * threadIdx.x - (threadIdx.x & (distance - 1)), high = low + distance;
            bool rising = (low & size) == 0;
            u64 a = tile[low], b = tile[high];
            if ((a > b) == rising) tile[low] = b, tile[high] = a;
        }
    __syncthreads();
    for (int i = threadIdx.x; i < SORT_TILE; i += 512) keys[i64(blockIdx.x) * SORT_TILE + i] = tile[i];
}

// Keys in from[0..count) that come before `key`; of equals, those of the left run come first.
__device__ inline i64 rank(const u64* from, i64 count, u64 key, bool equals_too) {
    i64 low = 0, high = count;
    while (low < high) {
        i64 middle = (low + high) / 2;
        bool before = equals_too ? from[middle] <= key : from[middle] < key;
        if (before) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Merges sorted runs of `run` keys two by two: every key finds its place by its rank in the other run.
KERNEL(256) merge_runs(const u64* from, u64* to, i64 count, i64 run) {
    i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= count) return;
    i64 pair = at / (2 * run) * (2 * run), within = at - pair;
    bool left = within < run;
    i64 other = left ? pair + run : pair;
    i64 length = left ? max(i64(0), min(run, count - other)) : run;
    i64 own = left ? within : within - run;
    u64 key = from[at];
    to[pair + own + rank(from + other, length, key, !left)] = key;
}

// One block for each place in the sorted list; only the first place of an id works. Threads are 32 × 8: packs of columns
// by every eighth term. The table was zeroed before where it is not added to.
template <class T>
__device__ void embedding_grad(const u64* keys, const T* dy, void* table, int table_kind, i64 count, i64 columns) {
    const int N = Lanes<T>::N;
    __shared__ float part[8][32 * N];
    i64 first = blockIdx.x;
    u64 key = keys[first];
    if (key == NO_KEY || (first > 0 && keys[first - 1] >> 32 == key >> 32)) return;
    i64 last = first + rank(keys + first, count - first, key | 0xffffffffull, true);
    for (i64 tile = 0; tile < columns; tile += 32 * N) {
        i64 column = tile + threadIdx.x * N;
        float total[N] = {}, numbers[N];
        if (column < columns)
            for (i64 i = first + threadIdx.y; i < last; i += 8) {
                load(dy + u32(keys[i]) * columns + column, columns - column, rows_are_whole<T>(columns), numbers);
#pragma unroll
                for (int lane = 0; lane < N; lane++) total[lane] += numbers[lane];
            }
        __syncthreads();
#pragma unroll
        for (int lane = 0; lane < N; lane++) part[threadIdx.y][threadIdx.x * N + lane] = total[lane];
        __syncthreads();
        for (int i = threadIdx.y * 32 + threadIdx.x; i < 32 * N; i += 256) {
            float sum = 0.0f;
#pragma unroll
            for (int y = 0; y < 8; y++) sum += part[y][i];
            i64 at = i64(key >> 32) * columns + tile + i;
            if (tile + i < columns) store_any(table, table_kind, at, load_any(table, table_kind, at) + sum);
        }
    }
}

#define EMBEDDING_GRAD(suffix, T) \
    KERNEL(256) \
    embedding_grad_##suffix(const u64* keys, const T* dy, void* table, int table_kind, i64 count, i64 columns) { \
        embedding_grad(keys, dy, table, table_kind, count, columns); \
    }
FOR_ACTIVATIONS(EMBEDDING_GRAD)
