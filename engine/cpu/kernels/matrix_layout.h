/* Sizes and places in the tiled layout of matrix.h. */
#pragma once
#include <stddef.h>

#include "matrix.h"

static inline int is_tiled(const Matrix *m) { return m->format >= FORMAT_INT2; }
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
/* Whether table entries are integers that factors multiply. */
static inline int has_factors(int tables) {
    return tables == TABLES_BYTES || tables == TABLES_NIBBLES;
}
static inline int num_factors(const Matrix *m) {
    return has_factors(m->tables) ? (m->cols + m->factor_cols - 1) / m->factor_cols : 0;
}
/* Bytes of an entry of a table; a byte has two nibbles. */
static inline int entry_bytes(const Matrix *m) {
    return m->tables == TABLES_FP32 ? 4 : m->tables == TABLES_FP16 ? 2 : 1;
}
/* Rows of 16 entries, or pairs of nibbles, of a table. */
static inline int num_entries(const Matrix *m) {
    return m->tables == TABLES_NIBBLES ? (num_groups(m) + 1) / 2 : num_groups(m);
}
static inline size_t factor_bytes(const Matrix *m) { return (size_t)num_factors(m) * TILE_ROWS * 2; }
/* Bytes of the table of a tile's scales, or of its minimums. */
static inline size_t table_bytes(const Matrix *m) {
    return round_up_64(factor_bytes(m) + (size_t)num_entries(m) * TILE_ROWS * entry_bytes(m));
}
/* Bits of a value. */
static inline int value_bits(int format) {
    switch (format) {
        case FORMAT_INT2: return 2;
        case FORMAT_INT3:
        case FORMAT_IQ1:
        case FORMAT_IQ2: return 3;
        case FORMAT_INT5: return 5;
        case FORMAT_INT6: return 6;
        case FORMAT_INT8: return 8;
        default: return 4;
    }
}
/* 32 columns of 16 rows. */
static inline size_t block_value_bytes(const Matrix *m) { return 64 * (size_t)value_bits(m->format); }
static inline size_t tile_bytes(const Matrix *m) {
    return table_bytes(m) * (m->has_minimum ? 2 : 1) + num_blocks(m->cols) * block_value_bytes(m);
}
static inline const uint8_t *tile_values(const Matrix *m, const uint8_t *tile) {
    return tile + table_bytes(m) * (m->has_minimum ? 2 : 1);
}
