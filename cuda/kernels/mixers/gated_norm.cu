// gated_norm: RMSNorm over groups of a mixer's outputs, with gates.
//
//   x          fp32 [n, width]
//   weight     fp32 [weight_size]: constant; width elements, or group_size for all groups with weight_stride 0
//   gates      T [n, gate_columns] or null, rows gates_stride elements apart, unaligned: the result is multiplied
//              by silu(gate_scale * gates) of the first columns
//   out        T [n, width]
//
//   out = x · rsqrt(mean of x² over the group + eps) · weight · silu(gate_scale · gates)
//
// Algorithm: a block has a group of a row in registers, 4 elements a vector.
// Defines: BLOCK, the number of threads, and VECTORS.
// Requires: group_size % 4 == 0 and group_size <= 4 * VECTORS * BLOCK.
// Launch: grid (n, width / group_size), block BLOCK, no dynamic shared memory.
// Moves n * width * (4 + sizeof T) bytes, with gates sizeof T more.
// Accuracy: fp32, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 2e-6 (fp32).
// Test: tests/cuda/kernels/test_gated_norm.py
#include "common/pack.cuh"
#include "common/reduce.cuh"
#include "mixers/step.cuh"

constexpr int THREADS = BLOCK;

extern "C" __global__ void __launch_bounds__(THREADS)
gated_norm_kernel(const float* x, const float* weight, const T* gates, T* out, int width, int group_size,
                  int weight_stride, i64 gates_stride, float gate_scale, float eps) {
    __shared__ float scratch[THREADS / WARP];
    start_dependents();
    int start = blockIdx.y * group_size;
    i64 row = blockIdx.x;
    Pack<float, 4> values[VECTORS], weights[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        int i = 4 * (v * THREADS + threadIdx.x);
        weights[v] = {};
        if (i < group_size) weights[v] = load<4>(weight + blockIdx.y * weight_stride + i);
    }
    wait_for_upstream();
    float squares = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        int i = 4 * (v * THREADS + threadIdx.x);
        values[v] = {};
        if (i < group_size) values[v] = load<4>(x + row * width + start + i);
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
#pragma unroll
        for (int j = 0; j < 4; j++) squares += values[v][j] * values[v][j];
    float scale = rsqrtf(block_reduce<THREADS>(squares, Sum(), scratch) / group_size + eps);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        int i = 4 * (v * THREADS + threadIdx.x);
        if (i >= group_size) continue;
        float results[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            results[j] = values[v][j] * scale * weights[v][j];
            if (!gates) continue;
            float gate = gate_scale * to_float(gates[row * gates_stride + start + i + j]);
            results[j] *= gate * sigmoid(gate);
        }
        Pack<T, 4> packed;
        packed = results;
        store(out + row * width + start + i, packed);
    }
}
