// The path of packed_gemm for all architectures: each warp multiplies its 16 weight rows by mma.sync.
#pragma once
#include "common/mma.cuh"
#include "linear/gemm_work.cuh"

__device__ __forceinline__ void more_registers() {}
__device__ __forceinline__ void fewer_registers() {}

template <int HALF>
__device__ __forceinline__ void multiply_half(const Arguments& a, Rings& rings, RingState& state,
                                              float (&sums)[BLOCK_N / 2], const u32 (&operands)[4][4]) {
    constexpr bool FIRST = X_BOXES == 1 || HALF == 0, LAST = X_BOXES == 1 || HALF == 1;  // of a stage
    if (FIRST) barrier_wait(&rings.x_full[state.x], state.x_parity);
    int lane = threadIdx.x % WARP, row = lane / 16 * 8 + lane % 8;
    u32 from = shared_address(rings.x + state.x * X_STAGE_BYTES + (FIRST ? 0 : X_BOX_BYTES)) + row * 128;
#pragma unroll
    for (int step = 0; step < 4; step++) {
        u32 chunk = (step * 2 + lane / 8 % 2 ^ row % 8) << 4;
#pragma unroll
        for (int i = 0; i < BLOCK_N / 16; i++) {
            u32 right[4];
            ldmatrix<false>(right, from + i * 16 * 128 + chunk);
            mma<T>(sums + i * 8, operands[step], right[0], right[1]);
            mma<T>(sums + i * 8 + 4, operands[step], right[2], right[3]);
        }
    }
    if (LAST) {
        release_activations(&rings.x_empty[state.x]);
        state.next_activations(a);
    }
}

__device__ __forceinline__ void add_units(const Arguments& a, const Segment& s, Rings& rings, RingState& state,
                                          float (&sums)[BLOCK_N / 2]) {
    LaneRows lane(UNIT_BYTES);
    RowGroups groups;
    u32 operands[4][4];
    for (int unit = s.first; unit < s.last; unit++) {
        barrier_wait(&rings.w_full[state.w], state.w_parity);
        const u8* stage = rings.weights + state.w * W_STAGE_BYTES;
        convert<0>(operands, stage, lane, groups);
        multiply_half<0>(a, rings, state, sums, operands);
        convert<1>(operands, stage, lane, groups);
        release_weights(&rings.w_empty[state.w]);
        state.next_weights(a);
        multiply_half<1>(a, rings, state, sums, operands);
    }
}
