/* The tables of scales and minimums of a tile. */
#pragma once
#include "common.h"
#include "matrix.h"

/* Scales of a tile's group, or its minimums, as fp32 [16]. After the last group, where a block has
   no columns, they are those of the last one. */
INLINE void read_table(const Matrix *m, const uint8_t *table, int group, float *to) {
    const size_t first = (size_t)min_int(group, num_groups(m) - 1) * TILE_ROWS;
    if (m->wide_tables) {
        memcpy(to, table + first * 4, TILE_ROWS * 4);
        return;
    }
    uint16_t halves[TILE_ROWS];
    memcpy(halves, table + first * 2, sizeof halves);
    for (int r = 0; r < TILE_ROWS; r++) to[r] = fp16_to_float(halves[r]);
}

/* Scales and minimums, fp32 [16] each, of the columns from `col`. Without groups scales are 1. */
INLINE void read_tables(const Matrix *m, const uint8_t *tile, int col, float *scales,
                        float *minimums) {
    for (int r = 0; r < TILE_ROWS; r++) scales[r] = 1;
    if (m->group_cols) read_table(m, tile, col / m->group_cols, scales);
    if (m->has_minimum) read_table(m, tile + table_bytes(m), col / m->group_cols, minimums);
}
