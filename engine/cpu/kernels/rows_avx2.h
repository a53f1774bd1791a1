/* Sums of 16 rows with AVX2, FMA and F16C: two registers; interface: dot_plain.h. */
#pragma once
#include <immintrin.h>

#include "common.h"
#include "numbers.h"
#include "quantized_rows.h"

typedef struct {
    __m256i first, second;
} Ints16;
typedef struct {
    __m256 first, second;
} Floats16;

INLINE void prefetch(const uint8_t *at) { _mm_prefetch((const char *)at, _MM_HINT_T0); }

INLINE Floats16 load_floats(const float *at) {
    return (Floats16){_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
}
INLINE void store_floats(float *at, Floats16 v) {
    _mm256_storeu_ps(at, v.first);
    _mm256_storeu_ps(at + 8, v.second);
}
INLINE Floats16 load_halves(const uint16_t *at) {
    return (Floats16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at)),
                      _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at + 1))};
}
INLINE __m256 eight_powers(const uint8_t *at) {
    const __m256i e8m0 = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at));
    /* The smallest power is subnormal. */
    const __m256i is_zero = _mm256_cmpeq_epi32(e8m0, _mm256_setzero_si256());
    const __m256i zeros = _mm256_and_si256(is_zero, _mm256_set1_epi32(0x00400000));
    const __m256i bits = _mm256_or_si256(_mm256_slli_epi32(e8m0, 23), zeros);
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5f));
}
INLINE Floats16 load_powers(const uint8_t *at) {
    return (Floats16){eight_powers(at), eight_powers(at + 8)};
}
/* Bytes up to 15 as the numbers that they stand for. */
INLINE __m256i number_of(__m256i bits, const uint8_t *numbers) {
    const __m128i table = _mm_loadu_si128((const __m128i *)numbers);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), bits);
}
INLINE Floats16 multiply(Floats16 a, Floats16 b) {
    return (Floats16){_mm256_mul_ps(a.first, b.first), _mm256_mul_ps(a.second, b.second)};
}
INLINE Floats16 add_scaled(Ints16 ints, float scale, Floats16 table, Floats16 sum) {
    __m256 s = _mm256_set1_ps(scale);
    __m256 first = _mm256_mul_ps(_mm256_cvtepi32_ps(ints.first), s);
    __m256 second = _mm256_mul_ps(_mm256_cvtepi32_ps(ints.second), s);
    return (Floats16){_mm256_fmadd_ps(first, table.first, sum.first),
                      _mm256_fmadd_ps(second, table.second, sum.second)};
}
INLINE Floats16 add_multiple(float factor, Floats16 table, Floats16 sum) {
    __m256 f = _mm256_set1_ps(factor);
    return (Floats16){_mm256_fmadd_ps(f, table.first, sum.first),
                      _mm256_fmadd_ps(f, table.second, sum.second)};
}
INLINE Ints16 subtract(Ints16 ints, int32_t number) {
    __m256i n = _mm256_set1_epi32(number);
    return (Ints16){_mm256_sub_epi32(ints.first, n), _mm256_sub_epi32(ints.second, n)};
}

/* The four bytes, or two int16, at `at` in every lane. */
INLINE __m256i four_bytes(const void *at) {
    int32_t bytes;
    memcpy(&bytes, at, 4);
    return _mm256_set1_epi32(bytes);
}
