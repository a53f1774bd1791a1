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
// Algorithm: a block computes eight rows of one token. The first half of their columns are rows 0 to 7 of an mma, the
// other half rows 8 to 15; its even and odd columns have the activations of these halves. The warps divide the
// experts, and if there are fewer experts than warps, the columns. Their sums are added in the order of the warps.
// See mxfp4.cuh.
//
// Requires: expert_size a multiple of 32, at least 64.
// Launch: grid (ceil(hidden_size / 8), n), block 256, dynamic shared memory
// experts_per_token * expert_size / 32 * 80.
// Moves n * experts_per_token * hidden_size * expert_size * 17 / 32 bytes.
// Accuracy: fp32 sums of exact weights: relative 1e-5. Test: tests/cuda/kernels/test_mxfp4_down.py
#include "moe/mxfp4.cuh"

constexpr int WARPS = 8, ROWS = 8;

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
mxfp4_down_kernel(const bf16* x, const u64* blocks, const u64* scales, const u64* biases, const int* ids,
                  const float* weights, float* out, int hidden_size, int expert_size, int experts_per_token) {
    extern __shared__ __align__(16) uint4 activations[];
    __shared__ float sums[WARPS][ROWS];
    start_dependents();
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, groups = expert_size / GROUP;
    int splits = max(1, WARPS / experts_per_token), split = warp % splits, at_once = WARPS / splits;
    int first = blockIdx.x * ROWS, row = min(first + lane / 4, hidden_size - 1);
    int half = (groups + 1) / 2, is_odd = lane / 4 % 2, own_first = is_odd * half;
    i64 token = blockIdx.y;
    wait_for_upstream();
    int choice = warp / splits, end = choice < at_once ? experts_per_token : 0;
    auto expert_of = [&](int choice) { return ids[token * experts_per_token + min(choice, experts_per_token - 1)]; };
    auto row_of = [&](int expert, int from, int count) {
        return Row(blocks[expert], scales[expert], row, groups, from, count);
    };
    int expert = expert_of(choice);
    Loads loads;
    loads.request(row_of(expert, 0, half), row_of(expert, half, groups - half), split, splits);
    int columns = experts_per_token * expert_size;
    stage_activations<WARPS * WARP, 6>(activations, x + token * columns, columns);
    __syncthreads();
    float total = 0;
    while (choice < end) {
        Row low = row_of(expert, 0, half), high = row_of(expert, half, groups - half);
        float products[4] = {}, weight = weights[token * experts_per_token + choice];
        const uint4* own = activations + (choice * groups + own_first) * PITCH;
        add_products(products, loads, low, high, own, is_odd ? groups - half : half, split, splits);
        float value = (products[0] + products[3]) * WEIGHT_SCALE;
        if (biases && split == 0) value += to_float(((const bf16*)biases[expert])[row]);
        total += weight * value;
        choice += at_once;
        if (choice >= end) break;
        expert = expert_of(choice);
        loads.request(row_of(expert, 0, half), row_of(expert, half, groups - half), split, splits);
    }
    if (lane % 4 == 0) sums[warp][lane / 4] = total;
    __syncthreads();
    if (threadIdx.x < ROWS && first + threadIdx.x < hidden_size) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += sums[w][threadIdx.x];
        out[token * hidden_size + first + threadIdx.x] = sum;
    }
}
