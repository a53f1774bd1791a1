// The sm_90a path of packed_gemm: a warpgroup multiplies 64 weight rows, in registers, by wgmma. It runs while the
// next 64 columns are converted.
#pragma once
#include "common/wgmma.cuh"
#include "linear/gemm_work.cuh"

__device__ __forceinline__ void more_registers() { more_registers<CONSUMER_WARPS == 8 ? 232 : 112>(); }
__device__ __forceinline__ void fewer_registers() { fewer_registers<CONSUMER_WARPS == 8 ? 40 : 32>(); }

// Starts the products of 64 columns; returns when those of the 64 columns before are complete.
template <int HALF>
__device__ __forceinline__ void multiply_half(const Arguments& a, Rings& rings, RingState& state,
                                              float (&sums)[BLOCK_N / 2], u32 (&operands)[4][4], int& pending) {
    constexpr bool FIRST = X_BOXES == 1 || HALF == 0, LAST = X_BOXES == 1 || HALF == 1;  // of a stage
    if (FIRST) barrier_wait(&rings.x_full[state.x], state.x_parity);
    u32 address = shared_address(rings.x + state.x * X_STAGE_BYTES + (FIRST ? 0 : X_BOX_BYTES));
    // 128-byte swizzle; groups of eight rows are 1024 bytes apart.
    u64 right = (u64)((address & 0x3ffff) >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
#pragma unroll
    for (int step = 0; step < 4; step++) fence_operand(operands[step]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++) wgmma_rs<T, false, BLOCK_N>(sums, operands[step], right + step * 2);
    wgmma_commit();
    wgmma_wait<1>();
    if (FIRST) {
        if (pending >= 0) release_activations(&rings.x_empty[pending]);
        pending = state.x;
    }
    if (LAST) state.next_activations(a);
}

__device__ __forceinline__ void add_units(const Arguments& a, const Segment& s, Rings& rings, RingState& state,
                                          float (&sums)[BLOCK_N / 2]) {
    LaneRows lane(UNIT_BYTES);
    RowGroups groups;
    u32 first[4][4], second[4][4];
    int pending = -1;  // stage that wgmma may still read
    for (int unit = s.first; unit < s.last; unit++) {
        barrier_wait(&rings.w_full[state.w], state.w_parity);
        const u8* stage = rings.weights + state.w * W_STAGE_BYTES;
        convert<0>(first, stage, lane, groups);
        multiply_half<0>(a, rings, state, sums, first, pending);
        convert<1>(second, stage, lane, groups);
        release_weights(&rings.w_empty[state.w]);
        state.next_weights(a);
        multiply_half<1>(a, rings, state, sums, second, pending);
    }
    wgmma_wait<0>();
    fence_operand(sums);
    release_activations(&rings.x_empty[pending]);
}
