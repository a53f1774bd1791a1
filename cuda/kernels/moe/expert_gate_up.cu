// expert_gate_up: first half of the MLPs of each token's experts (MoE): activation(gate · x) * (up · x).
//
//   x          T [n, hidden_size]
//   addresses  u64 [num_experts]: each expert's matrix T [2 * expert_size, hidden_size], gate first
//   ids        int32 [n, experts_per_token]
//   out        T [n, experts_per_token, expert_size] = ACTIVATION(gate · x) * (up · x)
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
#include "common/activation.cuh"
#include "moe/expert_dot.cuh"

constexpr int PAIRS = 2;  // of gate and up rows, a warp

extern "C" __global__ void __launch_bounds__(THREADS)
expert_gate_up_kernel(const T* x, const u64* addresses, const int* ids, T* out, int hidden_size, int expert_size,
                    int experts_per_token) {
    extern __shared__ __align__(16) u8 dynamic[];
    T* activation = (T*)dynamic;
    start_dependents();
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    i64 pair = blockIdx.y;
    int row = (blockIdx.x * WARPS + warp) * PAIRS, count = min(PAIRS, expert_size - row);
    wait_for_upstream();
    const T* gate = (const T*)addresses[ids[pair]];
    copy_to_shared(activation, x + pair / experts_per_token * hidden_size, hidden_size);
    __syncthreads();
    if (count <= 0) return;
    float gates[PAIRS] = {}, ups[PAIRS] = {};
    add_dots(gates, gate + (i64)row * hidden_size, hidden_size, count, activation, hidden_size, lane, WARP);
    add_dots(ups, gate + ((i64)expert_size + row) * hidden_size, hidden_size, count, activation, hidden_size, lane, WARP);
#pragma unroll
    for (int r = 0; r < PAIRS; r++) {
        float g = warp_reduce(gates[r], Sum()), u = warp_reduce(ups[r], Sum());
        if (lane == 0 && r < count)
            out[pair * expert_size + row + r] = from_float<T>(activate<ACTIVATION>(g) * u);
    }
}
