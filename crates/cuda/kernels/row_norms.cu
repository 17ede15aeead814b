// Norms of the rows of a weight with a product of few columns added, without the sum: see `Op::InverseNorm`.
//
// Defined by `inverse_norm` in `exec/src/reference/norms.rs`; the CPU's twin is in `exec/src/cpu/norms.rs`. A thread takes a
// row and sums in the order of the rank.
#include "block.cuh"

KERNEL(128)
inverse_norm(const float* squares, const float* products, const float* b, const float* gram, float* inverse, i64 out,
             i64 rank, float scale) {
    i64 row = i64(blockIdx.x) * 128 + threadIdx.x;
    if (row >= out) return;
    b += row * rank;
    float sum = 0.0f;
    for (i64 k = 0; k < rank; k++) {
        float product = 0.0f;
        for (i64 l = 0; l < rank; l++) product += gram[k * rank + l] * b[l];
        sum += b[k] * (2.0f * products[k * out + row] + scale * product);
    }
    inverse[row] = 1.0f / sqrtf(squares[row] + scale * sum);
}
