/* Activations as 16-bit integers, one scale for each block of 32 columns.

   q = round(x / scale) in -32512 .. 32512, so that q = 256 * high + low with both signed bytes. The
   largest |x| of a block maps to 32512; the error is at most scale / 2, 2e-5 of the block's largest
   element. Columns after the last are zero. `sum` is the sum of a block's q, `half_sum` that of its
   first 16 columns. A block with a NaN or an infinity has a NaN as its scale; one without
   an |x| above 2^-100 is zero. */
#pragma once
#include "common.h"
#include "matrix_layout.h"

/* Blocks from one row to the next: rows at a distance of a multiple of 2 KB would share few sets of
   the caches. A block that is there for the distance alone is never read. */
static inline int row_stride_blocks(int cols) {
    int blocks = num_blocks(cols);
    return blocks % 32 ? blocks : blocks + 1;
}

typedef struct {
    int32_t num_rows, blocks; /* blocks from row to row, row_stride_blocks(cols) */
    int16_t *whole;           /* [num_rows][blocks][32] */
    int8_t *high, *low;       /* [num_rows][blocks][32] each */
    float *scale;             /* [num_rows][blocks] */
    int32_t *sum, *half_sum;  /* [num_rows][blocks] each */
} QuantizedRows;

/* Bytes that `place_quantized_rows` needs. */
EXPORT size_t quantized_rows_bytes(int num_rows, int cols);
/* Lay the arrays of `num_rows` rows out in `memory` (64-byte aligned). */
EXPORT QuantizedRows place_quantized_rows(uint8_t *memory, int num_rows, int cols);
/* Quantize x fp32 [cols] into row `row`. */
EXPORT void quantize_row(const float *x, int cols, const QuantizedRows *to, int row);

/* The columns of a block that a sum is of. */
enum Half { FIRST_HALF, SECOND_HALF, WHOLE_BLOCK };

/* The sum of q of a block or of half of it. */
static inline int32_t block_sum(const QuantizedRows *x, size_t block, int half) {
    if (half == WHOLE_BLOCK) return x->sum[block];
    return half == FIRST_HALF ? x->half_sum[block] : x->sum[block] - x->half_sum[block];
}
