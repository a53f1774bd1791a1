/* Panels of gemm_float.c: weights of every format as fp32, or pairs of bf16. */
#pragma once
#include "matrix_layout.h"
#include "vector.h"
#include "tile_table.h"
#include "tile_values.h"
#include "transpose.h"

enum {
    PANEL_TILES = LANES == 16 ? 2 : 1,
    PANEL_ROWS = PANEL_TILES * TILE_ROWS,
    PANEL_VECTORS = PANEL_ROWS / LANES, /* registers for the rows of a panel, and of a tile */
    TILE_VECTORS = TILE_ROWS / LANES,
    CHUNK_BLOCKS = LANES == 16 ? 9 : 8, /* of 32 elements: a panel of 36 or 16 KB */
    CHUNK = CHUNK_BLOCKS * BLOCK_COLS,
};

/* An element is a column, or a pair of columns in bf16 (`is_paired`), the first in the low half. */
typedef struct {
    _Alignas(64) float weights[CHUNK][PANEL_ROWS];
    float row_scale[PANEL_ROWS];
    int32_t is_paired, first_element, num_elements, first_col, num_cols;
    int32_t num_tiles, num_rows; /* the last tile of a matrix may have fewer than 16 */
    int32_t is_first, is_last;   /* of the chunks of a row */
} FloatPanel;

static const int element_bytes[] = {4, 2, 2, 1}; /* of the float formats */

/* Columns of a row, n at most 32, as fp32. */
INLINE void convert(int format, const uint8_t *from, int n, float *restrict to) {
    const uint16_t *halves = (const uint16_t *)from;
    if (format == FORMAT_F32) memcpy(to, from, n * sizeof *to);
    if (format == FORMAT_F16)
        for (int c = 0; c < n; c++) to[c] = fp16_to_float(halves[c]);
    if (format == FORMAT_BF16)
        for (int c = 0; c < n; c++) to[c] = bf16_to_float(halves[c]);
    if (format == FORMAT_FP8)
        for (int c = 0; c < n; c++) to[c] = fp8_to_float(from[c]);
}

/* Multiply columns of a group of rows by their scales. */
INLINE void scale_rows(const Matrix *m, int first_row, int num_rows, int group,
                       float rows[TILE_ROWS][BLOCK_COLS]) {
    for (int r = 0; r < num_rows; r++) {
        const float scale = group_scales(m, first_row + r)[group];
        for (int c = 0; c < BLOCK_COLS; c++) rows[r][c] *= scale;
    }
}

/* 32 elements of num_rows rows, of which `cols` columns exist; everything else is zero. */
static void copy_part(const Matrix *m, const uint8_t *from, int num_rows, int cols, int is_paired,
                      float rows[TILE_ROWS][BLOCK_COLS]) {
    memset(rows, 0, sizeof(float) * TILE_ROWS * BLOCK_COLS);
    for (int r = 0; r < num_rows; r++)
        if (is_paired)
            memcpy(rows[r], from + r * m->stride, cols * 2);
        else
            convert(m->format, from + r * m->stride, cols, rows[r]);
}

/* The chunk's elements [n][16] of a row-major tile, 32 of every row at a time. */
static void fill_float_tile(const Matrix *m, int first_row, int num_rows, FloatPanel *p,
                            float *to) {
    const int part_cols = p->is_paired ? 2 * BLOCK_COLS : BLOCK_COLS;
    const int bytes = element_bytes[m->format];
    const uint8_t *from = m->data + first_row * m->stride + p->first_col * bytes;
    _Alignas(64) float rows[TILE_ROWS][BLOCK_COLS];
    for (int c = 0; c < p->num_cols; c += part_cols, from += part_cols * bytes) {
        const int cols = min_int(part_cols, p->num_cols - c);
        const void *part = rows;
        ptrdiff_t row_bytes = sizeof rows[0];
        if (num_rows < TILE_ROWS || cols < part_cols)
            copy_part(m, from, num_rows, cols, p->is_paired, rows);
        else if (p->is_paired || m->format == FORMAT_F32)
            part = from, row_bytes = m->stride;
        else
            for (int r = 0; r < TILE_ROWS; r++)
                convert(m->format, from + r * m->stride, BLOCK_COLS, rows[r]);
        if (m->group_scale) scale_rows(m, first_row, num_rows, (p->first_col + c) / m->group_cols, rows);
        for (int i = 0; i < BLOCK_COLS; i += 4, to += 4 * PANEL_ROWS)
            transpose_columns((const char *)part + 4 * i, row_bytes, to, PANEL_ROWS);
    }
}

/* Columns 16 * half to 16 * half + 15 of a tile's block, which have one scale per row. */
INLINE void dequantize(Values values, const uint8_t *block, int half, const float *scales,
                       const float *minimums, float *to) {
    for (int j = 0; j < 4; j++)
        for (int r = 0; r < TILE_ROWS; r += LANES) {
            const Ints bytes = signed_columns(values, block, 4 * half + j, r);
            const Floats scale = load_floats(scales + r), minimum = load_floats(minimums + r);
            for (int c = 0; c < 4; c++) {
                const Ints q = bytes << (24 - 8 * c) >> 24;
                store_floats(to + (4 * j + c) * PANEL_ROWS + r,
                             ints_to_floats(q) * scale + minimum);
            }
        }
}

/* Columns [n][16] of a tile of quantized values. values is a constant. */
INLINE void fill_columns(Values values, const Matrix *m, const uint8_t *tile, FloatPanel *p,
                         float *to) {
    const int half_cols = BLOCK_COLS / 2, block_bytes = 64 * values.bits;
    float scales[TILE_ROWS], minimums[TILE_ROWS] = {0};
    const uint8_t *block = tile_values(m, tile) + p->first_col / BLOCK_COLS * block_bytes;
    TableReader reader = read_tables_from(m, tile, p->first_col / half_cols, half_cols);
    for (int c = 0; c < p->num_cols; c += BLOCK_COLS, block += block_bytes)
        for (int half = 0; half < 2; half++, to += half_cols * PANEL_ROWS, next_unit(&reader)) {
            read_table(&reader, &reader.scales, scales);
            if (reader.has_minimum) read_table(&reader, &reader.minimums, minimums);
            dequantize(values, block, half, scales, minimums, to);
        }
}

static void fill_quantized_tile(const Matrix *m, const uint8_t *tile, FloatPanel *p, float *to) {
#define FILL(format, has_minimum) fill_columns(values_of(format, has_minimum), m, tile, p, to)
    FOR_FORMAT(m, FILL)
#undef FILL
}

/* The chunk's columns of `num_tiles` tiles, at most PANEL_TILES. */
static void fill_panel(const Matrix *m, int first_tile, int num_tiles, FloatPanel *p) {
    const int first_row = first_tile * TILE_ROWS;
    p->num_tiles = num_tiles;
    p->num_rows = min_int(num_tiles * TILE_ROWS, m->rows - first_row);
    for (int r = 0; r < PANEL_ROWS; r++)
        p->row_scale[r] = m->row_scale && r < p->num_rows ? m->row_scale[first_row + r] : 1;
    for (int t = 0; t < num_tiles; t++) {
        float *to = p->weights[0] + t * TILE_ROWS;
        if (is_tiled(m))
            fill_quantized_tile(m, m->data + (first_tile + t) * m->stride, p, to);
        else
            fill_float_tile(m, first_row + t * TILE_ROWS,
                            min_int(TILE_ROWS, p->num_rows - t * TILE_ROWS), p, to);
    }
}
