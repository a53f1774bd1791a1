/* GEMM of tiled integer matrices and 16-bit activations.

   A chunk of the columns of one or two tiles is unpacked to a panel that stays in the L1 cache
   while all vectors pass. For each group of vectors, registers hold the int32 sums of a block; the
   fp32 results so far are in registers too, between chunks in y. */
#include "gemm.h"
#if defined(__ARM_FEATURE_DOTPROD)
#include "gemm_dot.h"
#else
#include "gemm_pairs.h"
#endif
#include "tile_table.h"

_Static_assert(sizeof(Panel) <= GEMM_PANEL_BYTES, "the panel fits in its memory");

size_t gemm_panel_bytes(const Matrix *m, int num_tiles) {
    (void)m, (void)num_tiles;
    return GEMM_PANEL_BYTES;
}

/* The scales and minimums of the panel's units for the tile at `place` of the panel. */
static void unpack_tables(const Matrix *m, const uint8_t *tile, Panel *p, int place) {
    TableReader reader = read_tables_from(m, tile, p->first_unit, p->unit_cols);
    for (int u = 0; u < p->num_units; u++, next_unit(&reader)) {
        float *to = unit_scales(p, u) + place * TILE_ROWS;
        read_table(&reader, &reader.scales, to);
        if (reader.has_minimum) read_table(&reader, &reader.minimums, to + PANEL_ROWS);
    }
}

/* Unpack the panel's columns of a tile to `place` of the panel. values is a constant. */
INLINE void unpack_values(const uint8_t *block, Values values, Panel *p, int place) {
    const int block_units = BLOCK_COLS / p->unit_cols;
    for (int u = 0; u < p->num_units; u += block_units, block += 64 * values.bits) {
        uint8_t *first = unit_values(p, u);
        size_t half_bytes = block_units == 1 ? 16 * VALUE_BYTES * PANEL_ROWS : unit_bytes(p);
        unpack_block(block, values, first, first + half_bytes, place);
    }
}

static void unpack_tile(const Matrix *m, int tile, Panel *p, int place) {
    const uint8_t *tile_data = m->data + tile * m->stride;
    const int first_block = p->first_unit * p->unit_cols / BLOCK_COLS;
    const uint8_t *block = tile_values(m, tile_data) + first_block * block_value_bytes(m);
    unpack_tables(m, tile_data, p, place);
#define UNPACK(format, has_minimum) unpack_values(block, values_of(format, has_minimum), p, place)
    FOR_FORMAT(m, UNPACK)
#undef UNPACK
    for (int r = 0; r < TILE_ROWS; r++) {
        int row = tile * TILE_ROWS + r;
        p->row_scale[place * TILE_ROWS + r] = m->row_scale && row < m->rows ? m->row_scale[row] : 1;
    }
}

/* Ask for the panel's columns of the tiles after the panel's. */
static void prefetch_tiles(const Matrix *m, int first_tile, int num_tiles, const Panel *p) {
    const int first_block = p->first_unit * p->unit_cols / BLOCK_COLS;
    const size_t bytes = p->num_units * p->unit_cols / BLOCK_COLS * block_value_bytes(m);
    for (int t = 0; t < num_tiles; t++) {
        const uint8_t *tile = m->data + (first_tile + t) * m->stride;
        const uint8_t *values = tile_values(m, tile) + first_block * block_value_bytes(m);
        for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(values + i, 0, 2);
    }
}

/* Add the sums of a unit times the scales of vectors and weights to the results. */
INLINE void add_scaled(const Panel *p, const uint8_t *unit, const float *x_scale, size_t distance,
                       int n, int vectors, Ints sums[GROUP_VECTORS][PANEL_VECTORS],
                       Floats results[GROUP_VECTORS][PANEL_VECTORS]) {
    const float *scales = (const float *)(unit + unit_value_bytes(p));
    for (int v = 0; v < n; v++) {
        const Floats scale = broadcast_float(x_scale + v * distance);
        for (int r = 0; r < vectors; r++)
            results[v][r] = multiply_add(ints_to_floats(sums[v][r]) * scale,
                                         load_floats(scales + r * LANES), results[v][r]);
    }
}

/* Add the minimums of a unit times the sums of its activations to the results. */
INLINE void add_minimums(const Panel *p, const uint8_t *unit, const QuantizedRows *x, size_t block,
                         int unit_index, int n, int vectors,
                         Floats results[GROUP_VECTORS][PANEL_VECTORS]) {
    const float *minimums = (const float *)(unit + unit_value_bytes(p)) + PANEL_ROWS;
    for (int v = 0; v < n; v++, block += x->blocks) {
        const float sum = (float)unit_sum(p, x, block, unit_index) * x->scale[block];
        for (int r = 0; r < vectors; r++)
            results[v][r] = multiply_add(broadcast_float(&sum), load_floats(minimums + r * LANES),
                                         results[v][r]);
    }
}

