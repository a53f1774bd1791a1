// route: chooses each token's experts and how much each of them counts.
//
//   scores  fp32 [n, experts]
//   ids     int32 [n, chosen]: the experts of the highest scores, highest first, in a tie the lowest
//   shares  fp32 [n, chosen]: their softmax over all experts, with RENORMALIZE over those chosen
//
// Shazeer et al., 2017, arXiv:1701.06538, without its noise. A NaN is never chosen; where there are
// too few others, the id is that of an expert that was chosen already, and its share NaN.
//
// Grid n, block 32, dynamic shared memory 4 * experts bytes. Moves n * experts * 4 bytes. In fp32.
// Test: tests/cuda/kernels/test_route.py: equal ids; shares relative 2e-6, an exponential and a sum.
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

__device__ __forceinline__ Candidate best_of_warp(Candidate mine) {
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2) {
        Candidate other{__shfl_xor_sync(ALL, mine.score, offset),
                        __shfl_xor_sync(ALL, mine.expert, offset)};
        mine = Better()(mine, other);
    }
    return mine;
}

extern "C" __global__ void __launch_bounds__(WARP)
route_kernel(const float* scores, int* ids, float* shares, int experts, int chosen) {
    extern __shared__ float left[];  // -infinity where an expert was chosen
    start_dependents();
    int lane = threadIdx.x;
    i64 row = blockIdx.x;
    wait_for_upstream();
    float highest = -infinity();
    for (int e = lane; e < experts; e += WARP) {
        left[e] = scores[row * experts + e];
        highest = fmaxf(highest, left[e]);
    }
    highest = warp_reduce(highest, Max());
    float total = 0;
    for (int e = lane; e < experts; e += WARP) total += exp2_fast((left[e] - highest) * LOG2_E);
    total = warp_reduce(total, Sum());

    float of_chosen = 0;
    for (int i = 0; i < chosen; i++) {
        Candidate best{-infinity(), experts};
        for (int e = lane; e < experts; e += WARP)
            if (left[e] > best.score) best = {left[e], e};
        best = best_of_warp(best);
        int expert = min(best.expert, experts - 1);
        float share = exp2_fast((best.score - highest) * LOG2_E) / total;
        of_chosen += share;
        if (lane == 0) {
            ids[row * chosen + i] = expert;
            shares[row * chosen + i] = share;
            left[expert] = -infinity();
        }
        __syncwarp();
    }
    __syncwarp();
#if RENORMALIZE
    if (lane == 0)
        for (int i = 0; i < chosen; i++) shares[row * chosen + i] /= of_chosen;
#endif
}
