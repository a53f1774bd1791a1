// Grouped GEMM: the rows of all experts of a layer, each with its expert's matrix, in tiles on tensor cores.
//
// A block computes BLOCK_ROWS rows of one expert, as `expert_order` has sorted them, by TILE_COLUMNS rows of its
// matrix. It finds its tile in the experts' starts, so the host need not know them: blocks past the last tile end.
// Tiles of DEPTH elements of the sum arrive in shared memory by asynchronous copies, STAGES at a time.
//
// Within 32 elements of a row, thread (g, t) = (lane / 4, lane % 4) of an mma takes the elements 8t … 8t + 7: the
// order within the sum is free as long as both operands have the same. So one load of 16 bytes fills the registers
// of two mma, and quantized matrices are read in the order of their packed layout. With 8-bit values and scales of
// rows the thread takes the elements 16t … 16t + 15 of 64.
//
// Every element is summed by one thread in the order of the columns, whatever BLOCK_ROWS is. On sm_90a 128 rows of
// 16 bits are multiplied by wgmma instead (grouped_wgmma.cuh): rows of quantized matrices, converted in registers, are
// then the left operand, and their sums TRANSPOSED.
//
// Defines: DTYPE; SCHEME, GROUP_SIZE; BLOCK_ROWS: 128 or 32; STAGES: at least 3.
#pragma once
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "moe/grouped_wgmma.cuh"
#endif
#include "moe/grouped_mma.cuh"

// Computes a block's tile of sums, without Matrix::scale. The dynamic shared memory `stages` has STAGES *
// ACTIVATION_BYTES + SLOTS * Matrix::BYTES; `num_rows` of the block exist.
__device__ __forceinline__ void compute_tile(Sums& sums, const Activations& x, Matrix& matrix, u8* stages,
                                             int num_rows) {
    int depths = (x.columns + DEPTH - 1) / DEPTH;
    Ring ring{stages, stages + STAGES * ACTIVATION_BYTES};
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) ring.request(x, matrix, i);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (WGMMA) {
        compute_tile_wgmma(*reinterpret_cast<float(*)[64]>(&sums.at), x, matrix, ring, depths, num_rows);
    } else
#endif
        compute_tile_mma(sums, x, matrix, ring, depths, num_rows);
}

// Stores two neighboring results.
__device__ __forceinline__ void store_pair(T* to, float first, float second) {
    Pack<T, 2> pair;
    const float values[2] = {first, second};
    pair = values;
    store(to, pair);
}
