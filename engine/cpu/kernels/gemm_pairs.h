/* The integer sums of gemm_tiles.c by instructions that multiply pairs of int16: the values of a
   unit are [unit_cols / 2][PANEL_ROWS][2] int16. */
#pragma once
#include "gemm_panel.h"

/* Bytes 0 and 1, or 2 and 3, of every element as the high halves of two int16. */
INLINE Shorts low_pair(Ints v) {
#if defined(__AVX512VNNI__)
    const __m512i order = _mm512_set4_epi32(0x0d800c80, 0x09800880, 0x05800480, 0x01800080);
    return (Shorts)_mm512_shuffle_epi8((__m512i)v, order);
#elif defined(__AVX2__)
    const __m128i order = _mm_setr_epi32(0x01800080, 0x05800480, 0x09800880, 0x0d800c80);
    return (Shorts)_mm256_shuffle_epi8((__m256i)v, _mm256_broadcastsi128_si256(order));
#else
    return (Shorts)((v & 0xff) << 8 | (v & 0xff00) << 16);
#endif
}

INLINE Shorts high_pair(Ints v) {
#if defined(__AVX512VNNI__)
    const __m512i order = _mm512_set4_epi32(0x0f800e80, 0x0b800a80, 0x07800680, 0x03800280);
    return (Shorts)_mm512_shuffle_epi8((__m512i)v, order);
#elif defined(__AVX2__)
    const __m128i order = _mm_setr_epi32(0x03800280, 0x07800680, 0x0b800a80, 0x0f800e80);
    return (Shorts)_mm256_shuffle_epi8((__m256i)v, _mm256_broadcastsi128_si256(order));
#else
    return (Shorts)((v >> 8 & 0xff00) | (v & (int32_t)0xff000000));
#endif
}

/* Four columns of LANES rows, which are signed bytes, as pairs of int16. */
INLINE void store_columns(Ints columns, uint8_t *to) {
    store_ints(to, (Ints)(low_pair(columns) >> 8));
    store_ints(to + 4 * PANEL_ROWS, (Ints)(high_pair(columns) >> 8));
}

/* A block of a tile to `place` of the panel; values is a constant. */
INLINE void unpack_block(const uint8_t *block, Values values, uint8_t *first_half,
                         uint8_t *second_half, int place) {
    for (int j = 0; j < 4; j++)
        for (int r = 0; r < TILE_ROWS; r += LANES) {
            const size_t to = 4 * (2 * j * PANEL_ROWS + place * TILE_ROWS + r);
            store_columns(signed_columns(values, block, j, r), first_half + to);
            store_columns(signed_columns(values, block, j + 4, r), second_half + to);
        }
}

/* Add the products of a unit's `values` and of n vectors from element `first` of x on. n and
   vectors are constants. */
INLINE void add_unit(const Panel *p, const uint8_t *values, const QuantizedRows *x, size_t first,
                     int n, int vectors, Ints sums[GROUP_VECTORS][PANEL_VECTORS]) {
    const size_t distance = (size_t)x->blocks * BLOCK_COLS;
    const int16_t *q = x->whole + first;
#pragma clang loop unroll_count(2)
    for (int j = 0; j < p->unit_cols / 2; j++, q += 2, values += 4 * PANEL_ROWS) {
        Ints w[PANEL_VECTORS];
        for (int r = 0; r < vectors; r++) w[r] = load_ints(values + 4 * LANES * r);
        for (int v = 0; v < n; v++) {
            Ints pair = broadcast_int(q + v * distance);
            for (int r = 0; r < vectors; r++) sums[v][r] = add_products(sums[v][r], w[r], pair);
        }
    }
}
