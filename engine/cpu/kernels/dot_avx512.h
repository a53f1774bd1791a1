/* Integer dot products of a block of 16 rows with AVX-512 VNNI; interface: dot_plain.h. The 16 rows
   are one register of int32 sums. */
#pragma once
#include <immintrin.h>

#include "common.h"
#include "numbers.h"
#include "quantized_rows.h"

enum { VECTORS_PER_PASS = 8 };

typedef __m512i Ints16;
typedef __m512 Floats16;

INLINE void prefetch(const uint8_t *at) { _mm_prefetch((const char *)at, _MM_HINT_T0); }

INLINE Floats16 load_floats(const float *at) { return _mm512_loadu_ps(at); }
INLINE void store_floats(float *at, Floats16 v) { _mm512_storeu_ps(at, v); }
INLINE Floats16 load_halves(const uint16_t *at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
}
INLINE Floats16 load_powers(const uint8_t *at) {
    const __m512i e8m0 = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
    /* The smallest power is subnormal. */
    const __m512i zeros = _mm512_set1_epi32(0x00400000);
    const __m512i bits = _mm512_slli_epi32(e8m0, 23);
    const __mmask16 is_zero = _mm512_testn_epi32_mask(e8m0, e8m0);
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, is_zero, zeros)),
                         _mm512_set1_ps(0.5f));
}
INLINE Floats16 multiply(Floats16 a, Floats16 b) { return _mm512_mul_ps(a, b); }
INLINE Floats16 add_scaled(Ints16 ints, float scale, Floats16 table, Floats16 sum) {
    __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(ints), _mm512_set1_ps(scale));
    return _mm512_fmadd_ps(scaled, table, sum);
}
INLINE Floats16 add_multiple(float factor, Floats16 table, Floats16 sum) {
    return _mm512_fmadd_ps(_mm512_set1_ps(factor), table, sum);
}
INLINE Ints16 subtract(Ints16 ints, int32_t number) {
    return _mm512_sub_epi32(ints, _mm512_set1_epi32(number));
}

/* The four bytes at `at` in every lane. */
INLINE __m512i four_columns(const int8_t *at) {
    int32_t bytes;
    memcpy(&bytes, at, 4);
    return _mm512_set1_epi32(bytes);
}
INLINE Ints16 join_planes(__m512i high, __m512i low) {
    return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

INLINE void dot_4_bits(const uint8_t *values, const uint8_t *numbers, const QuantizedRows *x, size_t block,
                       int n, int half, Ints16 *sums) {
    const __m512i table = numbers ? _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)numbers))
                                  : _mm512_setzero_si512();
    const __m512i mask = _mm512_set1_epi8(15);
    __m512i high[VECTORS_PER_PASS], low[VECTORS_PER_PASS];
#pragma GCC unroll 8
    for (int v = 0; v < n; v++) high[v] = low[v] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i both = _mm512_loadu_si512(values + 64 * j);
        __m512i first = _mm512_and_si512(both, mask);
        __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        if (numbers) first = _mm512_shuffle_epi8(table, first);
        if (numbers) second = _mm512_shuffle_epi8(table, second);
#pragma GCC unroll 8
        for (int v = 0; v < n; v++) {
            size_t at = (block + (size_t)v * x->blocks) * BLOCK_COLS + 4 * j;
            if (half != 1) high[v] = _mm512_dpbusd_epi32(high[v], first, four_columns(x->high + at));
            if (half != 1) low[v] = _mm512_dpbusd_epi32(low[v], first, four_columns(x->low + at));
            if (half == 0) continue;
            high[v] = _mm512_dpbusd_epi32(high[v], second, four_columns(x->high + at + 16));
            low[v] = _mm512_dpbusd_epi32(low[v], second, four_columns(x->low + at + 16));
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < n; v++) sums[v] = join_planes(high[v], low[v]);
}

/* The instruction multiplies unsigned by signed bytes: 128 is added to the weights, and 128 times the
   sum of the activations subtracted. */
INLINE void dot_int8(const uint8_t *values, const QuantizedRows *x, size_t block, int n, int half,
                     Ints16 *sums) {
    const __m512i flip = _mm512_set1_epi8((char)128);
    __m512i high[VECTORS_PER_PASS], low[VECTORS_PER_PASS];
#pragma GCC unroll 8
    for (int v = 0; v < n; v++) high[v] = low[v] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = half == 1 ? 4 : 0; j < (half == 0 ? 4 : 8); j++) {
        __m512i weights = _mm512_xor_si512(_mm512_loadu_si512(values + 64 * j), flip);
#pragma GCC unroll 8
        for (int v = 0; v < n; v++) {
            size_t at = (block + (size_t)v * x->blocks) * BLOCK_COLS + 4 * j;
            high[v] = _mm512_dpbusd_epi32(high[v], weights, four_columns(x->high + at));
            low[v] = _mm512_dpbusd_epi32(low[v], weights, four_columns(x->low + at));
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < n; v++) {
        size_t at = block + (size_t)v * x->blocks;
        int32_t sum = half == 0   ? x->half_sum[at]
                      : half == 1 ? x->sum[at] - x->half_sum[at]
                                  : x->sum[at];
        sums[v] = subtract(join_planes(high[v], low[v]), 128 * sum);
    }
}
