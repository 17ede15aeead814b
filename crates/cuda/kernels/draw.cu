// Initial numbers of state, and parameters as probes read them, drawn on the device with the CPU's bits.
//
// Defined by `exec/src/init.rs` and `exec/src/reference/probes.rs`. Compiled without fused multiply-add.
#include "normal.cuh"

// Elements offset … offset + count of normal numbers with this deviation; four to a thread.
KERNEL(256) draw_normal(void* to, int kind, u64 seed, u64 name, i64 offset, i64 count, float deviation) {
    i64 group = offset / 4 + i64(blockIdx.x) * blockDim.x + threadIdx.x;
    float numbers[4];
    normal_quad(stream_of(seed, name, 0), group, numbers);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        i64 at = 4 * group + i - offset;
        if (at >= 0 && at < count) store_any(to, kind, at, deviation * numbers[i]);
    }
}

KERNEL(256) draw_uniform(void* to, int kind, u64 seed, u64 name, i64 offset, i64 count, float bound) {
    i64 group = offset / 4 + i64(blockIdx.x) * blockDim.x + threadIdx.x;
    u32 bits[4];
    quad(stream_of(seed, name, 0), u32(u64(4 * group) >> 32), u32(4 * group) / 4, bits);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        i64 at = 4 * group + i - offset;
        if (at >= 0 && at < count) store_any(to, kind, at, bound * (2.0f * unit(bits[i]) - 1.0f));
    }
}

KERNEL(256) draw_constant(void* to, int kind, i64 count, float number) {
    i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) store_any(to, kind, at, number);
}

// A parameter beside its place; four elements to a thread.
KERNEL(256) perturb(const void* w, int kind, void* to, const int* probe, const float* size, u64 name, i64 count) {
    i64 group = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (4 * group >= count) return;
    float z[4];
    normal_quad(stream_of_probe(probe, name, u32(probe[3])), group, z);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        i64 at = 4 * group + i;
        if (at < count) store_any(to, kind, at, load_any(w, kind, at) + *size * z[i]);
    }
}

// Rows of an embedding beside those of its table, which may lie in the same place; one element to a thread.
KERNEL(256) perturb_rows(const void* y, int kind, void* to, const int* ids, const int* probe, const float* size, u64 name,
                         i64 columns, i64 count) {
    i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= count) return;
    i64 element = i64(ids[at / columns]) * columns + at % columns;
    float z[4];
    normal_quad(stream_of_probe(probe, name, u32(probe[3])), element / 4, z);
    // No element is chosen by its number, which would put the four on a stack.
    float low = element & 1 ? z[1] : z[0], high = element & 1 ? z[3] : z[2];
    store_any(to, kind, at, load_any(y, kind, at) + *size * (element & 2 ? high : low));
}
