/* Matrix times a few vectors: every weight is read once and used for all of them. */
#pragma once
#include "common.h"
#include "matrix_layout.h"
#include "quantized_rows.h"

/* Vectors that a GEMV takes at once; more go through a GEMM. As many as speculative decoding
   verifies, so that its results equal those of single rows for float matrices, too. */
enum { MAX_GEMV_ROWS = 9 };

/* y[v * y_stride + i] = row (16 * first_tile + i) of m times vector v, for 16 * num_tiles rows (also
   for the missing rows of the last tile) and x->num_rows vectors; m is tiled.

   Every result is, in fp32 and in this order of blocks b: acc = fma((float)isum_b * xscale_b,
   wscale_b, acc); with minimums then acc = fma((float)xsum_b * xscale_b, minimum_b, acc); last
   times row_scale. isum_b is the exact int32 sum of (q - 8) * x or q * x. With groups of 16 columns
   each half of a block is a block of this rule, with its own isum, xsum, weight scale and minimum.
   Without groups wscale_b is 1. The GEMM computes the same, so results are bitwise equal.

   `next`: the weights that the thread reads after these, for prefetching; NULL: unknown. */
EXPORT void gemv_tiles(const Matrix *m, int first_tile, int num_tiles, const QuantizedRows *x, float *y,
                       int y_stride, const uint8_t *next);
/* The same for rows first_row .. first_row + num_rows of a float matrix and x fp32 [num_vectors][cols];
   y starts at first_row. Sums are fp32, in an order of their own. */
EXPORT void gemv_float(const Matrix *m, int first_row, int num_rows, const float *x, int num_vectors,
                       float *y, int y_stride, const uint8_t *next);
