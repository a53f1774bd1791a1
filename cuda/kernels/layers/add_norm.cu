// add_norm: add the RMSNorm of a branch's output to the residual stream (Gemma 2, OLMo 2).
//
//   x       fp32 [n, hidden_size]: in place, x += delta / sqrt(mean(delta²) + eps) * (weight + offset)
//   delta   fp32 [n, hidden_size] with ZERO_DELTA, else T [n, hidden_size]; fp32 is set to zero for `linear` to add to
//           again
//   weight  T [hidden_size]; `offset` is weight_offset
//   scale   T [1] or null, unaligned: x is then multiplied by it (Gemma 4)
//   copy    T [n, hidden_size] or null: x, rounded
//
// Algorithm: VECTORS > 0: a thread holds up to VECTORS * 8 columns of its row in registers.
// VECTORS = 0: delta is read twice, the second time from L1 or L2. Zhang and Sennrich, 2019.
//
// Requires: with VECTORS > 0, hidden_size % 8 == 0 and hidden_size <= 8 * VECTORS * BLOCK.
// Launch: grid n, block BLOCK, no dynamic shared memory.
// Moves n * hidden_size * (8 + size of delta's element) bytes, with ZERO_DELTA 4 more, with `copy` sizeof T.
// Accuracy: fp32 sums: relative 2e-6. Test: tests/cuda/kernels/test_add_norm.py
#include "common/reduce.cuh"
#include "common/pack.cuh"

constexpr int THREADS = BLOCK;
using D = Choose<ZERO_DELTA, float, T>::type;

__device__ __forceinline__ float inverse_rms(float squares, int hidden_size, float eps, float* scratch) {
    return rsqrtf(block_reduce<THREADS>(squares, Sum(), scratch) / hidden_size + eps);
}

// Vector v of a thread holds 8 columns from column(v) on.
__device__ __forceinline__ int column(int v) { return (v * THREADS + threadIdx.x) * 8; }

// The constant factor of the result, loaded before the wait.
__device__ __forceinline__ float factor_of(const T* scale) { return scale ? to_float(*scale) : 1.f; }

template <int V>
__device__ __forceinline__ void add_norm_in_registers(float* x, D* delta, const T* weight, const T* scale, T* copy,
                                                      int hidden_size, float eps,
                                                      float weight_offset, float* scratch) {
    float factor = factor_of(scale);
    Pack<T, 8> weights[V];
    Pack<D, 8> out[V];
    Pack<float, 8> residual[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        weights[v] = {};
        if (column(v) < hidden_size) weights[v] = load<8>(weight + column(v));
    }
    wait_for_upstream();
#pragma unroll
    for (int v = 0; v < V; v++) {
        out[v] = {};
        if (column(v) >= hidden_size) continue;
        out[v] = load<8>(delta + column(v));
        residual[v] = load<8>(x + column(v));
    }
    float squares = 0;
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int i = 0; i < 8; i++) squares += out[v][i] * out[v][i];
    float by = inverse_rms(squares, hidden_size, eps, scratch);
#pragma unroll
    for (int v = 0; v < V; v++) {
        if (column(v) >= hidden_size) continue;
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            values[i] = (residual[v][i] + out[v][i] * by * (weights[v][i] + weight_offset)) * factor;
        residual[v] = values;
        store(x + column(v), residual[v]);
        if (copy) {
            Pack<T, 8> rounded;
            rounded = values;
            store(copy + column(v), rounded);
        }
        if (ZERO_DELTA) store(delta + column(v), Pack<D, 8>{});
    }
}

__device__ __forceinline__ void add_norm_in_passes(float* x, D* delta, const T* weight, const T* scale, T* copy,
                                                   int hidden_size, float eps, float weight_offset,
                                                   float* scratch) {
    float factor = factor_of(scale);
    wait_for_upstream();
    float squares = 0;
    for (int i = threadIdx.x; i < hidden_size; i += THREADS) {
        float value = to_float(delta[i]);
        squares += value * value;
    }
    float by = inverse_rms(squares, hidden_size, eps, scratch);
    for (int i = threadIdx.x; i < hidden_size; i += THREADS) {
        float value = (x[i] + to_float(delta[i]) * by * (to_float(weight[i]) + weight_offset)) * factor;
        x[i] = value;
        if (copy) copy[i] = from_float<T>(value);
        if (ZERO_DELTA) delta[i] = D(0.f);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
add_norm_kernel(float* x, D* delta, const T* weight, const T* scale, T* copy, int hidden_size, float eps,
                float weight_offset) {
    __shared__ float scratch[THREADS / WARP];
    start_dependents();
    i64 row = (i64)blockIdx.x * hidden_size;
#if VECTORS
    add_norm_in_registers<VECTORS>(x + row, delta + row, weight, scale, copy ? copy + row : copy, hidden_size, eps,
                                   weight_offset, scratch);
#else
    add_norm_in_passes(x + row, delta + row, weight, scale, copy ? copy + row : copy, hidden_size, eps, weight_offset,
                       scratch);
#endif
}
