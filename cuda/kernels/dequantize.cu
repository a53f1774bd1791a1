// dequantize: a packed matrix as T, for products with many vectors.
//
//   codes      u8 [rows, k], or those in groups (linear.cu)      row_scale  fp32 [rows]
//   out        T [rows, k] = row_scale * code, or row_scale * (scale * (code (INT4: - 8) + zero))
//
// The forms and the order of codes in groups are in packed.cuh and linear_sums.cuh.
//
// A thread makes 8 columns: 16 bytes of out, of 8 or 4 bytes of codes. Grid: a block a row, or fewer
// that take several; block 256, no shared memory. Moves codes and out once. Requires k to be
// a multiple of 16, or of GROUP.
// In fp32, rounded once. Test: tests/kernels/test_dequantize.py, equal to fp64 rounded once but for
// ties of INT4.
#include "packed.cuh"

constexpr int THREADS = 256;
constexpr int COLUMNS = 8;
constexpr int BITS = FORM == INT4 ? 4 : 8;
constexpr int CHUNK = 1024 * 8 / BITS;  // columns whose numbers lie together
constexpr int STEP = 64 * 8 / BITS;     // columns that are in one order; the last step is filled up

#if GROUP > 0
__device__ __forceinline__ i64 row_bytes(int columns) {
    return columns * BITS / 8 + (columns / GROUP + 3) / 4 * 16;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
dequantize_kernel(const u8* codes, const float* row_scale, T* out, int rows, int k) {
    start_dependents();
    wait_for_upstream();  // which may still read what `out` was
    int pieces = k / COLUMNS, filled = (k + STEP - 1) / STEP * STEP;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        float scale = row_scale[row];
#pragma unroll 2
        for (int i = threadIdx.x; i < pieces; i += THREADS) {
            Vec<T, COLUMNS> values;
#if GROUP > 0
            // Of a step's columns, piece 4p + t is the p-th of thread t.
            constexpr int PIECES = STEP / COLUMNS, EACH = PIECES / 4;
            int chunk = i * COLUMNS / CHUNK, within = i - chunk * (CHUNK / COLUMNS);
            const u8* at = codes + row * row_bytes(filled) + chunk * row_bytes(CHUNK);
            int piece = within / PIECES * PIECES + within % 4 * EACH + within / 4 % EACH;
            int width = min(CHUNK, filled - chunk * CHUNK);
            const __half2* table = (const __half2*)(at + width * BITS / 8);
            float2 f = __half22float2(table[within * COLUMNS / GROUP]);
#else
            const u8* at = codes + (i64)row * k;
            int piece = i;
#endif
#if FORM == INT4
            u32 eight = ((const u32*)at)[piece];
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                values.at[j] = from_float<T>(scale * (f.x * (int4_at(eight, j) + f.y)));
#else
            uint2 words = ((const uint2*)at)[piece];
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                u32 word = j < 4 ? words.x : words.y;
                float number = FORM == INT8 ? int8_at(word, j % 4) : fp8_at(word, j % 4);
#if GROUP > 0
                number = f.x * (number + f.y);
#endif
                values.at[j] = from_float<T>(scale * number);
            }
#endif
            ((Vec<T, COLUMNS>*)out)[(i64)row * pieces + i] = values;
        }
    }
}