/* n vectors times `vectors` registers of a panel's rows. n and vectors are constants. */
INLINE void multiply(const Panel *p, int vectors, const QuantizedRows *x, int vector, int n,
                     float *y, size_t y_stride) {
    const int block_units = BLOCK_COLS / p->unit_cols;
    const size_t first_block = (size_t)vector * x->blocks + p->first_unit / block_units;
    Floats results[GROUP_VECTORS][PANEL_VECTORS];
    for (int v = 0; v < n; v++)
        for (int r = 0; r < vectors; r++)
            results[v][r] = p->is_first ? (Floats){0} : load_floats(y + v * y_stride + r * LANES);
    const uint8_t *unit = p->units;
    const size_t bytes = unit_bytes(p);
    size_t first = first_block * BLOCK_COLS;
    for (int u = 0; u < p->num_units; u++, unit += bytes, first += p->unit_cols) {
        Ints sums[GROUP_VECTORS][PANEL_VECTORS] = {{{0}}};
        add_unit(p, unit, x, first, n, vectors, sums);
        const size_t block = first / BLOCK_COLS;
        add_scaled(p, unit, x->scale + block, x->blocks, n, vectors, sums, results);
        if (p->has_minimum) add_minimums(p, unit, x, block, u, n, vectors, results);
    }
    for (int v = 0; v < n; v++)
        for (int r = 0; r < vectors; r++) {
            Floats result = results[v][r];
            if (p->is_last) result *= load_floats(p->row_scale + r * LANES);
            store_floats(y + v * y_stride + r * LANES, result);
        }
}

/* Up to GROUP_VECTORS vectors times a panel of num_tiles tiles. The cases that there are no
   registers for are dead code. */
static void multiply_group(const Panel *p, int num_tiles, const QuantizedRows *x, int vector, int n,
                           float *y, size_t y_stride) {
#define CASE(count) \
    case count: \
        if (count > GROUP_VECTORS) break; \
        if (num_tiles == PANEL_TILES) \
            multiply(p, PANEL_VECTORS, x, vector, min_int(count, GROUP_VECTORS), y, y_stride); \
        else \
            multiply(p, TILE_VECTORS, x, vector, min_int(count, GROUP_VECTORS), y, y_stride); \
        break;
    switch (n) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
#undef CASE
}

/* All vectors times a panel of num_tiles tiles, in groups as equal as possible. */
static void multiply_panel(const Panel *p, int num_tiles, const QuantizedRows *x, int first_vector,
                           int num_vectors, float *y, int y_stride) {
    int groups = (num_vectors + GROUP_VECTORS - 1) / GROUP_VECTORS;
    for (int g = 0; g < groups; g++) {
        int first = num_vectors * g / groups, last = num_vectors * (g + 1) / groups;
        multiply_group(p, num_tiles, x, first_vector + first, last - first,
                       y + first * (size_t)y_stride, y_stride);
    }
}

static void multiply_block(const Matrix *m, int first_tile, int num_tiles, const QuantizedRows *x,
                           int first_vector, int num_vectors, float *y, int y_stride, Panel *p) {
    const int blocks = num_blocks(m->cols), chunks = (blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS;
    const int block_units = m->group_cols == BLOCK_COLS / 2 ? 2 : 1;
    p->unit_cols = BLOCK_COLS / block_units;
    p->has_minimum = m->has_minimum;
    for (int c = 0; c < chunks; c++) {
        int first = blocks * c / chunks, last = blocks * (c + 1) / chunks;
        p->first_unit = first * block_units;
        p->num_units = (last - first) * block_units;
        p->is_first = c == 0;
        p->is_last = c == chunks - 1;
        for (int t = 0; t < num_tiles; t += PANEL_TILES) {
            int tiles = min_int(PANEL_TILES, num_tiles - t), next = t + PANEL_TILES;
            for (int i = 0; i < tiles; i++) unpack_tile(m, first_tile + t + i, p, i);
            prefetch_tiles(m, first_tile + next, min_int(PANEL_TILES, num_tiles - next), p);
            multiply_panel(p, tiles, x, first_vector, num_vectors, y + t * TILE_ROWS, y_stride);
        }
    }
}

void gemm_tiles(const Matrix *m, int first_tile, int num_tiles, const QuantizedRows *x,
                int first_vector, int num_vectors, float *y, int y_stride, uint8_t *panel) {
    for (int v = 0; v < num_vectors; v += VECTOR_BLOCK)
        for (int t = 0; t < num_tiles; t += TILE_BLOCK)
            multiply_block(m, first_tile + t, min_int(TILE_BLOCK, num_tiles - t), x,
                           first_vector + v, min_int(VECTOR_BLOCK, num_vectors - v),
                           y + (size_t)v * y_stride + t * TILE_ROWS, y_stride, (Panel *)panel);
}
