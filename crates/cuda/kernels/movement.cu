// Data movement: transpose, slice, pad, concat, broadcast, as one strided copy.
//
// Defined by `exec/src/reference/movement.rs`; the CPU's twin is `exec/src/cpu/movement.rs`. Elements are moved as 1, 2,
// 4, 8 or 16 bytes: the lowering widens them where the innermost axis allows it. Zeros around a padded value are a fill
// before the copy.
#include "block.cuh"

// Extents and strides in elements, outermost axis first; missing axes have extent 1.
struct Walk {
    u32 extent[6];
    i64 from[6];
    i64 to[6];
};

template <class E> __device__ void copy_strided(const E* from, E* to, Walk walk, u32 count) {
    u32 flat = blockIdx.x * blockDim.x + threadIdx.x;
    if (flat >= count) return;
    i64 source = 0, target = 0;
#pragma unroll
    for (int axis = 5; axis >= 0; axis--) {
        u32 index = flat % walk.extent[axis];
        flat /= walk.extent[axis];
        source += index * walk.from[axis];
        target += index * walk.to[axis];
    }
    to[target] = from[source];
}

#define COPY(bytes, E) \
    KERNEL(256) copy_strided_##bytes(const E* from, E* to, Walk walk, u32 count) { copy_strided(from, to, walk, count); }
COPY(1, u8)
COPY(2, u16)
COPY(4, u32)
COPY(8, u64)
COPY(16, Quad)

// (batch, rows, columns) → (batch, columns, rows), by way of a tile in shared memory. Blocks of 32 × 8 threads.
template <class E> __device__ void transpose(const E* from, E* to, u32 rows, u32 columns) {
    __shared__ E tile[32][33];
    i64 base = i64(blockIdx.z) * rows * columns;
    u32 column = blockIdx.x * 32 + threadIdx.x;
    for (u32 y = threadIdx.y; y < 32; y += 8) {
        u32 row = blockIdx.y * 32 + y;
        if (row < rows && column < columns) tile[y][threadIdx.x] = from[base + i64(row) * columns + column];
    }
    __syncthreads();
    u32 row = blockIdx.y * 32 + threadIdx.x;
    for (u32 y = threadIdx.y; y < 32; y += 8) {
        u32 column = blockIdx.x * 32 + y;
        if (row < rows && column < columns) to[base + i64(column) * rows + row] = tile[threadIdx.x][y];
    }
}

KERNEL(256) transpose_2(const u16* from, u16* to, u32 rows, u32 columns) { transpose(from, to, rows, columns); }
KERNEL(256) transpose_4(const u32* from, u32* to, u32 rows, u32 columns) { transpose(from, to, rows, columns); }
