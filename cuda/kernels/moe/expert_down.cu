// expert_down: second half of the MLPs of each token's experts (MoE), weighted and summed.
//
//   x          T [n, experts_per_token, expert_size]
//   addresses  u64 [num_experts]: each expert's matrix T [hidden_size, expert_size]
//   biases     u64 [num_experts] or null: each expert's bias T [hidden_size]
//   ids        int32 [n, experts_per_token]
//   weights    fp32 [n, experts_per_token]: routing weights
//   out        fp32 [n, hidden_size] = sum over a token's experts of weight * (matrix · x + bias)
//
// Algorithm: a block computes four rows of one token. Its warps divide the experts, and if there are
// fewer experts than warps, the columns. Their sums are added in the order of the warps.
//
// Requires: expert_size * sizeof T a multiple of 16.
// Launch: grid (ceil(hidden_size / 4), n), block 256, dynamic shared memory
// experts_per_token * expert_size * sizeof T.
// Moves n * experts_per_token * hidden_size * expert_size * sizeof T bytes.
// Accuracy: fp32 sums: relative 1e-5. Test: tests/cuda/kernels/test_expert_down.py
#include "moe/expert_dot.cuh"

constexpr int ROWS = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
expert_down_kernel(const T* x, const u64* addresses, const u64* biases, const int* ids, const float* weights,
                   float* out, int hidden_size, int expert_size, int experts_per_token) {
    extern __shared__ __align__(16) u8 dynamic[];
    __shared__ float sums[WARPS][ROWS];
    T* activations = (T*)dynamic;
    start_dependents();
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int splits = max(1, WARPS / experts_per_token), split = warp % splits;
    int at_once = WARPS / splits;
    i64 token = blockIdx.y;
    int row = blockIdx.x * ROWS, count = min(ROWS, hidden_size - row);
    wait_for_upstream();
    copy_to_shared(activations, x + token * experts_per_token * expert_size, experts_per_token * expert_size);
    __syncthreads();
    float total[ROWS] = {};
    for (int choice = warp / splits; choice < experts_per_token && warp / splits < at_once; choice += at_once) {
        const T* matrix = (const T*)addresses[ids[token * experts_per_token + choice]];
        float weight = weights[token * experts_per_token + choice], dots[ROWS] = {};
        add_dots(dots, matrix + (i64)row * expert_size, expert_size, count, activations + choice * expert_size, expert_size,
                     split * WARP + lane, splits * WARP);
#pragma unroll
        for (int r = 0; r < ROWS; r++) total[r] += weight * dots[r];
        if (biases && split == 0 && lane < count) {
            float bias = to_float(((const T*)biases[ids[token * experts_per_token + choice]])[row + lane]);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (lane == r) total[r] += weight * bias;
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = warp_reduce(total[r], Sum());
        if (lane == 0) sums[warp][r] = sum;
    }
    __syncthreads();
    if (threadIdx.x < count) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += sums[w][threadIdx.x];
        out[token * hidden_size + row + threadIdx.x] = sum;
    }
}
