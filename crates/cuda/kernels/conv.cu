// Two-dimensional convolution and its gradients, as their definitions have them.
//
// Defined by `exec/src/reference/products.rs` (`conv2d` …); the CPU's twin is `exec/src/cpu/conv.rs`. Language models
// have none; these serve small image models, so one thread adds all products of one result and nothing is packed.
#include "block.cuh"

struct Conv {
    int batch, channels, out;
    int image_y, image_x, window_y, window_x, result_y, result_x;
    int stride, padding;
};

// y[b, o, y, x] = Σ x·w [+ bias]
template <class T>
__device__ void conv2d(const T* x, const void* w, int w_kind, const void* bias, int bias_kind, T* y, Conv c) {
    i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= i64(c.batch) * c.out * c.result_y * c.result_x) return;
    int column = int(at % c.result_x), row = int(at / c.result_x % c.result_y);
    i64 plane = at / c.result_x / c.result_y;
    int o = int(plane % c.out), b = int(plane / c.out);
    float total = bias ? load_any(bias, bias_kind, o) : 0.0f;
    for (int channel = 0; channel < c.channels; channel++)
        for (int wy = 0; wy < c.window_y; wy++)
            for (int wx = 0; wx < c.window_x; wx++) {
                int iy = row * c.stride + wy - c.padding, ix = column * c.stride + wx - c.padding;
                if (iy < 0 || iy >= c.image_y || ix < 0 || ix >= c.image_x) continue;
                i64 from = ((i64(b) * c.channels + channel) * c.image_y + iy) * c.image_x + ix;
                i64 weight = ((i64(o) * c.channels + channel) * c.window_y + wy) * c.window_x + wx;
                total += widen(x[from]) * load_any(w, w_kind, weight);
            }
    y[at] = narrow<T>(total);
}

// dx[b, c, y, x] = Σ dy·w over the results that read it.
template <class T> __device__ void conv2d_grad_input(const void* w, int w_kind, const T* dy, T* dx, Conv c) {
    i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= i64(c.batch) * c.channels * c.image_y * c.image_x) return;
    int column = int(at % c.image_x), row = int(at / c.image_x % c.image_y);
    i64 plane = at / c.image_x / c.image_y;
    int channel = int(plane % c.channels), b = int(plane / c.channels);
    float total = 0.0f;
    for (int o = 0; o < c.out; o++)
        for (int wy = 0; wy < c.window_y; wy++)
            for (int wx = 0; wx < c.window_x; wx++) {
                int ry = row + c.padding - wy, rx = column + c.padding - wx;
                if (ry < 0 || rx < 0 || ry % c.stride || rx % c.stride) continue;
                ry /= c.stride, rx /= c.stride;
                if (ry >= c.result_y || rx >= c.result_x) continue;
                i64 from = ((i64(b) * c.out + o) * c.result_y + ry) * c.result_x + rx;
                i64 weight = ((i64(o) * c.channels + channel) * c.window_y + wy) * c.window_x + wx;
                total += widen(dy[from]) * load_any(w, w_kind, weight);
            }
    dx[at] = narrow<T>(total);
}

// dw[o, c, wy, wx] = Σ dy·x, one block for each.
template <class T>
__device__ void conv2d_grad_weight(const T* x, const T* dy, void* dw, int dw_kind, Conv c, int add) {
    i64 at = blockIdx.x;
    int wx = int(at % c.window_x), wy = int(at / c.window_x % c.window_y);
    i64 plane = at / c.window_x / c.window_y;
    int channel = int(plane % c.channels), o = int(plane / c.channels);
    float total = 0.0f;
    i64 results = i64(c.result_y) * c.result_x;
    for (i64 i = threadIdx.x; i < c.batch * results; i += blockDim.x) {
        int b = int(i / results), row = int(i % results / c.result_x), column = int(i % c.result_x);
        int iy = row * c.stride + wy - c.padding, ix = column * c.stride + wx - c.padding;
        if (iy < 0 || iy >= c.image_y || ix < 0 || ix >= c.image_x) continue;
        i64 from = ((i64(b) * c.channels + channel) * c.image_y + iy) * c.image_x + ix;
        total += widen(dy[(i64(b) * c.out + o) * results + i % results]) * widen(x[from]);
    }
    total = block_sum(total);
    if (threadIdx.x == 0) store_any(dw, dw_kind, at, add ? load_any(dw, dw_kind, at) + total : total);
}

#define CONV(suffix, T) \
    KERNEL(256) \
    conv2d_##suffix(const T* x, const void* w, int w_kind, const void* bias, int bias_kind, T* y, Conv conv) { \
        conv2d(x, w, w_kind, bias, bias_kind, y, conv); \
    } \
    KERNEL(256) conv2d_grad_input_##suffix(const void* w, int w_kind, const T* dy, T* dx, Conv conv) { \
        conv2d_grad_input(w, w_kind, dy, dx, conv); \
    } \
    KERNEL(256) conv2d_grad_weight_##suffix(const T* x, const T* dy, void* dw, int dw_kind, Conv conv, int add) { \
        conv2d_grad_weight(x, dy, dw, dw_kind, conv, add); \
    }
FOR_ACTIVATIONS(CONV)
