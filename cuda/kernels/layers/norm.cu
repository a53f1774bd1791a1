// norm: adds a layer's output to the residual stream, then normalizes each row.
//
//   x       fp32 [n, hidden], in place: x += delta (+ bias)
//   delta   T [n, hidden] or null (nothing is added, x is only read)
//   bias    T [hidden] or null: the bias of the product that made delta
//   weight  T [hidden]
//   shift   T [hidden] or null: LayerNorm's own bias
//   out     T [n, hidden]
//
// LAYER_NORM 0: out = x / sqrt(mean(x²) + eps) * (weight + offset)    (Zhang and Sennrich, 2019)
// LAYER_NORM 1: out = (x - mean) / sqrt(var + eps) * (weight + offset) + shift    (Ba et al., 2016)
//
// VECTORS > 0: a thread keeps up to VECTORS times 8 columns of its row in registers, so that the
// row is read once; needs hidden % 8 == 0 and hidden <= 8 * VECTORS * BLOCK.
// VECTORS 0: any hidden; the row is read again for each pass (it lies in L1 or L2).
//
// Grid n, block BLOCK, no dynamic shared memory. Moves n * hidden * (4 + sizeof T) bytes, with
// delta 4 + sizeof T more. Sums in fp32, LayerNorm's variance about the mean in a second pass
// over the row (x² - mean² would cancel).
// Test: tests/cuda/kernels/test_norm.py, relative 2e-6 (fp32), 2^-8 (bf16), 2^-11 (fp16): one rounding
// of the result plus the order of a sum.
#include "common/reduce.cuh"
#include "common/vectors.cuh"

constexpr int THREADS = BLOCK;

struct Arguments {
    float* x;
    const T *delta, *bias, *weight, *shift;
    T* out;
    int hidden;
    float eps, offset;
};

__device__ __forceinline__ float row_scale(float squares, const Arguments& a, float* scratch) {
    return rsqrtf(block_reduce<THREADS>(squares, Sum(), scratch) / a.hidden + a.eps);
}

// A row in registers: vector v of a thread holds the 8 columns from column(v) on.
__device__ __forceinline__ int column(int v) { return (v * THREADS + threadIdx.x) * 8; }

// The same vectors of a constant, or zeros where it is null.
template <int V> __device__ __forceinline__ void load_constant(Pack<T, 8> (&to)[V], const T* from,
                                                               int hidden) {
#pragma unroll
    for (int v = 0; v < V; v++) {
        to[v] = {};
        if (from && column(v) < hidden) to[v] = load<8>(from + column(v));
    }
}

// x and delta are loaded whole before the first use, so that all loads are under way at once.
template <int V> __device__ __forceinline__ void add_delta(float (&value)[V][8],
                                                           const Pack<T, 8> (&bias)[V],
                                                           const Arguments& a, i64 row) {
    Pack<float, 8> x[V];
    Pack<T, 8> delta[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        x[v] = {};
        delta[v] = {};
        if (column(v) >= a.hidden) continue;
        x[v] = load<8>(a.x + row + column(v));
        if (a.delta) delta[v] = load<8>(a.delta + row + column(v));
    }
#pragma unroll
    for (int v = 0; v < V; v++) {
#pragma unroll
        for (int i = 0; i < 8; i++) value[v][i] = x[v][i];
        if (!a.delta || column(v) >= a.hidden) continue;
#pragma unroll
        for (int i = 0; i < 8; i++) value[v][i] += delta[v][i] + bias[v][i];
        x[v] = value[v];
        store(a.x + row + column(v), x[v]);
    }
}

// Subtracts the row's mean from its values.
template <int V> __device__ __forceinline__ void center(float (&value)[V][8], const Arguments& a,
                                                        float* scratch) {
    float sum = 0;
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int i = 0; i < 8; i++) sum += value[v][i];
    float mean = block_reduce<THREADS>(sum, Sum(), scratch) / a.hidden;
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (column(v) < a.hidden) value[v][i] -= mean;  // what is past the row stays zero
}

template <int V> __device__ __forceinline__ void norm_in_registers(const Arguments& a, i64 row,
                                                                   float* scratch) {
    Pack<T, 8> weight[V], bias[V], shift[V];
    float value[V][8], squares = 0;
    load_constant(weight, a.weight, a.hidden);
    load_constant(bias, a.bias, a.hidden);
    if (LAYER_NORM) load_constant(shift, a.shift, a.hidden);
    wait_for_upstream();
    add_delta(value, bias, a, row);
    if (LAYER_NORM) center(value, a, scratch);
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int i = 0; i < 8; i++) squares += value[v][i] * value[v][i];
    float scale = row_scale(squares, a, scratch);
#pragma unroll
    for (int v = 0; v < V; v++) {
        if (column(v) >= a.hidden) continue;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            value[v][i] *= scale * (weight[v][i] + a.offset);
            if (LAYER_NORM) value[v][i] += shift[v][i];
        }
        Pack<T, 8> out;
        out = value[v];
        store(a.out + row + column(v), out);
    }
}

__device__ __forceinline__ void norm_in_passes(const Arguments& a, i64 row, float* scratch) {
    wait_for_upstream();
    float sum = 0, squares = 0, mean = 0;
    for (int i = threadIdx.x; i < a.hidden; i += THREADS) {
        float value = a.x[row + i];
        if (a.delta) {
            value += to_float(a.delta[row + i]) + (a.bias ? to_float(a.bias[i]) : 0.f);
            a.x[row + i] = value;
        }
        sum += value;
        squares += value * value;
    }
    if (LAYER_NORM) {
        mean = block_reduce<THREADS>(sum, Sum(), scratch) / a.hidden;
        squares = 0;
        for (int i = threadIdx.x; i < a.hidden; i += THREADS) {
            float value = a.x[row + i] - mean;
            squares += value * value;
        }
    }
    float scale = row_scale(squares, a, scratch);
    for (int i = threadIdx.x; i < a.hidden; i += THREADS) {
        float value = (a.x[row + i] - mean) * scale * (to_float(a.weight[i]) + a.offset);
        a.out[row + i] = from_float<T>(a.shift ? value + to_float(a.shift[i]) : value);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
norm_kernel(float* x, const T* delta, const T* bias, const T* weight, const T* shift, T* out,
            int hidden, float eps, float offset) {
    __shared__ float scratch[THREADS / WARP];
    start_dependents();
    Arguments a{x, delta, bias, weight, shift, out, hidden, eps, offset};
    i64 row = (i64)blockIdx.x * hidden;
#if VECTORS
    norm_in_registers<VECTORS>(a, row, scratch);
#else
    norm_in_passes(a, row, scratch);
#endif
}
