// expert_gate_up: first half of the MLPs of each token's experts (MoE): activation(gate) * up.
//
//   x          T [n, hidden_size]
//   values     u64 [num_experts]: each expert's matrix T [2 * expert_size, hidden_size]
//   biases     u64 [num_experts] or null: each expert's bias T [2 * expert_size]
//   ids        int32 [n, experts_per_token]
//   input_weights  fp32 [n, experts_per_token] or null: the products are multiplied by them, before a bias is added:
//              the weight of a choice multiplies the expert's input (Llama 4)
//   out        T [n, experts_per_token, expert_size] = ACTIVATION(gate · x) * (up · x); with a `limit` > 0
//              gate is at most that, up is clamped to ±limit, and 1 is added to up (OpenAI gpt-oss, 2025)
//   num_routed, shared_size  the experts from num_routed on are parts of one expert of this size, which all tokens
//              choose: their up rows come shared_size after their gate rows
//
// Algorithm: a warp computes two gate rows and the two up rows that belong to them; a lane has four
// loads of 16 bytes of each row in flight. The expert ids come from upstream, so no weight can be
// loaded before the wait.
//
// Requires: hidden_size * sizeof T a multiple of 16.
// Launch: grid (ceil(expert_size / 16), n * experts_per_token), block 256, dynamic shared memory
// hidden_size * sizeof T.
// Moves n * experts_per_token * 2 * expert_size * hidden_size * sizeof T bytes, less where tokens
// share experts that stay in L2.
// Accuracy: fp32 sums, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 1e-5 (fp32).
// Test: tests/cuda/kernels/test_expert_gate_up.py
#include "moe/expert_dot.cuh"
#include "moe/gated.cuh"

constexpr int PAIRS = 2;  // of gate and up rows, a warp

extern "C" __global__ void __launch_bounds__(THREADS)
expert_gate_up_kernel(const T* x, const u64* values, const u64* biases, const int* ids,
                      const float* input_weights, T* out, int num_routed, int shared_size, int hidden_size, int expert_size, int experts_per_token,
                      float limit) {
    extern __shared__ __align__(16) u8 dynamic[];
    T* activation = (T*)dynamic;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    i64 pair = blockIdx.y;
    int row = (blockIdx.x * WARPS + warp) * PAIRS, count = min(PAIRS, expert_size - row);
    wait_for_upstream();
    start_dependents();  // the ids are known: see expert_down
    const T* gate = (const T*)values[ids[pair]];
    copy_to_shared(activation, x + pair / experts_per_token * hidden_size, hidden_size);
    __syncthreads();
    if (count <= 0) return;
    float gates[PAIRS] = {}, ups[PAIRS] = {};
    i64 first = row, to_up = ids[pair] < num_routed ? expert_size : shared_size;  // in rows
    add_dots(gates, gate + first * hidden_size, hidden_size, count, activation, hidden_size, lane, WARP);
    add_dots(ups, gate + (first + to_up) * hidden_size, hidden_size, count, activation, hidden_size, lane, WARP);
    const T* bias = biases ? (const T*)biases[ids[pair]] + first : nullptr;
    float weight = input_weights ? __ldcg(input_weights + pair) : 1.f;
#pragma unroll
    for (int r = 0; r < PAIRS; r++) {
        float g = warp_reduce(gates[r], Sum()), u = warp_reduce(ups[r], Sum());
        if (lane != 0 || r >= count) continue;
        g *= weight, u *= weight;
        if (bias) g += to_float(bias[r]), u += to_float(bias[r + to_up]);
        out[pair * expert_size + row + r] = from_float<T>(gated<ACTIVATION>(g, u, limit));
    }
}
