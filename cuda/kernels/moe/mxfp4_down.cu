// mxfp4_down: second half of the MLPs of each token's experts, whose matrices are MXFP4, weighted and summed.
//
//   x          bf16 [n, experts_per_token, expert_size]
//   blocks     u64 [num_experts]: addresses of each expert's elements u8 [hidden_size, expert_size / 2]
//   scales     u64 [num_experts]: addresses of their scales u8 [hidden_size, expert_size / 32]
//   biases     u64 [num_experts] or null: addresses of biases bf16 [hidden_size]
//   ids        int32 [n, experts_per_token]
//   weights    fp32 [n, experts_per_token]: routing weights
//   out        fp32 [n, hidden_size] = sum over a token's experts of weight * (matrix · x + bias)
//
// Algorithm: a block computes 16 rows of one token, the rows of an mma. Its warps divide the experts, and if there
// are fewer experts than warps, the columns. Their sums are added in the order of the warps. See mxfp4.cuh.
//
// Requires: expert_size a multiple of 32.
// Launch: grid (ceil(hidden_size / 16), n), block 512, dynamic shared memory
// experts_per_token * expert_size / 32 * 80.
// Moves n * experts_per_token * hidden_size * expert_size * 17 / 32 bytes.
// Accuracy: fp32 sums of exact weights: relative 1e-5. Test: tests/cuda/kernels/test_mxfp4_down.py
#include "moe/mxfp4.cuh"

constexpr int WARPS = 16, ROWS = 16;

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
mxfp4_down_kernel(const bf16* x, const u64* blocks, const u64* scales, const u64* biases, const int* ids,
                  const float* weights, float* out, int hidden_size, int expert_size, int experts_per_token) {
    extern __shared__ __align__(16) uint4 activations[];
    __shared__ float sums[WARPS][ROWS];
    start_dependents();
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, groups = expert_size / GROUP;
    int splits = max(1, WARPS / experts_per_token), split = warp % splits, at_once = WARPS / splits;
    int first = blockIdx.x * ROWS, row[2];
    i64 token = blockIdx.y;
    for (int i = 0; i < 2; i++) row[i] = min(first + lane / 4 + 8 * i, hidden_size - 1);
    wait_for_upstream();
    stage_activations(activations, x + token * experts_per_token * expert_size, experts_per_token * expert_size);
    __syncthreads();
    float total[2] = {};
    for (int choice = warp / splits; choice < experts_per_token && warp / splits < at_once; choice += at_once) {
        int expert = ids[token * experts_per_token + choice];
        Row low(blocks[expert], scales[expert], row[0], groups), high(blocks[expert], scales[expert], row[1], groups);
        float products[4] = {}, weight = weights[token * experts_per_token + choice];
        add_products(products, low, high, groups, activations + choice * groups * PITCH, split, splits);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float value = products[2 * i] * WEIGHT_SCALE;
            if (biases && split == 0) value += to_float(((const bf16*)biases[expert])[row[i]]);
            total[i] += weight * value;
        }
    }
    if (lane % 4 == 0)
        for (int i = 0; i < 2; i++) sums[warp][lane / 4 + 8 * i] = total[i];
    __syncthreads();
    if (threadIdx.x < ROWS && first + threadIdx.x < hidden_size) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += sums[w][threadIdx.x];
        out[token * hidden_size + first + threadIdx.x] = sum;
    }
}
