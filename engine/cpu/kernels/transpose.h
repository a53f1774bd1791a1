/* Transposition of the rows of a tile. */
#pragma once
#include <stddef.h>

#include "vector.h"

/* Transpose 16 rows of four elements, `row_bytes` apart, to columns [4][16], `col_stride` floats
   apart. Each 128 bits of a register come from another row, so that parts of 4x4 are transposed at
   once. */
INLINE void transpose_columns(const void *rows, ptrdiff_t row_bytes, float *to, int col_stride) {
    for (int first = 0; first < 16; first += LANES) {
        Floats r[4];
        for (int i = 0; i < 4; i++) {
            const char *at = (const char *)rows + (first + i) * row_bytes;
#if defined(__AVX512VNNI__)
            __m512 row = _mm512_castps128_ps512(_mm_loadu_ps((const float *)at));
            row = _mm512_insertf32x4(row, _mm_loadu_ps((const float *)(at + 4 * row_bytes)), 1);
            row = _mm512_insertf32x4(row, _mm_loadu_ps((const float *)(at + 8 * row_bytes)), 2);
            r[i] = _mm512_insertf32x4(row, _mm_loadu_ps((const float *)(at + 12 * row_bytes)), 3);
#elif defined(__AVX2__)
            __m256 row = _mm256_castps128_ps256(_mm_loadu_ps((const float *)at));
            r[i] = _mm256_insertf128_ps(row, _mm_loadu_ps((const float *)(at + 4 * row_bytes)), 1);
#else
            r[i] = load_floats(at);
#endif
        }
        Floats low01 = unpack_low(r[0], r[1]), high01 = unpack_high(r[0], r[1]);
        Floats low23 = unpack_low(r[2], r[3]), high23 = unpack_high(r[2], r[3]);
        store_floats(to + first, join_low(low01, low23));
        store_floats(to + first + col_stride, join_high(low01, low23));
        store_floats(to + first + 2 * col_stride, join_low(high01, high23));
        store_floats(to + first + 3 * col_stride, join_high(high01, high23));
    }
}
