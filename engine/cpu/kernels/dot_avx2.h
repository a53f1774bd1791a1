/* Integer dot products of a block of 16 rows with AVX2; interface: dot_plain.h. */
#pragma once
#include "quantized_rows.h"
#include "tile_rows.h"
#include "tile_values.h"

enum { VECTORS_PER_PASS = 2 };

/* Keep the compiler from moving the computation of a register past this point: it would compute all
   sums of one vector after those of another, and spill the operands that they share. */
INLINE void pin(__m256i *v) { __asm__ volatile("" : "+x"(*v) : : "memory"); }

INLINE __m256i multiply_bytes(__m256i weights, Ints x) {
    return _mm256_maddubs_epi16(weights, (__m256i)x);
}
/* 256 * high + low of sums of pairs of columns. */
INLINE Ints join_planes(__m256i high, __m256i low) {
    return (Ints)_mm256_add_epi32(_mm256_madd_epi16(high, _mm256_set1_epi16(256)),
                                  _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
}

/* Weights with their center added, below 128, by planes of activations. A pair of columns gives at
   most largest * 128 * 2 in either plane: that tells how many pairs a lane of int16 sums. */
INLINE void dot_small(Values v, const uint8_t *values, const QuantizedRows *x, size_t block, int n,
                      int half, Ints16 *sums) {
    const int most = 32767 / (v.largest * 256), pairs = most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1;
    const int num_steps = half == WHOLE_BLOCK ? 8 : 4;
    const size_t distance = (size_t)x->blocks * BLOCK_COLS;
    __m256i high[VECTORS_PER_PASS][2], low[VECTORS_PER_PASS][2];
#pragma GCC unroll 8
    for (int step = 0; step < num_steps; step++) {
        /* Both halves of a plane of four bits one after the other. */
        const int j = half == WHOLE_BLOCK ? step / 2 + step % 2 * 4 : step + (half == SECOND_HALF ? 4 : 0);
        const __m256i w[2] = {(__m256i)unsigned_columns(v, values, j, 0),
                              (__m256i)unsigned_columns(v, values, j, 8)};
        const int is_first = step % pairs == 0, is_last = step % pairs == pairs - 1 || step == num_steps - 1;
#pragma GCC unroll 4
        for (int k = 0; k < n; k++) {
            const size_t at = block * BLOCK_COLS + k * distance + 4 * j;
            const Ints h = broadcast_int(x->high + at), l = broadcast_int(x->low + at);
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                const __m256i zero = _mm256_setzero_si256();
                high[k][i] = _mm256_add_epi16(is_first ? zero : high[k][i], multiply_bytes(w[i], h));
                low[k][i] = _mm256_add_epi16(is_first ? zero : low[k][i], multiply_bytes(w[i], l));
                if (n > 1) pin(&high[k][i]), pin(&low[k][i]);
            }
        }
        if (!is_last) continue;
#pragma GCC unroll 4
        for (int k = 0; k < n; k++)
            EACH_PART {
                const Ints joined = join_planes(high[k][i], low[k][i]);
                sums[k].part[i] = step < pairs ? joined : joined + sums[k].part[i];
            }
    }
    if (!v.center) return;
#pragma GCC unroll 4
    for (int k = 0; k < n; k++) {
        const int32_t added = v.center * block_sum(x, block + k * (size_t)x->blocks, half);
        EACH_PART sums[k].part[i] -= added;
    }
}

/* Four columns of four rows as int16. */
INLINE __m256i widened(Values v, const uint8_t *values, int j, int quarter) {
    if (v.bits == 8)
        return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(values + 64 * j) + quarter));
    const __m256i both = (__m256i)signed_columns(v, values, j, quarter / 2 * 8);
    return _mm256_cvtepi8_epi16(quarter % 2 ? _mm256_extracti128_si256(both, 1)
                                            : _mm256_castsi256_si128(both));
}

/* Weights are widened to int16: a register is four columns of four rows, so that a row's sum is that
   of two lanes. */
INLINE void dot_large(Values v, const uint8_t *values, const QuantizedRows *x, size_t block, int n,
                      int half, Ints16 *sums) {
    const int16_t *x_whole = x->whole + block * BLOCK_COLS;
    const size_t distance = (size_t)x->blocks * BLOCK_COLS;
    __m256i quarter[VECTORS_PER_PASS][4];
#pragma GCC unroll 4
    for (int k = 0; k < n; k++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) quarter[k][i] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int j = half == SECOND_HALF ? 4 : 0; j < (half == FIRST_HALF ? 4 : 8); j++) {
        __m256i weights[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) weights[i] = widened(v, values, j, i);
#pragma GCC unroll 4
        for (int k = 0; k < n; k++) {
            int64_t columns;
            memcpy(&columns, x_whole + k * distance + 4 * j, 8);
            __m256i q = _mm256_set1_epi64x(columns);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                quarter[k][i] = _mm256_add_epi32(quarter[k][i], _mm256_madd_epi16(weights[i], q));
                if (n > 1) pin(&quarter[k][i]);
            }
        }
    }
#pragma GCC unroll 4
    for (int k = 0; k < n; k++) {
        /* Rows 0 1 4 5 | 2 3 6 7, put in order. */
        __m256i first = _mm256_hadd_epi32(quarter[k][0], quarter[k][1]);
        __m256i second = _mm256_hadd_epi32(quarter[k][2], quarter[k][3]);
        sums[k].part[0] = (Ints)_mm256_permute4x64_epi64(first, 0xd8);
        sums[k].part[1] = (Ints)_mm256_permute4x64_epi64(second, 0xd8);
    }
}

INLINE void dot(Values v, const uint8_t *values, const QuantizedRows *x, size_t block, int n, int half,
                Ints16 *sums) {
    if (v.largest < 128)
        dot_small(v, values, x, block, n, half, sums);
    else
        dot_large(v, values, x, block, n, half, sums);
}
