// Elementwise functions and their derivatives.
//
// Defined by `exec/src/reference/elementwise.rs`; the CPU's twin is `exec/src/cpu/elementwise.rs`. A thread works on 16
// bytes of each operand and reads them all before it writes, so results may lie over operands.
#include "block.cuh"

// ---- functions ----------------------------------------------------------------------------------------------------

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float silu_slope(float x) { return sigmoid(x) * (1.0f + x * (1.0f - sigmoid(x))); }

#define ROOT_TWO_OVER_PI 0.7978845608028654f
#define CUBE 0.044715f

__device__ inline float tanh_argument(float x) { return ROOT_TWO_OVER_PI * (x + CUBE * x * x * x); }
__device__ inline float normal_below(float x) { return 0.5f * (1.0f + erff(x * 0.7071067811865476f)); }

struct Scale {
    float factor;
    __device__ float operator()(float x) const { return factor * x; }
};
struct Silu {
    __device__ float operator()(float x) const { return x * sigmoid(x); }
};
struct Sigmoid {
    __device__ float operator()(float x) const { return sigmoid(x); }
};
struct Tanh {
    __device__ float operator()(float x) const { return tanhf(x); }
};
struct GeluTanh {
    __device__ float operator()(float x) const { return 0.5f * x * (1.0f + tanhf(tanh_argument(x))); }
};
struct GeluErf {
    __device__ float operator()(float x) const { return x * normal_below(x); }
};

struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct Product {
    __device__ float operator()(float a, float b) const { return a * b; }
};
struct SiluGrad {
    __device__ float operator()(float x, float dy) const { return dy * silu_slope(x); }
};
// From the result of the forward op.
struct TanhGrad {
    __device__ float operator()(float y, float dy) const { return dy * (1.0f - y * y); }
};
// From the result of the forward op.
struct SigmoidGrad {
    __device__ float operator()(float y, float dy) const { return dy * y * (1.0f - y); }
};
struct GeluTanhGrad {
    __device__ float operator()(float x, float dy) const {
        float t = tanhf(tanh_argument(x));
        float inner = ROOT_TWO_OVER_PI * (1.0f + 3.0f * CUBE * x * x);
        return dy * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner);
    }
};
struct GeluErfGrad {
    __device__ float operator()(float x, float dy) const {
        return dy * (normal_below(x) + x * expf(-0.5f * x * x) * 0.3989422804014327f);
    }
};
struct Swiglu {
    __device__ float operator()(float gate, float up) const { return gate * sigmoid(gate) * up; }
};

// ---- loops --------------------------------------------------------------------------------------------------------

template <class T> __device__ inline i64 first_element() {
    return (i64(blockIdx.x) * blockDim.x + threadIdx.x) * Lanes<T>::N;
}

template <class T, class F> __device__ void map_one(const T* x, T* y, i64 count, F function) {
    i64 at = first_element<T>();
    if (at >= count) return;
    float numbers[Lanes<T>::N];
    load(x + at, count - at, true, numbers);
#pragma unroll
    for (int i = 0; i < Lanes<T>::N; i++) numbers[i] = function(numbers[i]);
    store(y + at, count - at, true, numbers);
}

// `b` has `period` elements and is read over and over.
template <class T, class F> __device__ void map_two(const T* a, const T* b, T* y, i64 count, i64 period, F function) {
    i64 at = first_element<T>();
    if (at >= count) return;
    float left[Lanes<T>::N], right[Lanes<T>::N];
    load(a + at, count - at, true, left);
    i64 from = period == count ? at : at % period;
    if (period == count || rows_are_whole<T>(period)) {
        load(b + from, period - from, true, right);
    } else {
#pragma unroll
        for (int i = 0; i < Lanes<T>::N; i++) {
            right[i] = widen(b[from]);
            from = from + 1 == period ? 0 : from + 1;
        }
    }
#pragma unroll
    for (int i = 0; i < Lanes<T>::N; i++) left[i] = function(left[i], right[i]);
    store(y + at, count - at, true, left);
}

