/* Integer dot products of a block of 16 rows with the dot products of NEON; interface: dot_plain.h. The
   16 rows are four registers of int32 sums. */
#pragma once
#include <arm_neon.h>

#include "common.h"
#include "numbers.h"
#include "quantized_rows.h"

enum { VECTORS_PER_PASS = 2, QUARTERS = 4 };

typedef struct {
    int32x4_t quarter[QUARTERS];
} Ints16;
typedef struct {
    float32x4_t quarter[QUARTERS];
} Floats16;

INLINE void prefetch(const uint8_t *at) { __builtin_prefetch(at, 0, 3); }

INLINE Floats16 load_floats(const float *at) {
    Floats16 v;
    for (int i = 0; i < QUARTERS; i++) v.quarter[i] = vld1q_f32(at + 4 * i);
    return v;
}
INLINE void store_floats(float *at, Floats16 v) {
    for (int i = 0; i < QUARTERS; i++) vst1q_f32(at + 4 * i, v.quarter[i]);
}
INLINE Floats16 load_halves(const uint16_t *at) {
    Floats16 v;
    for (int i = 0; i < QUARTERS; i++)
        v.quarter[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at + 4 * i)));
    return v;
}
INLINE Floats16 load_powers(const uint8_t *at) {
    Floats16 v;
    float powers[TILE_ROWS];
    for (int r = 0; r < TILE_ROWS; r++) powers[r] = half_e8m0(at[r]);
    for (int i = 0; i < QUARTERS; i++) v.quarter[i] = vld1q_f32(powers + 4 * i);
    return v;
}
INLINE Floats16 multiply(Floats16 a, Floats16 b) {
    for (int i = 0; i < QUARTERS; i++) a.quarter[i] = vmulq_f32(a.quarter[i], b.quarter[i]);
    return a;
}
INLINE Floats16 add_scaled(Ints16 ints, float scale, Floats16 table, Floats16 sum) {
    for (int i = 0; i < QUARTERS; i++) {
        float32x4_t scaled = vmulq_n_f32(vcvtq_f32_s32(ints.quarter[i]), scale);
        sum.quarter[i] = vfmaq_f32(sum.quarter[i], scaled, table.quarter[i]);
    }
    return sum;
}
INLINE Floats16 add_multiple(float factor, Floats16 table, Floats16 sum) {
    for (int i = 0; i < QUARTERS; i++)
        sum.quarter[i] = vfmaq_n_f32(sum.quarter[i], table.quarter[i], factor);
    return sum;
}
INLINE Ints16 subtract(Ints16 ints, int32_t number) {
    for (int i = 0; i < QUARTERS; i++)
        ints.quarter[i] = vsubq_s32(ints.quarter[i], vdupq_n_s32(number));
    return ints;
}

INLINE int8x16_t four_columns(const int8_t *at) {
    int32_t bytes;
    memcpy(&bytes, at, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(bytes));
}
INLINE Ints16 join_planes(Ints16 high, Ints16 low) {
    for (int i = 0; i < QUARTERS; i++)
        low.quarter[i] = vaddq_s32(vshlq_n_s32(high.quarter[i], 8), low.quarter[i]);
    return low;
}
INLINE void clear(Ints16 *sums, int n) {
    for (int v = 0; v < n; v++)
        for (int i = 0; i < QUARTERS; i++) sums[v].quarter[i] = vdupq_n_s32(0);
}

INLINE void dot_4_bits(const uint8_t *values, const uint8_t *numbers, const QuantizedRows *x, size_t block,
                       int n, int half, Ints16 *sums) {
    const uint8x16_t table = numbers ? vld1q_u8(numbers) : vdupq_n_u8(0);
    Ints16 high[VECTORS_PER_PASS], low[VECTORS_PER_PASS];
    clear(high, n);
    clear(low, n);
    for (int j = 0; j < 4; j++) {
        int8x16_t first[QUARTERS], second[QUARTERS];
        for (int i = 0; i < QUARTERS; i++) {
            uint8x16_t both = vld1q_u8(values + 64 * j + 16 * i);
            uint8x16_t low = vandq_u8(both, vdupq_n_u8(15)), high_bits = vshrq_n_u8(both, 4);
            first[i] = vreinterpretq_s8_u8(numbers ? vqtbl1q_u8(table, low) : low);
            second[i] = vreinterpretq_s8_u8(numbers ? vqtbl1q_u8(table, high_bits) : high_bits);
        }
        for (int v = 0; v < n; v++) {
            size_t at = (block + (size_t)v * x->blocks) * BLOCK_COLS + 4 * j;
            int32x4_t *h = high[v].quarter, *l = low[v].quarter;
            for (int i = 0; half != 1 && i < QUARTERS; i++) {
                h[i] = vdotq_s32(h[i], first[i], four_columns(x->high + at));
                l[i] = vdotq_s32(l[i], first[i], four_columns(x->low + at));
            }
            for (int i = 0; half != 0 && i < QUARTERS; i++) {
                h[i] = vdotq_s32(h[i], second[i], four_columns(x->high + at + 16));
                l[i] = vdotq_s32(l[i], second[i], four_columns(x->low + at + 16));
            }
        }
    }
    for (int v = 0; v < n; v++) sums[v] = join_planes(high[v], low[v]);
}

INLINE void dot_int8(const uint8_t *values, const QuantizedRows *x, size_t block, int n, int half,
                     Ints16 *sums) {
    Ints16 high[VECTORS_PER_PASS], low[VECTORS_PER_PASS];
    clear(high, n);
    clear(low, n);
    for (int j = half == 1 ? 4 : 0; j < (half == 0 ? 4 : 8); j++) {
        int8x16_t weights[QUARTERS];
        for (int i = 0; i < QUARTERS; i++)
            weights[i] = vld1q_s8((const int8_t *)values + 64 * j + 16 * i);
        for (int v = 0; v < n; v++) {
            size_t at = (block + (size_t)v * x->blocks) * BLOCK_COLS + 4 * j;
            for (int i = 0; i < QUARTERS; i++) {
                int32x4_t *h = high[v].quarter + i, *l = low[v].quarter + i;
                *h = vdotq_s32(*h, weights[i], four_columns(x->high + at));
                *l = vdotq_s32(*l, weights[i], four_columns(x->low + at));
            }
        }
    }
    for (int v = 0; v < n; v++) sums[v] = join_planes(high[v], low[v]);
}
