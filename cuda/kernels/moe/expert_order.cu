// expert_order: sort the choices of all tokens by expert (MoE), so that each expert computes its rows together.
//
//   ids     int32 [n, ...]: num_choices in all: the experts of the first token, then those of the next
//   order   int32 [num_choices]: indices of choices; those of expert 0 first, each expert's in ascending order
//   starts  int32 [num_experts + 1]: where the choices of each expert begin in `order`; the last one is num_choices
//
// Algorithm: a block for each expert reads all ids twice. Its warps divide them into contiguous parts: first they
// count the ids below and equal to the expert, then they write the indices of the equal ones. No atomics, so the
// order is always the same.
//
// Requires: 0 <= ids < num_experts. Launch: grid num_experts, block 1024, no shared memory.
// Moves num_choices * 8 bytes; the rest comes from L2.
// Accuracy: exact. Test: tests/cuda/kernels/test_expert_order.py
#include "common/common.cuh"

constexpr int WARPS = 32;

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
expert_order_kernel(const int* ids, int* order, int* starts, int num_choices) {
    __shared__ int below[WARPS], equal[WARPS];
    start_dependents();
    wait_for_upstream();
    int expert = blockIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int part = (num_choices + WARPS * WARP - 1) / (WARPS * WARP) * WARP;
    int first = warp * part, end = min(first + part, num_choices), num_below = 0, num_equal = 0;
#pragma unroll 8
    for (int i = first + lane; i < end; i += WARP) {
        int id = ids[i];
        num_below += id < expert;
        num_equal += id == expert;
    }
    num_below = __reduce_add_sync(ALL, num_below);
    num_equal = __reduce_add_sync(ALL, num_equal);
    if (lane == 0) below[warp] = num_below, equal[warp] = num_equal;
    __syncthreads();
    int start = __reduce_add_sync(ALL, below[lane]);
    int at = start + __reduce_add_sync(ALL, lane < warp ? equal[lane] : 0);
    if (threadIdx.x == 0) {
        starts[expert] = start;
        if (expert == gridDim.x - 1) starts[expert + 1] = num_choices;
    }
    if (num_equal == 0) return;
#pragma unroll 4
    for (int i = first; i < end; i += WARP) {
        bool is_own = i + lane < end && ids[i + lane] == expert;
        u32 own = __ballot_sync(ALL, is_own);
        if (is_own) order[at + __popc(own & ((1u << lane) - 1))] = i + lane;
        at += __popc(own);
    }
}
