/* The integer sums of gemm_tiles.c by NEON's products of signed bytes: activations are 256 * high +
   low. The values of a unit are int8 [unit_cols / 4][16][4], or [unit_cols / 8][16][8] for
   instructions that multiply two rows of eight columns with two vectors. */
#pragma once
#include "gemm_panel.h"

/* A block of a tile to the panel; values is a constant. */
INLINE void unpack_block(const uint8_t *block, Values values, uint8_t *first_half,
                         uint8_t *second_half, int place) {
    (void)place; /* a panel is one tile */
    for (int j = 0; j < 8; j += 2)
        for (int r = 0; r < TILE_ROWS; r += 4) {
            int8_t *to = (int8_t *)(j < 4 ? first_half : second_half) + 64 * (j % 4);
            const int8x16_t a = (int8x16_t)signed_columns(values, block, j, r);
            const int8x16_t b = (int8x16_t)signed_columns(values, block, j + 1, r);
#if defined(__ARM_FEATURE_MATMUL_INT8)
            const int32x4_t rows_a = vreinterpretq_s32_s8(a), rows_b = vreinterpretq_s32_s8(b);
            vst1q_s8(to + 8 * r, vreinterpretq_s8_s32(vzip1q_s32(rows_a, rows_b)));
            vst1q_s8(to + 8 * r + 16, vreinterpretq_s8_s32(vzip2q_s32(rows_a, rows_b)));
#else
            vst1q_s8(to + 4 * r, a);
            vst1q_s8(to + 64 + 4 * r, b);
#endif
        }
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
/* Eight columns of two vectors. */
INLINE int8x16_t eight_columns(const int8_t *x, size_t distance) {
    return vcombine_s8(vld1_s8(x), vld1_s8(x + distance));
}
#endif

/* Add the products of a unit's `values` and of n vectors from element `first` of x on. */
INLINE void add_unit(const Panel *p, const uint8_t *values, const QuantizedRows *x, size_t first,
                     int n, int vectors, Ints sums[GROUP_VECTORS][PANEL_VECTORS]) {
    (void)vectors; /* those of a tile */
    const size_t distance = n == 1 ? 0 : (size_t)x->blocks * BLOCK_COLS;
    const int8_t *w = (const int8_t *)values, *high = x->high + first, *low = x->low + first;
#if defined(__ARM_FEATURE_MATMUL_INT8)
    /* Of rows 2 * i and 2 * i + 1: with the first vector at 0 and 2, with the second at 1 and 3. */
    int32x4_t high_sums[8], low_sums[8];
    for (int i = 0; i < 8; i++) high_sums[i] = low_sums[i] = vdupq_n_s32(0);
    for (int c = 0; c < p->unit_cols; c += 8, w += 8 * TILE_ROWS) {
        const int8x16_t h = eight_columns(high + c, distance), l = eight_columns(low + c, distance);
        for (int i = 0; i < 8; i++) {
            const int8x16_t rows = vld1q_s8(w + 16 * i);
            high_sums[i] = vmmlaq_s32(high_sums[i], rows, h);
            low_sums[i] = vmmlaq_s32(low_sums[i], rows, l);
        }
    }
    for (int i = 0; i < 8; i++) low_sums[i] = vaddq_s32(vshlq_n_s32(high_sums[i], 8), low_sums[i]);
    for (int r = 0; r < PANEL_VECTORS; r++) {
        sums[0][r] += (Ints)vuzp1q_s32(low_sums[2 * r], low_sums[2 * r + 1]);
        if (n > 1) sums[1][r] += (Ints)vuzp2q_s32(low_sums[2 * r], low_sums[2 * r + 1]);
    }
#else
    int32x4_t high_sums[GROUP_VECTORS][4], low_sums[GROUP_VECTORS][4];
    for (int v = 0; v < n; v++)
        for (int r = 0; r < 4; r++) high_sums[v][r] = low_sums[v][r] = vdupq_n_s32(0);
    for (int c = 0; c < p->unit_cols; c += 4, w += 4 * TILE_ROWS)
        for (int v = 0; v < n; v++) {
            const int32_t *high_bytes = (const int32_t *)(high + v * distance + c);
            const int32_t *low_bytes = (const int32_t *)(low + v * distance + c);
            const int8x16_t h = vreinterpretq_s8_s32(vld1q_dup_s32(high_bytes));
            const int8x16_t l = vreinterpretq_s8_s32(vld1q_dup_s32(low_bytes));
            for (int r = 0; r < 4; r++) {
                const int8x16_t rows = vld1q_s8(w + 16 * r);
                high_sums[v][r] = vdotq_s32(high_sums[v][r], rows, h);
                low_sums[v][r] = vdotq_s32(low_sums[v][r], rows, l);
            }
        }
    for (int v = 0; v < n; v++)
        for (int r = 0; r < 4; r++)
            sums[v][r] += (Ints)vaddq_s32(vshlq_n_s32(high_sums[v][r], 8), low_sums[v][r]);
#endif
}
