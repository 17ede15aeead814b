// Products of each expert's rows with its own weight, and their two gradients.
//
// Defined by `exec/src/reference/experts.rs`; the CPU's twin is `exec/src/cpu/grouped.rs`. An expert's first row and
// number of rows are data that only the GPU knows. So a launch has as many blocks as any routing needs, R/128 + E of
// them along the rows; each finds its expert in the table of ranges, and those that are left over end at once. Rows of
// no expert (padding, and rows that a capacity left empty) are not read and come out as zeros.
//
// In bf16 a block of warps makes 128 × 128 or 128 × 256 of the result with tensor cores. In f32 and for mixed types a
// block of 256 threads makes 128 × 128, 8 × 8 for each thread, with the multiply-adds of f32.
#include "tensor.cuh"

#define ROWS 128

// Blocks along x, and further groups of them along z, share the rows that they read.
struct Grouped {
    int experts, rows, columns, terms;
};

// The rows of one block: first … last are written, low … high are an expert's.
struct Rows {
    int expert, first, last, low, high;
};

// Rows belong to the expert before them, so that every row is written by one block. Ranges that no sort yields lead
// nowhere else.
__device__ inline bool find_rows(Rows& found, const int* ranges, int experts, int rows, int block) {
    int begin = 0;
    for (int expert = 0; expert < experts; expert++) {
        int end = expert + 1 < experts ? min(max(ranges[2 * expert + 2], begin), rows) : rows;
        int blocks = (end - begin + ROWS - 1) / ROWS;
        if (block < blocks) {
            int low = max(ranges[2 * expert], begin), count = ranges[2 * expert + 1];
            found.expert = expert;
            found.first = begin + block * ROWS, found.last = min(end, found.first + ROWS);
            found.low = low, found.high = min(end, low + min(count, end));
            return true;
        }
        block -= blocks, begin = end;
    }
    return false;
}

// ---- tensor cores -------------------------------------------------------------------------------------------------

// c (R, columns) = a (R, terms) · b, which is (columns, terms) or (terms, columns) for each expert.
template <int COLUMNS, Order RIGHT>
__device__ void grouped_rows(const bf16* a, const bf16* b, const int* ranges, bf16* c, Grouped shape) {
    int column = (blockIdx.z * gridDim.x + blockIdx.x) * COLUMNS;
    Rows rows;
    if (column >= shape.columns || !find_rows(rows, ranges, shape.experts, shape.rows, blockIdx.y)) return;
    Fragments product = {};
    if (rows.first < rows.high && rows.low < rows.last) {
        b += i64(rows.expert) * shape.columns * shape.terms;
        Factor left = {a, shape.terms, rows.low, rows.high, shape.terms, rows_are_whole<bf16>(shape.terms)};
        i64 stride = RIGHT == Inner ? shape.terms : shape.columns;
        Factor right = {b, stride, 0, shape.columns, shape.terms, rows_are_whole<bf16>(stride)};
        tile_product<COLUMNS, Inner, RIGHT>(product, left, right, rows.first, column);
    }
    bool pairs = shape.columns % 2 == 0;
    each_pair(product, [&](int m, int n, float x, float y) {
        if (rows.first + m >= rows.last || column + n >= shape.columns) return;
        bf16* to = c + i64(rows.first + m) * shape.columns + column + n;
        bf16 low = narrow<bf16>(x), high = narrow<bf16>(y);
        if (pairs) {
            *(u32*)to = low.bits | u32(high.bits) << 16;
        } else {
            to[0] = low;
            if (column + n + 1 < shape.columns) to[1] = high;
        }
    });
}

// dw (E, columns of dy, columns of x) = dyᵀ · x over each expert's rows, of any type; it may be added to.
template <int COLUMNS>
__device__ void grouped_weights(const bf16* dy, const bf16* x, const int* ranges, void* dw, int kind, int adds,
                                Grouped shape) {
    int groups = gridDim.z / shape.experts, expert = blockIdx.z / groups;
    int row = blockIdx.y * ROWS, column = (blockIdx.z % groups * gridDim.x + blockIdx.x) * COLUMNS;
    if (column >= shape.columns) return;
    int low = min(max(ranges[2 * expert], 0), shape.rows);
    int count = min(max(ranges[2 * expert + 1], 0), shape.rows - low);
    if (count == 0 && adds) return;
    // `terms` stands for the columns of dy here: the sum is over rows.
    int out = shape.terms;
    Fragments product = {};
    if (count > 0) {
        Factor left = {dy + i64(low) * out, out, 0, out, count, rows_are_whole<bf16>(out)};
        Factor right = {x + i64(low) * shape.columns, shape.columns, 0, shape.columns, count,
                        rows_are_whole<bf16>(shape.columns)};
        tile_product<COLUMNS, Outer, Outer>(product, left, right, row, column);
    }
    each_pair(product, [&](int m, int n, float x, float y) {
        i64 at = (i64(expert) * out + row + m) * shape.columns + column + n;
        if (row + m >= out) return;
        if (column + n < shape.columns) store_any(dw, kind, at, adds ? x + load_any(dw, kind, at) : x);
        if (column + n + 1 < shape.columns) store_any(dw, kind, at + 1, adds ? y + load_any(dw, kind, at + 1) : y);
    });
}

#define GROUPED(columns, threads) \
    KERNEL(threads) grouped_linear_##columns(const bf16* x, const bf16* w, const int* ranges, bf16* y, Grouped shape) { \
        grouped_rows<columns, Inner>(x, w, ranges, y, shape); \
    } \
    KERNEL(threads) \
    grouped_linear_grad_input_##columns(const bf16* dy, const bf16* w, const int* ranges, bf16* dx, Grouped shape) { \
        grouped_rows<columns, Outer>(dy, w, ranges, dx, shape); \
    } \
    KERNEL(threads) \
    grouped_linear_grad_weight_##columns(const bf16* dy, const bf16* x, const int* ranges, void* dw, int kind, \
                                         int adds, Grouped shape) { \
        grouped_weights<columns>(dy, x, ranges, dw, kind, adds, shape); \
    }
