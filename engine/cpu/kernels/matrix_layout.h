/* Sizes and places in the tiled layout of matrix.h. */
#pragma once
#include <stddef.h>

#include "matrix.h"

static inline int is_tiled(const Matrix *m) { return m->format >= FORMAT_INT4; }
static inline int num_tiles(const Matrix *m) { return (m->rows + TILE_ROWS - 1) / TILE_ROWS; }
static inline int num_blocks(int cols) { return (cols + BLOCK_COLS - 1) / BLOCK_COLS; }
static inline size_t round_up_64(size_t n) { return (n + 63) & ~(size_t)63; }

static inline int num_groups(const Matrix *m) {
    return m->group_cols ? (m->cols + m->group_cols - 1) / m->group_cols : 0;
}
/* The scales of the groups of a row of FP8; NULL if it has none. */
static inline const float *group_scales(const Matrix *m, int row) {
    return m->group_scale ? m->group_scale + (size_t)row * num_groups(m) : NULL;
}
/* Bytes of a scale or a minimum. */
static inline int entry_bytes(const Matrix *m) {
    return m->format >= FORMAT_MXFP4 ? 1 : m->wide_tables ? 4 : 2;
}
/* Bytes of a tile's scales, or of its minimums. */
static inline size_t table_bytes(const Matrix *m) {
    return round_up_64((size_t)num_groups(m) * TILE_ROWS * entry_bytes(m));
}
static inline size_t block_value_bytes(const Matrix *m) { return m->format == FORMAT_INT8 ? 512 : 256; }
static inline size_t tile_bytes(const Matrix *m) {
    return table_bytes(m) * (m->has_minimum ? 2 : 1) + num_blocks(m->cols) * block_value_bytes(m);
}
static inline const uint8_t *tile_values(const Matrix *m, const uint8_t *tile) {
    return tile + table_bytes(m) * (m->has_minimum ? 2 : 1);
}
