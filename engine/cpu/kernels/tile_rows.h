/* A number for each of the 16 rows of a tile, in as many registers as that takes. */
#pragma once
#include "common.h"
#include "matrix_layout.h"
#include "vector.h"

enum { PARTS = TILE_ROWS / LANES };

typedef struct {
    Ints part[PARTS];
} Ints16;
typedef struct {
    Floats part[PARTS];
} Floats16;

#if defined(__SSE2__) || defined(__AVX2__)
INLINE void prefetch(const uint8_t *at) { _mm_prefetch((const char *)at, _MM_HINT_T0); }
#else
INLINE void prefetch(const uint8_t *at) { __builtin_prefetch(at, 0, 3); }
#endif

#define EACH_PART for (int i = 0; i < PARTS; i++)

INLINE Floats16 floats_at(const uint8_t *at) {
    Floats16 rows;
    EACH_PART rows.part[i] = load_floats(at + 4 * LANES * i);
    return rows;
}
INLINE Floats16 halves_at(const uint8_t *at) {
    Floats16 rows;
    EACH_PART rows.part[i] = load_fp16(at + 2 * LANES * i);
    return rows;
}
INLINE Ints bytes_at(const uint8_t *at, int is_signed) {
    uint8_t __attribute__((vector_size(LANES))) bytes;
    int8_t __attribute__((vector_size(LANES))) signed_bytes;
    memcpy(&bytes, at, sizeof bytes);
    memcpy(&signed_bytes, at, sizeof bytes);
    return is_signed ? __builtin_convertvector(signed_bytes, Ints) : __builtin_convertvector(bytes, Ints);
}
/* 2^(byte - 128) of e8m0 bytes. */
INLINE Floats16 powers_at(const uint8_t *at) {
    Floats16 rows;
    EACH_PART {
        const Ints e8m0 = bytes_at(at + LANES * i, 0);
        /* The smallest power is subnormal. */
        const Ints bits = e8m0 << 23 | ((e8m0 == 0) & 0x00400000);
        rows.part[i] = (Floats)bits * 0.5f;
    }
    return rows;
}
/* e4m3 numbers / 256: at the place of fp16's bits, also if they are subnormal. */
INLINE Floats16 small_e4m3_at(const uint8_t *at) {
    uint16_t halves[TILE_ROWS];
    for (int r = 0; r < TILE_ROWS; r++) halves[r] = (uint16_t)((at[r] & 0x80) << 8 | (at[r] & 0x7f) << 7);
    return halves_at((const uint8_t *)halves);
}
INLINE void store_rows(float *at, Floats16 rows) {
    EACH_PART store_floats(at + LANES * i, rows.part[i]);
}
INLINE Floats16 times(Floats16 rows, float factor) {
    EACH_PART rows.part[i] *= broadcast_float(&factor);
    return rows;
}
/* sum + (float)ints * scale * table, with the last product and the sum fused. */
INLINE Floats16 add_scaled_rows(Ints16 ints, float scale, Floats16 table, Floats16 sum) {
    EACH_PART {
        const Floats scaled = ints_to_floats(ints.part[i]) * broadcast_float(&scale);
        sum.part[i] = multiply_add(scaled, table.part[i], sum.part[i]);
    }
    return sum;
}
/* sum + factor * table, fused. */
INLINE Floats16 add_multiple_rows(float factor, Floats16 table, Floats16 sum) {
    EACH_PART sum.part[i] = multiply_add(broadcast_float(&factor), table.part[i], sum.part[i]);
    return sum;
}
