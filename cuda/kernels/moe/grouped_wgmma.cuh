// The products of a tile of 128 rows of grouped.cuh by wgmma, on sm_90a.
#pragma once
#include "common/wgmma.cuh"
#include "moe/grouped_ring.cuh"
#if SCHEME != PLAIN
#include "linear/gemm_operands.cuh"
#endif

#if SCHEME == PLAIN
// Each of two warpgroups multiplies 64 activation rows; its sums are those of an mma with 16 rows a warp.
__device__ __forceinline__ void compute_tile_wgmma(float (&sums)[64], const Activations& x, Matrix& matrix, Ring& ring,
                                                   int depths, int num_rows) {
    int first_row = threadIdx.x / 128 * 64;
    while (ring.depth < depths) {
        wait_for_groups<STAGES - 2>();
        wgmma_proxy_fence();
        __syncthreads();  // this tile has arrived, and both warpgroups have used the one before
        if (first_row < num_rows) {
            u64 left = tile_descriptor<64>(shared_address(ring.tile()) + first_row * ROW_BYTES);
            u64 right = tile_descriptor<64>(shared_address(ring.slot()));
            fence_operand(sums);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < DEPTH / 16; step++)
                wgmma_ss<T>(sums, left + step * 2, right + step * 2, ring.depth > 0 || step > 0);
            wgmma_commit();
        }
        ring.request(x, matrix);
        wgmma_wait();
        fence_operand(sums);
        ring.next();
    }
}
#else
// Converts DEPTH elements of a slot to the left operands of four wgmma.
__device__ __forceinline__ void convert_depth(u32 (&operands)[4][4], const u8* slot, int depth, const LaneRows& lane,
                                              RowGroups& groups) {
    if (DEPTHS == 2 && depth % 2) convert<1>(operands, slot, lane, groups);
    else convert<0>(operands, slot, lane, groups);
}

// Each of two warpgroups multiplies 64 rows of the matrix, converted in registers, by all activation rows. So a warp's
// sums are those of 16 matrix rows: 4j … 4j + 3 are row lane.first(), activation rows 8j + 2t and 8j + 2t + 1, then
// the same of the matrix row two further on.
__device__ __forceinline__ void compute_tile_wgmma(float (&sums)[64], const Activations& x, Matrix& matrix, Ring& ring,
                                                   int depths, int num_rows) {
    LaneRows lane(PACKED_TILE_BYTES);
    RowGroups groups;
    u32 operands[4][4];
    while (ring.depth < depths) {
        wait_for_groups<STAGES - 2>();
        wgmma_proxy_fence();
        __syncthreads();  // this tile has arrived, and both warpgroups have used the one before
        convert_depth(operands, ring.slot(), ring.depth, lane, groups);
        u64 right = tile_descriptor<64>(shared_address(ring.tile()));
#pragma unroll
        for (int step = 0; step < 4; step++) fence_operand(operands[step]);
        fence_operand(sums);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++) {
            if (num_rows <= 32) wgmma_rs<T, false, 32>(sums, operands[step], right + step * 2);
            else if (num_rows <= 64) wgmma_rs<T, false, 64>(sums, operands[step], right + step * 2);
            else wgmma_rs<T, false, 128>(sums, operands[step], right + step * 2);
        }
        wgmma_commit();
        ring.request(x, matrix);
        wgmma_wait();
        fence_operand(sums);
        ring.next();
    }
}
#endif
