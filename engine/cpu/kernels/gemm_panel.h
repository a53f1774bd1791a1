/* Unpacked weights of a part of the columns of PANEL_TILES tiles, for gemm_tiles.c. */
#pragma once
#include "matrix_layout.h"
#include "quantized_rows.h"
#include "tile_values.h"

/* Whether values are bytes, for instructions that multiply four of them with bytes of activations.
 */
#if defined(__ARM_FEATURE_DOTPROD)
enum { HAS_DOT = 1 };
#else
enum { HAS_DOT = 0 };
#endif

enum {
    PANEL_TILES = LANES == 16 ? 2 : 1,
    PANEL_ROWS = PANEL_TILES * TILE_ROWS,
    PANEL_VECTORS = PANEL_ROWS / LANES, /* registers for the rows of a panel, and of a tile */
    TILE_VECTORS = TILE_ROWS / LANES,
    GROUP_VECTORS = LANES == 16 ? 8
    : LANES == 8                ? 4
                                : 2,
    VALUE_BYTES = HAS_DOT ? 1 : 2,
    CHUNK_BLOCKS = LANES == 16 ? 9 : 16,    /* a panel of 20 KB */
    VECTOR_BLOCK = LANES == 16 ? 512 : 256, /* x of a chunk fits in the L2 cache */
    TILE_BLOCK = 16,                        /* and y of a block of vectors and tiles */
};

/* A unit is what one scale per row belongs to: a block, or half a block with groups of 16 columns.
   Of each unit, `units` has the values (unit_cols * PANEL_ROWS, VALUE_BYTES each), then scales and
   minimums, fp32 [PANEL_ROWS] each. */
typedef struct {
    _Alignas(64) uint8_t units[CHUNK_BLOCKS * PANEL_ROWS * (BLOCK_COLS * VALUE_BYTES + 2 * 8)];
    float row_scale[PANEL_ROWS];
    int32_t first_unit, num_units, unit_cols, has_minimum;
    int32_t is_first, is_last; /* of the chunks of a row */
} Panel;

INLINE size_t unit_value_bytes(const Panel *p) {
    return (size_t)p->unit_cols * PANEL_ROWS * VALUE_BYTES;
}
INLINE size_t unit_bytes(const Panel *p) { return unit_value_bytes(p) + 8 * PANEL_ROWS; }
INLINE uint8_t *unit_values(Panel *p, int unit) { return p->units + unit * unit_bytes(p); }
INLINE float *unit_scales(Panel *p, int unit) {
    return (float *)(unit_values(p, unit) + unit_value_bytes(p));
}

/* The sum of the activations of a unit, of the block at `block` of x. */
INLINE int32_t unit_sum(const Panel *p, const QuantizedRows *x, size_t block, int unit) {
    if (p->unit_cols == BLOCK_COLS) return block_sum(x, block, WHOLE_BLOCK);
    return block_sum(x, block, unit & 1 ? SECOND_HALF : FIRST_HALF);
}
