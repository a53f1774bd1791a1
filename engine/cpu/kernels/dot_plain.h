/* Integer dot products of a block of 16 rows, in plain C: the reference for the other dot_*.h. */
#pragma once
#include "quantized_rows.h"
#include "tile_rows.h"
#include "tile_values.h"

/* Vectors that one pass over a tile computes. */
enum { VECTORS_PER_PASS = 1 };

/* sums[k] = q * x of the blocks `block` + k * x->blocks, k < n, and of the columns of `half`. q are the
   numbers that the values stand for, signed. */
INLINE void dot(Values v, const uint8_t *values, const QuantizedRows *x, size_t block, int n, int half,
                Ints16 *sums) {
    const int from = half == SECOND_HALF ? 16 : 0, to = half == FIRST_HALF ? 16 : 32;
    for (int k = 0; k < n; k++, block += x->blocks) {
        const int16_t *q = x->whole + block * BLOCK_COLS;
        int32_t rows[TILE_ROWS];
        for (int r = 0; r < TILE_ROWS; r++) {
            int32_t sum = 0;
            for (int col = from; col < to; col++) sum += value_at(v, values, r, col) * q[col];
            rows[r] = sum;
        }
        EACH_PART sums[k].part[i] = load_ints(rows + LANES * i);
    }
}
