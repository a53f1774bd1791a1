// route: choose each token's experts and their routing weights (MoE).
//
//   logits      fp32 [n, num_experts]
//   bias        fp32 [num_experts] or null: added to the logits
//   correction  fp32 [num_experts] or null: added to the scores for the choice only
//   ids         int32 [n, experts_per_token]: the chosen experts, best first; of equal ones the lowest id
//   weights     fp32 [n, experts_per_token]: their scores, times `scale`
//   sigmoid     scores are the sigmoid of each logit, or 0: the softmax over all experts
//   by_logits   the correction is added to the logits instead, which then decide
//   num_groups  with more than one, only experts of the `top_groups` groups with the largest sums of their
//               best_of_group (1 or 2) best scores are chosen
//   normalized  weights are divided by their sum plus `eps`
//
// Algorithm: a warp computes a token's scores and takes the maximum experts_per_token times. A lane finds the
// best scores of a group. A NaN is never chosen; if too few scores are remaining, an expert is repeated with the
// weight NaN. Softmax: Shazeer et al., 2017, arXiv:1701.06538, without its noise; sigmoid, correction and groups:
// DeepSeek-V3, arXiv:2412.19437.
//
// Requires: num_experts a multiple of num_groups; best_of_group 1 or 2.
// Launch: grid n, block 32, dynamic shared memory 4 * (2 * num_experts + num_groups) bytes.
// Moves n * num_experts * 4 bytes.
// Accuracy: equal ids; weights relative 2e-6 (an exponential and an fp32 sum).
// Test: tests/cuda/kernels/test_route.py
#include "common/reduce.cuh"

struct Candidate {
    float score;
    int index;
};
struct Better {
    __device__ __forceinline__ Candidate operator()(Candidate a, Candidate b) const {
        bool first = a.score > b.score || (a.score == b.score && a.index < b.index);
        return first ? a : b;
    }
};

// Returns the greatest of `count` values in shared memory, the first of equal ones; index `count`: there is none.
__device__ __forceinline__ Candidate find_best(const float* values, int count) {
    Candidate own{-infinity(), count};
    for (int i = threadIdx.x; i < count; i += WARP)
        if (values[i] > own.score) own = {values[i], i};
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2) {
        Candidate other{__shfl_xor_sync(ALL, own.score, offset), __shfl_xor_sync(ALL, own.index, offset)};
        own = Better()(own, other);
    }
    return own;
}

// Sets the values of all experts outside the best groups to -infinity. `totals` is memory for num_groups values.
__device__ void keep_top_groups(float* values, float* totals, int num_experts, int num_groups, int top_groups,
                                int best_of_group) {
    int lane = threadIdx.x, size = num_experts / num_groups;
    for (int group = lane; group < num_groups; group += WARP) {
        float best = -infinity(), second = -infinity();
        for (int i = 0; i < size; i++) {
            float value = values[group * size + i];
            second = fmaxf(second, fminf(best, value));
            best = fmaxf(best, value);
        }
        totals[group] = best + (best_of_group > 1 && size > 1 ? second : 0);
    }
    __syncwarp();
    for (int i = 0; i < top_groups; i++) {
        Candidate best = find_best(totals, num_groups);
        __syncwarp();
        if (lane == 0 && best.index < num_groups) totals[best.index] = -infinity();
        __syncwarp();
    }
    for (int e = lane; e < num_experts; e += WARP)
        if (totals[e / size] > -infinity()) values[e] = -infinity();
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(WARP)
route_kernel(const float* logits, const float* bias, const float* correction, int* ids, float* weights,
             int num_experts, int experts_per_token, int sigmoid, int by_logits, int num_groups, int top_groups,
             int best_of_group, int normalized, float eps, float scale) {
    extern __shared__ float scores[];
    float* choice = scores + num_experts;  // -infinity where an expert cannot be chosen (any more)
    start_dependents();
    int lane = threadIdx.x;
    i64 row = blockIdx.x;
    wait_for_upstream();
    float highest = -infinity();
    for (int e = lane; e < num_experts; e += WARP) {
        float logit = logits[row * num_experts + e];
        if (bias) logit += bias[e];
        scores[e] = choice[e] = logit;
        highest = fmaxf(highest, logit);
    }
    float total = 0;
    if (!sigmoid) {
        highest = warp_reduce(highest, Max());
        for (int e = lane; e < num_experts; e += WARP) total += exp2_fast((scores[e] - highest) * LOG2_E);
        total = warp_reduce(total, Sum());
    }
    // A plain softmax does not change the order of the logits.
    bool choose_scores = !by_logits && (sigmoid || correction || num_groups > 1);
    for (int e = lane; e < num_experts; e += WARP) {
        float logit = scores[e];
        scores[e] = sigmoid ? 1 / (1 + expf(-logit)) : exp2_fast((logit - highest) * LOG2_E) / total;
        if (choose_scores) choice[e] = scores[e];
        if (correction) choice[e] += correction[e];
    }
    __syncwarp();
    if (num_groups > 1)
        keep_top_groups(choice, scores + 2 * num_experts, num_experts, num_groups, top_groups, best_of_group);

    float sum_of_chosen = 0;
    for (int i = 0; i < experts_per_token; i++) {
        Candidate best = find_best(choice, num_experts);
        bool found = best.index < num_experts;
        int expert = found ? best.index : num_experts - 1;
        float weight = found ? scores[expert] : __int_as_float(0x7fffffff);
        sum_of_chosen += weight;
        __syncwarp();
        if (lane == 0) {
            ids[row * experts_per_token + i] = expert;
            weights[row * experts_per_token + i] = weight;
            choice[expert] = -infinity();
        }
        __syncwarp();
    }
    float factor = normalized ? scale / (sum_of_chosen + eps) : scale;
    if (lane == 0)
        for (int i = 0; i < experts_per_token; i++) weights[row * experts_per_token + i] *= factor;
}
