// Parameters that move in a random subspace, and the gradient of their coordinates.
//
// Defined by `exec/src/subspace.rs` and `exec/src/reference/subspace.rs`; the CPU's twin is `exec/src/cpu/subspace.rs`.
#include "random.cuh"

// The number of one element.
__device__ inline u32 bits_of(const Stream& stream, u64 element) {
    u32 bits[4];
    quad(stream, u32(element >> 32), u32(element) / 4, bits);
    // No number is chosen by its index, which would put the four on a stack.
    u32 low = element & 1 ? bits[1] : bits[0], high = element & 1 ? bits[3] : bits[2];
    return element & 2 ? high : low;
}

struct Projection {
    Stream signs, turns;
    i64 dimension;

    // The coordinate of the first element of a block.
    __device__ i64 turn(i64 block) const { return i64(u64(bits_of(turns, u64(block))) * u64(dimension) >> 32); }
    __device__ float signed_by(i64 element, float number) const {
        u32 word = bits_of(signs, u64(element / 32));
        return __uint_as_float(__float_as_uint(number) ^ (word >> (element % 32) << 31));
    }
};

__device__ inline Projection projection_of(u64 stream, i64 dimension) {
    Projection projection = {stream_of(0, stream, 0), stream_of(0, stream, 1), dimension};
    return projection;
}

// One element to a thread.
KERNEL(256) subspace(const void* w, int w_kind, const float* v, void* to, int to_kind, u64 stream, i64 dimension, i64 count) {
    i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= count) return;
    Projection projection = projection_of(stream, dimension);
    i64 coordinate = (at % dimension + projection.turn(at / dimension)) % dimension;
    store_any(to, to_kind, at, load_any(w, w_kind, at) + projection.signed_by(at, v[coordinate]));
}

// Partial sums (chunks, dimension): a thread adds the elements of one coordinate in a chunk of blocks, in their order.
KERNEL(256) subspace_sums(const void* dw, int kind, float* partial, u64 stream, i64 dimension, i64 chunk, i64 count) {
    i64 coordinate = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (coordinate >= dimension) return;
    Projection projection = projection_of(stream, dimension);
    i64 blocks = (count + dimension - 1) / dimension;
    i64 first = blockIdx.y * chunk, last = min(blocks, first + chunk);
    float total = 0.0f;
    for (i64 block = first; block < last; block++) {
        i64 inside = coordinate - projection.turn(block);
        i64 at = block * dimension + (inside < 0 ? inside + dimension : inside);
        if (at < count) total += projection.signed_by(at, load_any(dw, kind, at));
    }
    partial[blockIdx.y * dimension + coordinate] = total;
}
