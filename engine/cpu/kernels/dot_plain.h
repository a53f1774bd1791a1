/* Integer dot products of a block of 16 rows, in plain C: the reference for the other dot_*.h. */
#pragma once
#include "common.h"
#include "numbers.h"
#include "quantized_rows.h"

/* Vectors that one pass over a tile computes. */
enum { VECTORS_PER_PASS = 1 };

/* One number per row of a tile. */
typedef struct {
    int32_t row[TILE_ROWS];
} Ints16;
typedef struct {
    float row[TILE_ROWS];
} Floats16;

INLINE void prefetch(const uint8_t *at) { __builtin_prefetch(at); }

INLINE Floats16 load_floats(const float *at) {
    Floats16 v;
    memcpy(v.row, at, sizeof v.row);
    return v;
}
INLINE void store_floats(float *at, Floats16 v) { memcpy(at, v.row, sizeof v.row); }
INLINE Floats16 load_halves(const uint16_t *at) {
    Floats16 v;
    for (int r = 0; r < TILE_ROWS; r++) v.row[r] = fp16_to_float(at[r]);
    return v;
}
/* 2^(byte - 128) of e8m0 bytes. */
INLINE Floats16 load_powers(const uint8_t *at) {
    Floats16 v;
    for (int r = 0; r < TILE_ROWS; r++) v.row[r] = half_e8m0(at[r]);
    return v;
}
INLINE Floats16 multiply(Floats16 a, Floats16 b) {
    for (int r = 0; r < TILE_ROWS; r++) a.row[r] *= b.row[r];
    return a;
}
/* sum + (float)ints * scale * table, fused. */
INLINE Floats16 add_scaled(Ints16 ints, float scale, Floats16 table, Floats16 sum) {
    for (int r = 0; r < TILE_ROWS; r++)
        sum.row[r] = fused_multiply_add((float)ints.row[r] * scale, table.row[r], sum.row[r]);
    return sum;
}
/* sum + factor * table, fused. */
INLINE Floats16 add_multiple(float factor, Floats16 table, Floats16 sum) {
    for (int r = 0; r < TILE_ROWS; r++)
        sum.row[r] = fused_multiply_add(factor, table.row[r], sum.row[r]);
    return sum;
}
INLINE Ints16 subtract(Ints16 ints, int32_t number) {
    for (int r = 0; r < TILE_ROWS; r++) ints.row[r] -= number;
    return ints;
}

INLINE int number_of(int bits, const uint8_t *numbers) { return numbers ? numbers[bits] : bits; }

/* sums[v] = q * x of the blocks `block` + v * x->blocks, v < n: of columns 0 to 15 (half 0), 16 to 31
   (half 1), or all (half 2). q are four bits, or the `numbers` that they stand for. */
INLINE void dot_4_bits(const uint8_t *values, const uint8_t *numbers, const QuantizedRows *x, size_t block,
                       int n, int half, Ints16 *sums) {
    for (int v = 0; v < n; v++, block += x->blocks) {
        const int16_t *q = x->whole + block * BLOCK_COLS;
        for (int r = 0; r < TILE_ROWS; r++) {
            int32_t sum = 0;
            for (int i = 0; i < 16; i++) {
                int both = values[i / 4 * 64 + r * 4 + i % 4];
                if (half != 1) sum += number_of(both & 15, numbers) * q[i];
                if (half != 0) sum += number_of(both >> 4, numbers) * q[16 + i];
            }
            sums[v].row[r] = sum;
        }
    }
}

INLINE void dot_int8(const uint8_t *values, const QuantizedRows *x, size_t block, int n, int half,
                     Ints16 *sums) {
    int from = half == 1 ? 16 : 0, to = half == 0 ? 16 : 32;
    for (int v = 0; v < n; v++, block += x->blocks) {
        const int16_t *q = x->whole + block * BLOCK_COLS;
        for (int r = 0; r < TILE_ROWS; r++) {
            int32_t sum = 0;
            for (int i = from; i < to; i++) sum += (int8_t)values[i / 4 * 64 + r * 4 + i % 4] * q[i];
            sums[v].row[r] = sum;
        }
    }
}