// ---- kernels ------------------------------------------------------------------------------------------------------

#define ONE(name, F) \
    KERNEL(256) name##_f32(const float* x, float* y, i64 count) { map_one(x, y, count, F()); } \
    KERNEL(256) name##_bf16(const bf16* x, bf16* y, i64 count) { map_one(x, y, count, F()); }
#define TWO(name, F) \
    KERNEL(256) name##_f32(const float* a, const float* b, float* y, i64 count, i64 period) { \
        map_two(a, b, y, count, period, F()); \
    } \
    KERNEL(256) name##_bf16(const bf16* a, const bf16* b, bf16* y, i64 count, i64 period) { \
        map_two(a, b, y, count, period, F()); \
    }

ONE(silu, Silu)
ONE(sigmoid, Sigmoid)
ONE(tanh, Tanh)
ONE(gelu_tanh, GeluTanh)
ONE(gelu_erf, GeluErf)
TWO(add, Sum)
TWO(mul, Product)
TWO(silu_grad, SiluGrad)
TWO(sigmoid_grad, SigmoidGrad)
TWO(tanh_grad, TanhGrad)
TWO(gelu_tanh_grad, GeluTanhGrad)
TWO(gelu_erf_grad, GeluErfGrad)
TWO(swiglu, Swiglu)

#define SCALE(suffix, T) \
    KERNEL(256) scale_##suffix(const T* x, T* y, i64 count, float factor) { map_one(x, y, count, Scale{factor}); }
FOR_ACTIVATIONS(SCALE)

// (gate, up, dy) → (dgate, dup)
template <class T>
__device__ void swiglu_grad(const T* gate, const T* up, const T* dy, T* dgate, T* dup, i64 count) {
    i64 at = first_element<T>();
    if (at >= count) return;
    float g[Lanes<T>::N], u[Lanes<T>::N], d[Lanes<T>::N];
    load(gate + at, count - at, true, g);
    load(up + at, count - at, true, u);
    load(dy + at, count - at, true, d);
#pragma unroll
    for (int i = 0; i < Lanes<T>::N; i++) {
        float slope = silu_slope(g[i]), value = g[i] * sigmoid(g[i]);
        g[i] = d[i] * slope * u[i];
        u[i] = value * d[i];
    }
    store(dgate + at, count - at, true, g);
    store(dup + at, count - at, true, u);
}

#define SWIGLU_GRAD(suffix, T) \
    KERNEL(256) swiglu_grad_##suffix(const T* gate, const T* up, const T* dy, T* dgate, T* dup, i64 count) { \
        swiglu_grad(gate, up, dy, dgate, dup, count); \
    }
FOR_ACTIVATIONS(SWIGLU_GRAD)

// y += b, a row of `columns` numbers of any type added to every row.
template <class T> __device__ void add_bias(T* y, const void* bias, int bias_kind, i64 count, i64 columns) {
    i64 at = first_element<T>();
    if (at >= count) return;
    float numbers[Lanes<T>::N];
    bool whole = u64(y) % 16 == 0; // `y` may be a tile of rows, which begins anywhere
    load(y + at, count - at, whole, numbers);
    i64 column = at % columns;
#pragma unroll
    for (int i = 0; i < Lanes<T>::N; i++) {
        numbers[i] += load_any(bias, bias_kind, column);
        column = column + 1 == columns ? 0 : column + 1;
    }
    store(y + at, count - at, whole, numbers);
}

#define ADD_BIAS(suffix, T) \
    KERNEL(256) add_bias_##suffix(T* y, const void* bias, int bias_kind, i64 count, i64 columns) { \
        add_bias(y, bias, bias_kind, count, columns); \
    }
FOR_ACTIVATIONS(ADD_BIAS)
