// The products of a tile of grouped.cuh by mma.sync, or without tensor cores in fp32.
#pragma once
#include "moe/grouped_ring.cuh"

__device__ __forceinline__ Chunk chunk_of(const u8* tile, int row, int chunk) {
    Chunk result;
    result.bits = *(const uint4*)(tile + chunk_at(row, chunk));
    return result;
}

// Adds the products of a tile. Of the warp's rows only the first `num_rows` exist.
__device__ __forceinline__ void add_tile(Sums& sums, const u8* tile, const u8* slot, int depth, int first_row,
                                         int first_column, int num_rows) {
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int group = 0; group < 2; group++) {
        Chunk w[MMA_COLUMNS];
#pragma unroll
        for (int j = 0; j < MMA_COLUMNS; j++) w[j] = Matrix::operand(slot, depth, first_column + j * 8 + g, group);
        int chunk = chunk_of_thread(group, t);
#pragma unroll
        for (int i = 0; i < MMA_ROWS; i++) {
            if (i * 16 >= num_rows) break;
            Chunk low = chunk_of(tile, first_row + i * 16 + g, chunk);
            Chunk high = chunk_of(tile, first_row + i * 16 + 8 + g, chunk);
#pragma unroll
            for (int k = 0; k < 4; k += 2)
#pragma unroll
                for (int j = 0; j < MMA_COLUMNS; j++)
                    mma<T>(sums.at[i][j], low.at[k], high.at[k], low.at[k + 1], high.at[k + 1], w[j].at[k],
                           w[j].at[k + 1]);
        }
    }
}

// The same in fp32, without tensor cores.
__device__ __forceinline__ void add_tile_fp32(Sums& sums, const u8* tile, const u8* slot, int first_row,
                                              int first_column) {
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll 1
    for (int chunk = 0; chunk < 8; chunk++)
#pragma unroll
        for (int j = 0; j < MMA_COLUMNS * 2; j++) {
            Chunk w = chunk_of(slot, first_column + j / 2 * 8 + 2 * t + j % 2, chunk);
#pragma unroll
            for (int i = 0; i < MMA_ROWS * 2; i++) {
                Chunk v = chunk_of(tile, first_row + i * 8 + g, chunk);
                float& sum = sums.at[i / 2][j / 2][i % 2 * 2 + j % 2];
#pragma unroll
                for (int k = 0; k < 4; k++) sum += w.floats[k] * v.floats[k];
            }
        }
}

__device__ __forceinline__ void compute_tile_mma(Sums& sums, const Activations& x, Matrix& matrix, Ring& ring,
                                                 int depths, int num_rows) {
    int warp = threadIdx.x / WARP, first_row = warp % ROW_WARPS * OWN_ROWS;
    int first_column = warp / ROW_WARPS * OWN_COLUMNS;
    while (ring.depth < depths) {
        wait_for_groups<STAGES - 2>();
        __syncthreads();  // this tile has arrived, and the one before has been used
        ring.request(x, matrix);
        if constexpr (sizeof(T) == 4) {
            add_tile_fp32(sums, ring.tile(), ring.slot(), first_row, first_column);
        } else {
            add_tile(sums, ring.tile(), ring.slot(), ring.depth, first_row, first_column, num_rows - first_row);
        }
        ring.next();
    }
}
