// mxfp4_gate_up: first half of the MLPs of each token's experts, whose matrices are MXFP4.
//
//   x          bf16 [n, hidden_size]
//   blocks     u64 [num_experts]: addresses of each expert's elements u8 [2 * expert_size, hidden_size / 2]
//   scales     u64 [num_experts]: addresses of their scales u8 [2 * expert_size, hidden_size / 32]
//   biases     u64 [num_experts] or null: addresses of biases bf16 [2 * expert_size]
//   ids        int32 [n, experts_per_token]
//   out        bf16 [n, experts_per_token, expert_size]: as in expert_gate_up, with gate_step and limit
//
// Algorithm: a block computes eight outputs of a token's expert: eight gate rows and eight up rows are the rows of
// an mma. Its warps divide the columns; their sums are added in the order of the warps. See mxfp4.cuh.
//
// Requires: hidden_size a multiple of 32.
// Launch: grid (ceil(expert_size / 8), n * experts_per_token), block 128, dynamic shared memory
// hidden_size / 32 * 80.
// Moves n * experts_per_token * 2 * expert_size * hidden_size * 17 / 32 bytes, less where tokens share experts
// that stay in L2.
// Accuracy: fp32 sums of exact weights, rounded once: relative 2^-8. Test: tests/cuda/kernels/test_mxfp4_gate_up.py
#include "moe/gated.cuh"
#include "moe/mxfp4.cuh"

constexpr int WARPS = 4, ROWS = 8;

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
mxfp4_gate_up_kernel(const bf16* x, const u64* blocks, const u64* scales, const u64* biases, const int* ids,
                     bf16* out, int hidden_size, int expert_size, int experts_per_token, int gate_step,
                     float limit) {
    extern __shared__ __align__(16) uint4 activations[];
    __shared__ float sums[WARPS][2 * ROWS];
    start_dependents();
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, first = blockIdx.x * ROWS;
    int groups = hidden_size / GROUP, to_up = gate_step == 2 ? 1 : expert_size;
    i64 pair = blockIdx.y;
    i64 row = (i64)min(first + lane / 4, expert_size - 1) * gate_step;
    wait_for_upstream();
    int expert = ids[pair];
    Row gate(blocks[expert], scales[expert], row, groups), up(blocks[expert], scales[expert], row + to_up, groups);
    stage_activations(activations, x + pair / experts_per_token * hidden_size, hidden_size);
    __syncthreads();
    float products[4] = {};
    add_products(products, gate, up, groups, activations, warp, WARPS);
    if (lane % 4 == 0) {
        sums[warp][lane / 4] = products[0];
        sums[warp][ROWS + lane / 4] = products[2];
    }
    __syncthreads();
    int own = first + threadIdx.x;
    if (threadIdx.x >= ROWS || own >= expert_size) return;
    float g = 0, u = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        g += sums[w][threadIdx.x];
        u += sums[w][ROWS + threadIdx.x];
    }
    g *= WEIGHT_SCALE, u *= WEIGHT_SCALE;
    if (biases) {
        const bf16* bias = (const bf16*)biases[expert] + (i64)own * gate_step;
        g += to_float(bias[0]), u += to_float(bias[to_up]);
    }
    out[pair * expert_size + own] = from_float<bf16>(gated<ACTIVATION>(g, u, limit));
}
