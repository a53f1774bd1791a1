// add_normed: adds the norm of a branch's output to the residual stream (Gemma 2, OLMo 2).
//
//   x       fp32 [n, hidden], in place: x += delta / sqrt(mean(delta²) + eps) * (weight + offset)
//   delta   T [n, hidden], or with ZERO_DELTA fp32: then it is left zero, for `linear` to add to again
//   weight  T [hidden]
//
// RMSNorm: Zhang and Sennrich, 2019. VECTORS > 0: a thread keeps up to VECTORS times 8 columns of
// its row in registers; needs hidden % 8 == 0 and hidden <= 8 * VECTORS * BLOCK. VECTORS 0: any
// hidden; delta is read twice (it lies in L1 or L2).
//
// Grid n, block BLOCK, no dynamic shared memory. Moves n * hidden * (8 + sizeof delta's element)
// bytes, with ZERO_DELTA 4 more. Sums in fp32.
// Test: tests/cuda/kernels/test_add_normed.py, relative 2e-6: results are fp32, sums differ by order.
#include "common/reduce.cuh"
#include "common/vectors.cuh"

constexpr int THREADS = BLOCK;
using D = Choose<ZERO_DELTA, float, T>::type;

__device__ __forceinline__ float row_scale(float squares, int hidden, float eps, float* scratch) {
    return rsqrtf(block_reduce<THREADS>(squares, Sum(), scratch) / hidden + eps);
}

// Vector v of a thread holds the 8 columns from column(v) on.
__device__ __forceinline__ int column(int v) { return (v * THREADS + threadIdx.x) * 8; }

template <int V>
__device__ __forceinline__ void in_registers(float* x, D* delta, const T* weight, int hidden,
                                             float eps, float offset, float* scratch) {
    Pack<T, 8> gain[V];
    Pack<D, 8> out[V];
    Pack<float, 8> stream[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        gain[v] = {};
        if (column(v) < hidden) gain[v] = load<8>(weight + column(v));
    }
    wait_for_upstream();
#pragma unroll
    for (int v = 0; v < V; v++) {
        out[v] = {};
        if (column(v) >= hidden) continue;
        out[v] = load<8>(delta + column(v));
        stream[v] = load<8>(x + column(v));
    }
    float squares = 0;
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int i = 0; i < 8; i++) squares += out[v][i] * out[v][i];
    float scale = row_scale(squares, hidden, eps, scratch);
#pragma unroll
    for (int v = 0; v < V; v++) {
        if (column(v) >= hidden) continue;
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            values[i] = stream[v][i] + out[v][i] * scale * (gain[v][i] + offset);
        stream[v] = values;
        store(x + column(v), stream[v]);
        if (ZERO_DELTA) store(delta + column(v), Pack<D, 8>{});
    }
}

__device__ __forceinline__ void in_passes(float* x, D* delta, const T* weight, int hidden,
                                          float eps, float offset, float* scratch) {
    wait_for_upstream();
    float squares = 0;
    for (int i = threadIdx.x; i < hidden; i += THREADS) {
        float value = to_float(delta[i]);
        squares += value * value;
    }
    float scale = row_scale(squares, hidden, eps, scratch);
    for (int i = threadIdx.x; i < hidden; i += THREADS) {
        x[i] += to_float(delta[i]) * scale * (to_float(weight[i]) + offset);
        if (ZERO_DELTA) delta[i] = D(0.f);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
add_norm_kernel(float* x, D* delta, const T* weight, int hidden, float eps, float offset) {
    __shared__ float scratch[THREADS / WARP];
    start_dependents();
    i64 row = (i64)blockIdx.x * hidden;
#if VECTORS
    in_registers<VECTORS>(x + row, delta + row, weight, hidden, eps, offset, scratch);
#else
    in_passes(x + row, delta + row, weight, hidden, eps, offset, scratch);
#endif
}