GROUPED(128, 128)
GROUPED(256, 256)

// ---- f32 and mixed types ------------------------------------------------------------------------------------------

#define DEPTH 16
#define PITCH (ROWS + 4)

// Elements (axis of the result, axis of the sum) by two strides, one of which is 1.
template <class T> struct Plain {
    const T* start;
    i64 outer, inner;
    int low, high, terms;

    // The element that a thread brings to place `i` of its eight.
    __device__ inline void place(int i, int& at, int& depth) const {
        int which = i * 256 + threadIdx.x;
        at = inner == 1 ? which / DEPTH : which % ROWS;
        depth = inner == 1 ? which % DEPTH : which / ROWS;
    }
    __device__ inline void load(float (&to)[8], int extent, int term) const {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int at, depth;
            place(i, at, depth);
            int m = extent + at, k = term + depth;
            to[i] = m >= low && m < high && k < terms ? widen(start[m * outer + k * inner]) : 0.0f;
        }
    }
    __device__ inline void put(float (*tile)[PITCH], const float (&from)[8]) const {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int at, depth;
            place(i, at, depth);
            tile[depth][at] = from[i];
        }
    }
};

// 128 × 128 of a product at (`row`, `column`); a thread has two strips of four rows by two of four columns.
template <class A, class B>
__device__ void plain_product(float (&sum)[8][8], const Plain<A>& left, const Plain<B>& right, int row, int column) {
    __shared__ float a[DEPTH][PITCH], b[DEPTH][PITCH];
    int m = threadIdx.x / 16 * 4, n = threadIdx.x % 16 * 4;
    float next_a[8], next_b[8];
    left.load(next_a, row, 0);
    right.load(next_b, column, 0);
#pragma unroll 1
    for (int term = 0; term < left.terms; term += DEPTH) {
        __syncthreads();
        left.put(a, next_a);
        right.put(b, next_b);
        __syncthreads();
        left.load(next_a, row, term + DEPTH);
        right.load(next_b, column, term + DEPTH);
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            float x[8], y[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x[i] = a[k][m + i % 4 + i / 4 * 64];
                y[i] = b[k][n + i % 4 + i / 4 * 64];
            }
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) sum[i][j] += x[i] * y[j];
        }
    }
}

// Calls `store(row, column, x)` for each element of a thread's part.
template <class Store> __device__ inline void each_element(const float (&sum)[8][8], Store store) {
    int m = threadIdx.x / 16 * 4, n = threadIdx.x % 16 * 4;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) store(m + i % 4 + i / 4 * 64, n + j % 4 + j / 4 * 64, sum[i][j]);
}

// As `grouped_rows`; `turned` says that b is (terms, columns).
template <class A, class B>
__device__ void plain_rows(const A* a, const B* b, const int* ranges, A* c, int turned, Grouped shape) {
    int column = (blockIdx.z * gridDim.x + blockIdx.x) * ROWS;
    Rows rows;
    if (column >= shape.columns || !find_rows(rows, ranges, shape.experts, shape.rows, blockIdx.y)) return;
    float sum[8][8] = {};
    if (rows.first < rows.high && rows.low < rows.last) {
        b += i64(rows.expert) * shape.columns * shape.terms;
        Plain<A> left = {a, shape.terms, 1, rows.low, rows.high, shape.terms};
        i64 outer = turned ? 1 : shape.terms, inner = turned ? shape.columns : 1;
        Plain<B> right = {b, outer, inner, 0, shape.columns, shape.terms};
        plain_product(sum, left, right, rows.first, column);
    }
    each_element(sum, [&](int m, int n, float x) {
        if (rows.first + m < rows.last && column + n < shape.columns)
            c[i64(rows.first + m) * shape.columns + column + n] = narrow<A>(x);
    });
}

#define PLAIN(suffix, A, B) \
    KERNEL(256) grouped_plain_##suffix(const A* a, const B* b, const int* ranges, A* c, int turned, Grouped shape) { \
        plain_rows(a, b, ranges, c, turned, shape); \
    }
PLAIN(f32_f32, float, float)
PLAIN(f32_bf16, float, bf16)
PLAIN(bf16_f32, bf16, float)

// As `grouped_weights`, in f32.
KERNEL(256)
grouped_plain_grad_weight(const float* dy, const float* x, const int* ranges, void* dw, int kind, int adds,
                          Grouped shape) {
    int groups = gridDim.z / shape.experts, expert = blockIdx.z / groups;
    int row = blockIdx.y * ROWS, column = (blockIdx.z % groups * gridDim.x + blockIdx.x) * ROWS;
    if (column >= shape.columns) return;
    int low = min(max(ranges[2 * expert], 0), shape.rows), out = shape.terms;
    int count = min(max(ranges[2 * expert + 1], 0), shape.rows - low);
    float sum[8][8] = {};
    Plain<float> left = {dy + i64(low) * out, 1, out, 0, out, count};
    Plain<float> right = {x + i64(low) * shape.columns, 1, shape.columns, 0, shape.columns, count};
    plain_product(sum, left, right, row, column);
    each_element(sum, [&](int m, int n, float x) {
        if (row + m >= out || column + n >= shape.columns) return;
        i64 at = (i64(expert) * out + row + m) * shape.columns + column + n;
        store_any(dw, kind, at, adds ? x + load_any(dw, kind, at) : x);
    });
}
