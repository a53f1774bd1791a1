// norm: add a layer's output to the residual stream, then normalize each row.
//
//   x       fp32 [n, hidden_size]: in place, x += delta
//   delta   T [n, hidden_size] or null (x is only read)
//   weight  T [hidden_size]; `offset` below is weight_offset
//   shift   T [hidden_size] or null: LayerNorm's bias
//   out     T [n, hidden_size]
//
// LAYER_NORM 0: out = x / sqrt(mean(x²) + eps) * (weight + offset)    (Zhang and Sennrich, 2019)
// LAYER_NORM 1: out = (x - mean) / sqrt(var + eps) * (weight + offset) + shift    (Ba et al., 2016)
//
// Algorithm: VECTORS > 0: a thread holds up to VECTORS * 8 columns of its row in registers, so the
// row is read once. VECTORS = 0: the row is read again for each pass, from L1 or L2. The variance is
// computed about the mean in a second pass, because mean(x²) - mean² would cancel.
//
// Requires: with VECTORS > 0, hidden_size % 8 == 0 and hidden_size <= 8 * VECTORS * BLOCK.
// Launch: grid n, block BLOCK, no dynamic shared memory.
// Moves n * hidden_size * (4 + sizeof T) bytes, with delta 4 + sizeof T more.
// Accuracy: fp32 sums, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 2e-6 (fp32).
// Test: tests/cuda/kernels/test_norm.py
#include "common/reduce.cuh"
#include "common/pack.cuh"

constexpr int THREADS = BLOCK;

struct Arguments {
    float* x;
    const T *delta, *weight, *shift;
    T* out;
    int hidden_size;
    float eps, weight_offset;
};

__device__ __forceinline__ float inverse_deviation(float squares, const Arguments& a, float* scratch) {
    return rsqrtf(block_reduce<THREADS>(squares, Sum(), scratch) / a.hidden_size + a.eps);
}

// Vector v of a thread holds 8 columns of the row from column(v) on.
__device__ __forceinline__ int column(int v) { return (v * THREADS + threadIdx.x) * 8; }

// Loads the same columns of a parameter, or zeros if it is null.
template <int V> __device__ __forceinline__ void load_parameter(Pack<T, 8> (&to)[V], const T* from,
                                                               int hidden_size) {
#pragma unroll
    for (int v = 0; v < V; v++) {
        to[v] = {};
        if (from && column(v) < hidden_size) to[v] = load<8>(from + column(v));
    }
}

// All of x and delta is loaded before the first use, so that the loads are in flight together.
template <int V> __device__ __forceinline__ void add_delta(float (&value)[V][8], const Arguments& a,
                                                           i64 row) {
    Pack<float, 8> x[V];
    Pack<T, 8> delta[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        x[v] = {};
        delta[v] = {};
        if (column(v) >= a.hidden_size) continue;
        x[v] = load<8>(a.x + row + column(v));
        if (a.delta) delta[v] = load<8>(a.delta + row + column(v));
    }
#pragma unroll
    for (int v = 0; v < V; v++) {
#pragma unroll
        for (int i = 0; i < 8; i++) value[v][i] = x[v][i];
        if (!a.delta || column(v) >= a.hidden_size) continue;
#pragma unroll
        for (int i = 0; i < 8; i++) value[v][i] += delta[v][i];
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
    float mean = block_reduce<THREADS>(sum, Sum(), scratch) / a.hidden_size;
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (column(v) < a.hidden_size) value[v][i] -= mean;  // columns past the row stay 0
}

template <int V> __device__ __forceinline__ void norm_in_registers(const Arguments& a, i64 row,
                                                                   float* scratch) {
    Pack<T, 8> weight[V], shift[V];
    float value[V][8], squares = 0;
    load_parameter(weight, a.weight, a.hidden_size);
    if (LAYER_NORM) load_parameter(shift, a.shift, a.hidden_size);
    wait_for_upstream();
    add_delta(value, a, row);
    if (LAYER_NORM) center(value, a, scratch);
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int i = 0; i < 8; i++) squares += value[v][i] * value[v][i];
    float scale = inverse_deviation(squares, a, scratch);
#pragma unroll
    for (int v = 0; v < V; v++) {
        if (column(v) >= a.hidden_size) continue;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            value[v][i] *= scale * (weight[v][i] + a.weight_offset);
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
    for (int i = threadIdx.x; i < a.hidden_size; i += THREADS) {
        float value = a.x[row + i];
        if (a.delta) {
            value += to_float(a.delta[row + i]);
            a.x[row + i] = value;
        }
        sum += value;
        squares += value * value;
    }
    if (LAYER_NORM) {
        mean = block_reduce<THREADS>(sum, Sum(), scratch) / a.hidden_size;
        squares = 0;
        for (int i = threadIdx.x; i < a.hidden_size; i += THREADS) {
            float value = a.x[row + i] - mean;
            squares += value * value;
        }
    }
    float scale = inverse_deviation(squares, a, scratch);
    for (int i = threadIdx.x; i < a.hidden_size; i += THREADS) {
        float value = (a.x[row + i] - mean) * scale * (to_float(a.weight[i]) + a.weight_offset);
        a.out[row + i] = from_float<T>(a.shift ? value + to_float(a.shift[i]) : value);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
norm_kernel(float* x, const T* delta, const T* weight, const T* shift, T* out,
            int hidden_size, float eps, float weight_offset) {
    __shared__ float scratch[THREADS / WARP];
    start_dependents();
    Arguments a{x, delta, weight, shift, out, hidden_size, eps, weight_offset};
    i64 row = (i64)blockIdx.x * hidden_size;
#if VECTORS
    norm_in_registers<VECTORS>(a, row, scratch);
#else
    norm_in_passes(a, row, scratch);
#endif
}
