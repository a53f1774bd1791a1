/* The kernel of gemm_tiles.c for instructions that multiply pairs of int16: values of a panel are
   [unit_cols / 2][PANEL_ROWS][2] int16. */
#pragma once
#include "gemm_panel.h"

enum { GROUP_VECTORS = LANES == 16 ? 8 : LANES == 8 ? 4 : 2 };

/* Bytes 0 and 1, or 2 and 3, of every element as the high halves of two int16. */
INLINE Ints low_pair(Ints v) { return (v & 0xff) << 8 | (v & 0xff00) << 16; }
INLINE Ints high_pair(Ints v) { return (v >> 8 & 0xff00) | (v & (int32_t)0xff000000); }

/* Four columns of LANES rows, bytes in `v`, to the pairs at `to`. The shift keeps the sign of a
   byte, or of the high half of one. */
INLINE void store_signed(uint8_t *to, Ints v, int shift) {
    store_ints(to, (Ints)((Shorts)low_pair(v) >> (int16_t)shift));
    store_ints(to + 4 * PANEL_ROWS, (Ints)((Shorts)high_pair(v) >> (int16_t)shift));
}
INLINE void store_unsigned(uint8_t *to, Ints v, int shift) {
    store_ints(to, (Ints)((Ushorts)low_pair(v) >> (uint16_t)shift));
    store_ints(to + 4 * PANEL_ROWS, (Ints)((Ushorts)high_pair(v) >> (uint16_t)shift));
}

/* A block of the tile at `place` of the panel: 16 columns to each half, of one unit or two. */
static void unpack_block(const Matrix *m, const uint8_t *block, uint8_t *first_half,
                         uint8_t *last_unit, int place) {
    const size_t half_bytes = 16 * VALUE_BYTES * PANEL_ROWS;
    uint8_t *half[] = {first_half, last_unit + (first_half == last_unit ? half_bytes : 0)};
    for (int j = 0; j < 4; j++) {
        for (int r = 0; r < TILE_ROWS; r += LANES) {
            size_t from = 4 * (j * TILE_ROWS + r);
            size_t to = 4 * (2 * j * PANEL_ROWS + place * TILE_ROWS + r);
            Ints v = load_ints(block + from);
            if (m->format == FORMAT_INT8) {
                store_signed(half[0] + to, v, 8);
                store_signed(half[1] + to, load_ints(block + 256 + from), 8);
            } else if (m->has_minimum) {
                store_unsigned(half[0] + to, v << 4 & (int32_t)0xf0f0f0f0, 12);
                store_unsigned(half[1] + to, v & (int32_t)0xf0f0f0f0, 12);
            } else {
                v ^= (int32_t)0x88888888; /* q - 8 in two's complement of four bits */
                store_signed(half[0] + to, v << 4 & (int32_t)0xf0f0f0f0, 12);
                store_signed(half[1] + to, v & (int32_t)0xf0f0f0f0, 12);
            }
        }
    }
}

/* n vectors times `vectors` registers of a panel's rows. n and vectors are constants. */
INLINE void multiply(const Panel *p, int vectors, const QuantizedRows *x, int vector, int n,
                     float *y, int y_stride) {
    const size_t first_block = vector_block(p, x, vector), distance = x->blocks;
    const int16_t *q = x->whole + first_block * BLOCK_COLS;
    const uint8_t *unit = p->units;
    const int pairs = p->unit_cols / 2, block_units = BLOCK_COLS / p->unit_cols;
    Floats results[GROUP_VECTORS][PANEL_VECTORS];
    for (int v = 0; v < n; v++)
        for (int r = 0; r < vectors; r++)
            results[v][r] =
                p->is_first ? (Floats){0} : load_floats(y + v * (size_t)y_stride + r * LANES);
    for (int u = 0; u < p->num_units; u++) {
        Ints sums[GROUP_VECTORS][PANEL_VECTORS] = {{{0}}};
#pragma clang loop unroll_count(2)
        for (int j = 0; j < pairs; j++, q += 2, unit += 4 * PANEL_ROWS) {
            Ints w[PANEL_VECTORS];
            for (int r = 0; r < vectors; r++) w[r] = load_ints(unit + 4 * LANES * r);
            for (int v = 0; v < n; v++) {
                Ints pair = broadcast_int(q + v * distance * BLOCK_COLS);
                for (int r = 0; r < vectors; r++) sums[v][r] = add_products(sums[v][r], w[r], pair);
            }
        }
        const size_t block = first_block + u / block_units;
        const float *scales = (const float *)unit, *minimums = scales + PANEL_ROWS;
        unit += 8 * PANEL_ROWS;
        for (int v = 0; v < n; v++) {
            Floats scale = broadcast_float(x->scale + block + v * distance);
            for (int r = 0; r < vectors; r++)
                results[v][r] = multiply_add(ints_to_floats(sums[v][r]) * scale,
                                             load_floats(scales + r * LANES), results[v][r]);
        }
        if (!p->has_minimum) continue;
        for (int v = 0; v < n; v++) {
            float sum =
                (float)unit_sum(p, x, block + v * distance, u) * x->scale[block + v * distance];
            for (int r = 0; r < vectors; r++)
                results[v][r] = multiply_add(broadcast_float(&sum),
                                             load_floats(minimums + r * LANES), results[v][r]);
        }
    }
    for (int v = 0; v < n; v++)
        for (int r = 0; r < vectors; r++) {
            Floats result = results[v][r];
            if (p->is_last) result *= load_floats(p->row_scale + r * LANES);
            store_floats(y + v * (size_t)y_stride + r * LANES, result);
        }
}

/* Up to GROUP_VECTORS vectors times a panel of num_tiles tiles. The cases that there are no
   registers for are dead code. */
static void multiply_group(const Panel *p, int num_tiles, const QuantizedRows *x, int vector, int n,
                           float *y, int y_stride) {
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
