// Tensor cores for warps: tiles of bf16 in shared memory, fragments loaded from them, and their products in f32.
//
// A tile holds one factor of a product for a few terms of the sum. It lies as the factor does in memory: either the axis
// that is summed over runs fastest (`Inner`), or the axis of the result does (`Outer`), in which case fragments are
// turned while they are loaded. Packs of 16 bytes change places inside a row, by the row's number, so that eight rows of
// one column lie in different banks.
//
// The instructions exist since sm_80. On the host a warp's fibers show each other their addresses and fragments, and
// each computes its own part, so that a wrong layout gives wrong numbers there too.
#pragma once
#include "block.cuh"

// Terms of the sum in one tile, and in one product of fragments.
#define TERMS 32
#define STEP 16

enum Order { Inner, Outer };

#ifdef PLIMSOLL_ON_HOST
inline void copy_later(void* shared, const void* global, bool inside) {
    if (inside) std::memcpy(shared, global, 16);
    else std::memset(shared, 0, 16);
}
inline void close_copies() {}
template <int OPEN> inline void wait_for_copies() {}
#else
// Copies 16 bytes to shared memory while threads go on; zeros if they are not inside.
__device__ inline void copy_later(void* shared, const void* global, bool inside) {
    u32 to = u32(__cvta_generic_to_shared(shared));
    int bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
// Ends a group of copies.
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all groups but the last `OPEN` have arrived.
template <int OPEN> __device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
}
#endif

// ---- tiles --------------------------------------------------------------------------------------------------------

// `EXTENT` elements along the result's axis, `TERMS` along the sum's.
template <int EXTENT, Order ORDER> struct Tile {
    static const int PACKS = (ORDER == Inner ? TERMS : EXTENT) / 8; // in a row
    static const int BYTES = EXTENT * TERMS * 2;

    // Byte of a pack of a row.
    __device__ static inline int at(int row, int pack) {
        int turned = ORDER == Inner ? pack ^ (row / 2 & 3) : pack ^ (row & 7);
        return (row * PACKS + turned) * 16;
    }
};

// A factor in memory: elements (axis of the result, axis of the sum) of which `low … high` along the one axis and
// `terms` along the other exist; all others are zeros.
struct Factor {
    const bf16* start; // of element (0, 0)
    i64 stride;        // between rows as they lie in memory
    int low, high, terms;
    bool whole; // rows begin at multiples of 16 bytes
};

// Begins to copy the tile at (`extent`, `term`).
template <int EXTENT, Order ORDER, int THREADS>
__device__ inline void load_tile(char* tile, const Factor& factor, int extent, int term) {
    typedef Tile<EXTENT, ORDER> Form;
    const int ROWS = ORDER == Inner ? EXTENT : TERMS;
#pragma unroll
    for (int i = 0; i < ROWS * Form::PACKS / THREADS; i++) {
        int which = i * THREADS + threadIdx.x, row = which / Form::PACKS, pack = which % Form::PACKS;
        int outer = ORDER == Inner ? extent + row : extent + 8 * pack;
        int inner = ORDER == Inner ? term + 8 * pack : term + row;
        char* to = tile + Form::at(row, pack);
        const bf16* from = factor.start + (ORDER == Inner ? outer * factor.stride + inner : inner * factor.stride + outer);
        bool inside = outer >= factor.low && outer < factor.high && inner < factor.terms;
        if (factor.whole) {
            copy_later(to, inside ? from : factor.start, inside);
        } else {
            int left = ORDER == Inner ? factor.terms - inner : factor.high - outer;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                bf16 zero;
                zero.bits = 0;
                ((bf16*)to)[j] = inside && j < left ? from[j] : zero;
            }
        }
    }
}

// ---- fragments ----------------------------------------------------------------------------------------------------

// Four blocks of 8 × 8, one register each: lane `l` names row `l % 8` of block `l / 8`.
template <bool TURNED> __device__ inline void load_blocks(u32 (&to)[4], const char* row) {
#ifdef PLIMSOLL_ON_HOST
    host_show(row);
    int lane = threadIdx.x % 32;
    for (int block = 0; block < 4; block++) {
        u16 pair[2];
        for (int i = 0; i < 2; i++) {
            int of = TURNED ? 2 * (lane % 4) + i : lane / 4, column = TURNED ? lane / 4 : 2 * (lane % 4) + i;
            pair[i] = ((const u16*)host_shown(8 * block + of))[column];
        }
        to[block] = pair[0] | u32(pair[1]) << 16;
    }
    host_sync_warp();
#else
    u32 from = u32(__cvta_generic_to_shared(row));
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(from)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(from)
                     : "memory");
#endif
}

// 16 elements of the left factor at `extent`, terms `STEP·step …`.
template <int EXTENT, Order ORDER>
__device__ inline void load_left(u32 (&to)[4], const char* tile, int extent, int step) {
    typedef Tile<EXTENT, ORDER> Form;
    int lane = threadIdx.x % 32, row = lane % 8, second = lane / 8 % 2, third = lane / 16;
    int at = ORDER == Inner ? Form::at(extent + row + 8 * second, step * 2 + third)
                            : Form::at(step * STEP + row + 8 * third, extent / 8 + second);
    load_blocks<ORDER == Outer>(to, tile + at);
}

