// dequantize: a packed matrix as T, for products with many vectors.
//
//   codes      u8, blocks of records (records.cuh)      row_scale  fp32 [rows]
//   out        T [rows, k] = row_scale * number, or row_scale * (scale * (number + offset))
//
// A warp takes a record at a time, a thread some eights of it: what it reads and writes at once lies
// together. Grid: a block for eight rows, or fewer that take several; block 256, no shared memory. Moves
// codes and out once. Requires k to be a multiple of 16, or of GROUP_SIZE.
// In fp32, rounded once. Test: tests/cuda/kernels/test_dequantize.py, equal to fp64 rounded once but for
// ties of INT4.
#include "linear/packed_row.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
dequantize_kernel(const u8* codes, const float* row_scale, T* out, int rows, int k) {
    start_dependents();
    wait_for_upstream();  // which may still read what `out` was
    int lane = threadIdx.x % WARP;
    int steps = filled(k) / STEP, blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int block = blockIdx.x; block < blocks; block += gridDim.x) {
        const u8* records = codes + (i64)block * steps * RECORD;
#pragma unroll (PLACES > 8 ? 1 : 4)  // more at once would take too many registers
        for (int step = threadIdx.x / WARP; step < steps; step += THREADS / WARP)
#pragma unroll
            for (int at = lane; at < BLOCK_ROWS * PLACES; at += WARP) {
                int row = block * BLOCK_ROWS + at / PLACES;
                int column = step * STEP + column_at(at % PLACES);
                if (row >= rows || column >= k) continue;
                Eight eight(records + step * RECORD, at / PLACES, at % PLACES);
                float factor = __ldg(row_scale + row);
                Vec<T, EIGHT> values;
#pragma unroll
                for (int i = 0; i < EIGHT; i++) values.at[i] = from_float<T>(factor * eight[i]);
                *(Vec<T, EIGHT>*)(out + (i64)row * k + column) = values;
            }
    }
}
