// dequantize: a packed matrix as T, for products with many vectors.
//
//   codes      u8, blocks of records (records.cuh)      row_scale  fp32 [rows]
//   out        T [rows, k] = row_scale * number, or row_scale * (scale * (number + offset))
//
// A warp takes a record at a time, a thread 16 bytes of it: of INT4 32 columns, else 16, written in eights.
// Grid: a block for eight rows, or fewer that take several; block 256, no shared memory. Moves codes and
// out once. Requires k to be a multiple of 16, or of GROUP.
// In fp32, rounded once. Test: tests/kernels/test_dequantize.py, equal to fp64 rounded once but for
// ties of INT4.
#include "records.cuh"

constexpr int THREADS = 256;
constexpr int EIGHTS = 16 * 8 / BITS / 8;  // of columns in 16 bytes

// Eights of a record that a thread writes: those of a warp that it writes at once are neighbours in a
// row. INT4 in groups: 16 bytes of a row, a word an eight; 8 bits: 8 bytes of one row, then of another.
struct Eight {
    int row, column;  // in the block, in the record
    float2 factors = {1, 0};
    u32 words[2];

    __device__ __forceinline__ Eight(const u8* record, int e) {
        int lane = threadIdx.x % WARP;
        int at = FORM == INT4 ? lane * 16 + e * 4 : e * (WARP * 8) + lane * 8;
        int t = at % STEP_BYTES / 16, place = at % STEP_BYTES / 8;
        row = at / STEP_BYTES;
        column = FORM == INT4 ? 32 * e + 8 * t : GROUPED ? place % 2 * 32 + t * 8 : place * 8;
        words[0] = __ldg((const u32*)(record + at));
        if (FORM != INT4) words[1] = __ldg((const u32*)(record + at) + 1);
        if (GROUPED) {
            const __half2* table = (const __half2*)(record + BLOCK_ROWS * STEP_BYTES);
            factors = __half22float2(__ldg(table + column / (GROUPED ? GROUP : 1) * BLOCK_ROWS + row));
        }
    }
    __device__ __forceinline__ float operator[](int i) const {
        float number = FORM == INT4   ? int4_at(words[0], i)
                       : FORM == INT8 ? int8_at(words[i / 4], i % 4)
                                      : fp8_at(words[i / 4], i % 4);
        return GROUPED ? factors.x * (number + factors.y) : number;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
dequantize_kernel(const u8* codes, const float* row_scale, T* out, int rows, int k) {
    start_dependents();
    wait_for_upstream();  // which may still read what `out` was
    int steps = filled(k) / STEP, blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int block = blockIdx.x; block < blocks; block += gridDim.x) {
        const u8* records = codes + (i64)block * steps * RECORD;
#pragma unroll 4
        for (int step = threadIdx.x / WARP; step < steps; step += THREADS / WARP)
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) {
                Eight eight(records + step * RECORD, e);
                int row = block * BLOCK_ROWS + eight.row, column = step * STEP + eight.column;
                if (row >= rows || column >= k) continue;
                float factor = __ldg(row_scale + row);
                Vec<T, 8> values;
#pragma unroll
                for (int i = 0; i < 8; i++) values.at[i] = from_float<T>(factor * eight[i]);
                *(Vec<T, 8>*)(out + (i64)row * k + column) = values;
            }
    }
}