// 16 elements of the right factor at `extent`, as two fragments of 8.
template <int EXTENT, Order ORDER>
__device__ inline void load_right(u32 (&to)[4], const char* tile, int extent, int step) {
    typedef Tile<EXTENT, ORDER> Form;
    int lane = threadIdx.x % 32, row = lane % 8, second = lane / 8 % 2, third = lane / 16;
    int at = ORDER == Inner ? Form::at(extent + row + 8 * third, step * 2 + second)
                            : Form::at(step * STEP + row + 8 * second, extent / 8 + third);
    load_blocks<ORDER == Outer>(to, tile + at);
}

// A warp's part of the result: 64 × 64, in fragments of 16 × 8. Lane `l` holds elements (`l / 4`, `2·(l % 4)`) and the
// one beside it, then the same of the row eight below.
struct Fragments {
    float sum[4][8][4];
};

// Adds the products of one step: four fragments of 16 rows by eight of 8 columns.
__device__ inline void add_products(Fragments& to, const u32 (&left)[4][4], const u32 (&right)[4][4]) {
#ifdef PLIMSOLL_ON_HOST
    struct Both {
        const u32 (*left)[4];
        const u32 (*right)[4];
    } both = {left, right};
    host_show(&both);
    int lane = threadIdx.x % 32;
    for (int m = 0; m < 4; m++)
        for (int n = 0; n < 8; n++)
            for (int i = 0; i < 4; i++) {
                int row = lane / 4, column = 2 * (lane % 4) + i % 2;
                float sum = to.sum[m][n][i];
                for (int k = 0; k < STEP; k++) {
                    // Register 0 holds terms 0 … 7, register 2 (of the left) or 1 (of the right) the others.
                    const Both* x = (const Both*)host_shown(4 * row + k % 8 / 2);
                    const Both* y = (const Both*)host_shown(4 * column + k % 8 / 2);
                    u32 a = x->left[m][i / 2 + 2 * (k / 8)], b = y->right[n / 2][2 * (n % 2) + k / 8];
                    u32 shift = k % 2 * 16;
                    sum += __uint_as_float(a >> shift << 16) * __uint_as_float(b >> shift << 16);
                }
                to.sum[m][n][i] = sum;
            }
    host_sync_warp();
#else
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float(&sum)[4] = to.sum[m][n];
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                         "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                         : "r"(left[m][0]), "r"(left[m][1]), "r"(left[m][2]), "r"(left[m][3]),
                           "r"(right[n / 2][2 * (n % 2)]), "r"(right[n / 2][2 * (n % 2) + 1]));
        }
#endif
}

// ---- products -----------------------------------------------------------------------------------------------------

#define STAGES 4
#define WARP_EXTENT 64

// The tile of `2·64` rows and `COLUMNS` columns of a product at (`row`, `column`); a warp makes 64 × 64 of it. Tiles of
// the factors arrive `STAGES − 1` ahead of their use. The order of a sum depends on nothing but its terms.
template <int COLUMNS, Order LEFT, Order RIGHT>
__device__ inline void tile_product(Fragments& to, const Factor& left, const Factor& right, int row, int column) {
    const int ROWS = 2 * WARP_EXTENT, THREADS = ROWS / WARP_EXTENT * (COLUMNS / WARP_EXTENT) * 32;
    const int LEFT_BYTES = Tile<ROWS, LEFT>::BYTES, STAGE_BYTES = LEFT_BYTES + Tile<COLUMNS, RIGHT>::BYTES;
    DYNAMIC_SHARED(shared);
    char* tiles = (char*)shared;
    int warp = threadIdx.x / 32, m = warp % 2 * WARP_EXTENT, n = warp / 2 * WARP_EXTENT;
    int steps = (left.terms + TERMS - 1) / TERMS;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < steps) {
            char* tile = tiles + stage * STAGE_BYTES;
            load_tile<ROWS, LEFT, THREADS>(tile, left, row, stage * TERMS);
            load_tile<COLUMNS, RIGHT, THREADS>(tile + LEFT_BYTES, right, column, stage * TERMS);
        }
        close_copies();
    }
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        int ahead = step + STAGES - 1;
        if (ahead < steps) {
            char* tile = tiles + ahead % STAGES * STAGE_BYTES;
            load_tile<ROWS, LEFT, THREADS>(tile, left, row, ahead * TERMS);
            load_tile<COLUMNS, RIGHT, THREADS>(tile + LEFT_BYTES, right, column, ahead * TERMS);
        }
        close_copies();
        const char* tile = tiles + step % STAGES * STAGE_BYTES;
#pragma unroll
        for (int part = 0; part < TERMS / STEP; part++) {
            u32 a[4][4], b[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) load_left<ROWS, LEFT>(a[i], tile, m + 16 * i, part);
#pragma unroll
            for (int i = 0; i < 4; i++) load_right<COLUMNS, RIGHT>(b[i], tile + LEFT_BYTES, n + 16 * i, part);
            add_products(to, a, b);
        }
    }
}

// Calls `store(row, column, x, y)` for each pair of neighbours of a warp's part, counted from the block's tile.
template <class Store> __device__ inline void each_pair(const Fragments& from, Store store) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row = warp % 2 * WARP_EXTENT + lane / 4, column = warp / 2 * WARP_EXTENT + 2 * (lane % 4);
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float(&sum)[4] = from.sum[m][n];
            store(row + 16 * m, column + 8 * n, sum[0], sum[1]);
            store(row + 16 * m + 8, column + 8 * n, sum[2], sum[3]);
        }
}
