// dequantize: a packed weight as T, for matmuls with many activation rows.
//
//   tiles      u8 [row_blocks, block_bytes]: packed layout (packed_layout.cuh)
//   row_scale  fp32 [rows] or null: null if the scheme has none
//   out        T [rows, k] = row_scale * value, or row_scale * (scale * (value - zero point))
//
// Algorithm: a warp converts a packed tile at a time; the lanes read and write neighboring octets.
// Requires: k a multiple of 16, or of GROUP_SIZE.
// Launch: grid x eight rows each, y 8 tiles of them each, or fewer blocks that loop; block 256, no shared memory.
// Moves the tiles and out once.
// Accuracy: fp32, rounded once; equal to fp64 rounded once except for ties of INT4.
// Test: tests/cuda/kernels/test_dequantize.py
#include "common/pack.cuh"
#include "linear/packed_columns.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;

extern "C" __global__ void __launch_bounds__(THREADS)
dequantize_kernel(const u8* tiles, const float* row_scale, T* out, int rows, int k) {
    start_dependents();
    wait_for_upstream();  // which may still read `out`
    int lane = threadIdx.x % WARP;
    int steps = padded_columns(k) / STEP, blocks = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int block = blockIdx.x; block < blocks; block += gridDim.x) {
        const u8* block_tiles = tiles + (i64)block * steps * PACKED_TILE_BYTES;
#pragma unroll (TILE_OCTETS > 8 ? 1 : 4)  // more need too many registers
        for (int step = blockIdx.y * WARPS + threadIdx.x / WARP; step < steps; step += gridDim.y * WARPS)
#pragma unroll
            for (int at = lane; at < TILE_ROWS * TILE_OCTETS; at += WARP) {
                int row = block * TILE_ROWS + at / TILE_OCTETS;
                int column = step * STEP + column_at(at % TILE_OCTETS);
                if (row >= rows || column >= k) continue;
                const u8* tile = block_tiles + step * PACKED_TILE_BYTES;
                PackedOctet octet(tile, at / TILE_OCTETS, at % TILE_OCTETS);
                float scale = ROW_SCALES ? __ldg(row_scale + row) : 1;
                float values[OCTET];
#pragma unroll
                for (int i = 0; i < OCTET; i++) values[i] = scale * octet[i];
                Pack<T, OCTET> pack;
                pack = values;
                store(out + (i64)row * k + column, pack);
            }
    }
}
