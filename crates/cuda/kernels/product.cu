// Matrix products without a library: any element types, any orientation, in batches.
//
// Defined by `exec/src/reference/products.rs`; the CPU's twins are `exec/src/cpu/linear.rs` and `matmul.rs`. Used where
// cuBLASLt is missing or has no product of such types. A block of 256 threads makes a tile of 64 × 64, each thread 4 × 4
// of it; terms are added in f32 in the order of the inner axis.
#include "block.cuh"

#define TILE 64
#define DEPTH 16

// Strides in elements: of rows and columns of the factors, between matrices of a batch, and of rows of the addend
// (0 for a vector that is added to every row).
struct Shape {
    int m, n, k;
    i64 a_row, a_column, b_row, b_column;
    i64 a_batch, b_batch, c_batch, addend_row;
};

// One tile of a factor, so that the axis that lies side by side in memory runs fastest over threads.
template <class T>
__device__ inline void load_tile(float (*tile)[TILE + 4], const T* x, i64 outer_stride, i64 inner_stride, int outer,
                                 int inner, int outer_count, int inner_count) {
    bool inner_first = inner_stride == 1;
    for (int i = threadIdx.x; i < TILE * DEPTH; i += 256) {
        int at = inner_first ? i / DEPTH : i % TILE, depth = inner_first ? i % DEPTH : i / TILE;
        bool inside = outer + at < outer_count && inner + depth < inner_count;
        tile[depth][at] = inside ? widen(x[(outer + at) * outer_stride + (inner + depth) * inner_stride]) : 0.0f;
    }
}

// C = A·B [+ addend]; C is (m, n) row by row, of any type. The addend may be C itself.
template <class A, class B>
__device__ void product(const A* a, const B* b, void* c, int c_kind, const void* addend, int addend_kind, Shape shape) {
    __shared__ float left[DEPTH][TILE + 4], right[DEPTH][TILE + 4];
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    int thread_row = threadIdx.x / 16 * 4, thread_column = threadIdx.x % 16 * 4;
    a += blockIdx.z * shape.a_batch;
    b += blockIdx.z * shape.b_batch;
    float total[4][4] = {};
    for (int depth = 0; depth < shape.k; depth += DEPTH) {
        __syncthreads();
        load_tile(left, a, shape.a_row, shape.a_column, row, depth, shape.m, shape.k);
        load_tile(right, b, shape.b_column, shape.b_row, column, depth, shape.n, shape.k);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            float x[4], y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = left[k][thread_row + i], y[i] = right[k][thread_column + i];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) total[i][j] += x[i] * y[j];
        }
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            i64 m = row + thread_row + i, n = column + thread_column + j;
            if (m >= shape.m || n >= shape.n) continue;
            i64 at = blockIdx.z * shape.c_batch + m * shape.n + n;
            i64 from = shape.addend_row == 0 ? n : at;
            store_any(c, c_kind, at, addend ? total[i][j] + load_any(addend, addend_kind, from) : total[i][j]);
        }
}

#define PRODUCT(suffix, A, B) \
    KERNEL(256) \
    product_##suffix(const A* a, const B* b, void* c, int c_kind, const void* addend, int addend_kind, Shape shape) { \
        product(a, b, c, c_kind, addend, addend_kind, shape); \
    }
PRODUCT(f32_f32, float, float)
PRODUCT(f32_bf16, float, bf16)
PRODUCT(bf16_f32, bf16, float)
PRODUCT(bf16_bf16, bf16, bf16)
