/* Integer dot products of a block of 16 rows with AVX2; interface: dot_plain.h. */
#pragma once
#include "rows_avx2.h"

enum { VECTORS_PER_PASS = 2 };

INLINE __m256i add_product16(__m256i sum, __m256i weights, const int8_t *x) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, four_bytes(x)));
}
/* 256 * high + low of sums of pairs of columns. */
INLINE __m256i join_planes(__m256i high, __m256i low) {
    return _mm256_add_epi32(_mm256_madd_epi16(high, _mm256_set1_epi16(256)),
                            _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
}

/* Keep the compiler from moving the computation of a register past this point: it would compute all
   sums of one vector after those of another, and spill the operands that they share. */
INLINE void pin(__m256i *v) { __asm__ volatile("" : "+x"(*v) : : "memory"); }

/* A pair of columns gives at most 15 * 128 * 2 in either plane, so that the eight pairs of a lane fit
   int16. With `numbers`, below 32, four pairs do. */
INLINE void dot_4_bits(const uint8_t *values, const uint8_t *numbers, const QuantizedRows *x, size_t block,
                       int n, int half, Ints16 *sums) {
    const __m256i mask = _mm256_set1_epi8(15);
    const int together = numbers ? 2 : 4;
    const int8_t *x_high = x->high + block * BLOCK_COLS, *x_low = x->low + block * BLOCK_COLS;
    const size_t row = (size_t)x->blocks * BLOCK_COLS;
    Ints16 high[VECTORS_PER_PASS], low[VECTORS_PER_PASS];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        if (j % together == 0) {
#pragma GCC unroll 4
            for (int v = 0; v < n; v++)
                high[v].first = high[v].second = low[v].first = low[v].second = _mm256_setzero_si256();
        }
        __m256i both_0 = _mm256_loadu_si256((const __m256i *)(values + 64 * j));
        __m256i both_1 = _mm256_loadu_si256((const __m256i *)(values + 64 * j + 32));
#pragma GCC unroll 2
        for (int upper = half == 1; upper < (half == 0 ? 1 : 2); upper++) {
            __m256i q_0 = _mm256_and_si256(upper ? _mm256_srli_epi16(both_0, 4) : both_0, mask);
            __m256i q_1 = _mm256_and_si256(upper ? _mm256_srli_epi16(both_1, 4) : both_1, mask);
            if (numbers) q_0 = number_of(q_0, numbers), q_1 = number_of(q_1, numbers);
#pragma GCC unroll 4
            for (int v = 0; v < n; v++) {
                size_t at = v * row + 4 * j + 16 * upper;
                __m256i h = four_bytes(x_high + at), l = four_bytes(x_low + at);
                high[v].first = _mm256_add_epi16(high[v].first, _mm256_maddubs_epi16(q_0, h));
                high[v].second = _mm256_add_epi16(high[v].second, _mm256_maddubs_epi16(q_1, h));
                low[v].first = _mm256_add_epi16(low[v].first, _mm256_maddubs_epi16(q_0, l));
                low[v].second = _mm256_add_epi16(low[v].second, _mm256_maddubs_epi16(q_1, l));
                if (n > 1) pin(&high[v].first), pin(&high[v].second);
                if (n > 1) pin(&low[v].first), pin(&low[v].second);
            }
        }
        if (j % together < together - 1) continue;
#pragma GCC unroll 4
        for (int v = 0; v < n; v++) {
            Ints16 joined = {join_planes(high[v].first, low[v].first),
                             join_planes(high[v].second, low[v].second)};
            if (j >= together) {
                joined.first = _mm256_add_epi32(joined.first, sums[v].first);
                joined.second = _mm256_add_epi32(joined.second, sums[v].second);
            }
            sums[v] = joined;
        }
    }
}

/* Weights are widened to int16: a register is four columns of four rows, so that a row's sum is that
   of two lanes. */
INLINE void dot_int8(const uint8_t *values, const QuantizedRows *x, size_t block, int n, int half,
                     Ints16 *sums) {
    const int16_t *x_whole = x->whole + block * BLOCK_COLS;
    const size_t row = (size_t)x->blocks * BLOCK_COLS;
    __m256i quarter[VECTORS_PER_PASS][4];
#pragma GCC unroll 4
    for (int v = 0; v < n; v++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) quarter[v][i] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int j = half == 1 ? 4 : 0; j < (half == 0 ? 4 : 8); j++) {
        __m256i weights[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            weights[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(values + 64 * j) + i));
#pragma GCC unroll 4
        for (int v = 0; v < n; v++) {
            int64_t columns;
            memcpy(&columns, x_whole + v * row + 4 * j, 8);
            __m256i q = _mm256_set1_epi64x(columns);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                quarter[v][i] = _mm256_add_epi32(quarter[v][i], _mm256_madd_epi16(weights[i], q));
                if (n > 1) pin(&quarter[v][i]);
            }
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < n; v++) {
        /* Rows 0 1 4 5 | 2 3 6 7, put in order. */
        __m256i first = _mm256_hadd_epi32(quarter[v][0], quarter[v][1]);
        __m256i second = _mm256_hadd_epi32(quarter[v][2], quarter[v][3]);
        sums[v].first = _mm256_permute4x64_epi64(first, 0xd8);
        sums[v].second = _mm256_permute4x64_epi64(second, 0xd8);
    }
}
