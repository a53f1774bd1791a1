// expert_sum: the weighted sum of the outputs of each token's experts (MoE).
//
//   parts    T [n, experts_per_token, hidden_size]
//   weights  fp32 [n, experts_per_token] or null: routing weights; null: 1
//   out      fp32 [n, hidden_size]
//
// Algorithm: a thread sums PACK neighboring elements over the experts in their order, so that the result is always
// the same.
//
// Requires: hidden_size % 8 == 0. Launch: grid (ceil(hidden_size / 2048), n), block 256, no shared memory.
// Moves n * hidden_size * (experts_per_token * sizeof T + 4) bytes.
// Accuracy: fp32: relative 1e-6. Test: tests/cuda/kernels/test_expert_sum.py
#include "common/pack.cuh"

constexpr int THREADS = 256, PACK = 8;

extern "C" __global__ void __launch_bounds__(THREADS)
expert_sum_kernel(const T* parts, const float* weights, float* out, int hidden_size, int experts_per_token) {
    start_dependents();
    wait_for_upstream();
    int column = (blockIdx.x * THREADS + threadIdx.x) * PACK;
    i64 token = blockIdx.y;
    if (column >= hidden_size) return;
    float sums[PACK] = {};
    const T* part = parts + token * experts_per_token * hidden_size + column;
#pragma unroll 4
    for (int choice = 0; choice < experts_per_token; choice++) {
        Pack<T, PACK> values = load_from_l2<PACK>(part + (i64)choice * hidden_size);
        float weight = weights ? weights[token * experts_per_token + choice] : 1.f;
#pragma unroll
        for (int i = 0; i < PACK; i++) sums[i] += weight * values[i];
    }
    Pack<float, PACK> result;
    result = sums;
    store(out + token * hidden_size + column, result);
}
