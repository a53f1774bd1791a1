// route: choose each token's experts and their routing weights (MoE).
//
//   logits      fp32 [n, num_experts]
//   bias        fp32 [num_experts] or null: added to the logits
//   correction  fp32 [num_experts] or null: added to the scores for the choice only
//   expert_scales  fp32 [num_experts] or null: the weight of an expert is multiplied by its own (Gemma 4)
//   ids         int32 [n, experts_per_token]: the chosen experts, best first; of equal ones the lowest id
//   weights     fp32 [n, experts_per_token]: their scores, times `scale`
//   sigmoid     scores are the sigmoid of each logit, or 0: the softmax over all experts
//   by_logits   the correction is added to the logits instead, which then decide
//   num_groups  with more than one, only experts of the `top_groups` groups with the largest sums of their
//               best_of_group (1 or 2) best scores are chosen
//   normalized  weights are divided by their sum plus `eps`
//
// Algorithm: a block computes a token's scores. It finds a score that enough experts reach, and few more, and counts for
// each of these how many are better. A NaN is never chosen; if too few scores are remaining, an expert is repeated with
// the weight NaN. Softmax: Shazeer et al., 2017, arXiv:1701.06538, without its noise; sigmoid, correction and groups: DeepSeek-V3, arXiv:2412.19437.
//
// Requires: num_experts a multiple of num_groups; at most 128 groups; best_of_group 1 or 2.
// Launch: grid n, block 128, dynamic shared memory: see ops/moe/route.py.
// Moves n * num_experts * 4 bytes.
// Accuracy: equal ids; weights relative 2e-6 (an exponential and an fp32 sum).
// Test: tests/cuda/kernels/test_route.py
#include "moe/choose.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS)
route_kernel(const float* logits, const float* bias, const float* correction, const float* expert_scales, int* ids,
             float* weights, int num_experts, int experts_per_token, int sigmoid, int by_logits, int num_groups, int top_groups,
             int best_of_group, int normalized, float eps, float scale) {
    extern __shared__ __align__(16) u8 dynamic[];
    __shared__ float scratch[THREADS / WARP];
    start_dependents();
    i64 row = blockIdx.x;
    Routing how{num_experts,   experts_per_token, sigmoid,    by_logits, num_groups,
                top_groups,    best_of_group,     normalized, eps,       scale};
    Choice choice(dynamic, how);
    wait_for_upstream();
    for (int e = threadIdx.x; e < num_experts; e += THREADS)
        choice.logits[e] = logits[row * num_experts + e] + (bias ? bias[e] : 0);
    __syncthreads();
    choose_experts<THREADS>(choice, correction, expert_scales, ids + row * experts_per_token,
                            weights + row * experts_per_token, scratch, how);
}
