// route: choose each token's experts and their routing weights (MoE).
//
//   scores   fp32 [n, num_experts]
//   ids      int32 [n, experts_per_token]: experts of the highest scores, highest first; of equal
//            scores the lowest id
//   weights  fp32 [n, experts_per_token]: softmax over all experts, with RENORMALIZE over those chosen
//
// Algorithm: a warp computes the softmax of a token's scores and takes the maximum experts_per_token
// times. A NaN is never chosen; if too few scores are remaining, an expert is repeated with the weight NaN.
// Shazeer et al., 2017, arXiv:1701.06538, without its noise.
//
// Launch: grid n, block 32, dynamic shared memory 4 * num_experts bytes.
// Moves n * num_experts * 4 bytes.
// Accuracy: equal ids; weights relative 2e-6 (an exponential and an fp32 sum).
// Test: tests/cuda/kernels/test_route.py
#include "common/reduce.cuh"

struct Candidate {
    float score;
    int expert;
};
struct Better {
    __device__ __forceinline__ Candidate operator()(Candidate a, Candidate b) const {
        bool first = a.score > b.score || (a.score == b.score && a.expert < b.expert);
        return first ? a : b;
    }
};

__device__ __forceinline__ Candidate best_of_warp(Candidate own) {
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2) {
        Candidate other{__shfl_xor_sync(ALL, own.score, offset),
                        __shfl_xor_sync(ALL, own.expert, offset)};
        own = Better()(own, other);
    }
    return own;
}

extern "C" __global__ void __launch_bounds__(WARP)
route_kernel(const float* scores, int* ids, float* weights, int num_experts, int experts_per_token) {
    extern __shared__ float remaining[];  // -infinity where an expert was experts_per_token
    start_dependents();
    int lane = threadIdx.x;
    i64 row = blockIdx.x;
    wait_for_upstream();
    float highest = -infinity();
    for (int e = lane; e < num_experts; e += WARP) {
        remaining[e] = scores[row * num_experts + e];
        highest = fmaxf(highest, remaining[e]);
    }
    highest = warp_reduce(highest, Max());
    float total = 0;
    for (int e = lane; e < num_experts; e += WARP) total += exp2_fast((remaining[e] - highest) * LOG2_E);
    total = warp_reduce(total, Sum());

    float sum_of_chosen = 0;
    for (int i = 0; i < experts_per_token; i++) {
        Candidate best{-infinity(), num_experts};
        for (int e = lane; e < num_experts; e += WARP)
            if (remaining[e] > best.score) best = {remaining[e], e};
        best = best_of_warp(best);
        int expert = min(best.expert, num_experts - 1);
        float weight = exp2_fast((best.score - highest) * LOG2_E) / total;
        sum_of_chosen += weight;
        if (lane == 0) {
            ids[row * experts_per_token + i] = expert;
            weights[row * experts_per_token + i] = weight;
            remaining[expert] = -infinity();
        }
        __syncwarp();
    }
    __syncwarp();
#if RENORMALIZE
    if (lane == 0)
        for (int i = 0; i < experts_per_token; i++) weights[row * experts_per_token + i] /= sum_of_chosen;
#endif
}
