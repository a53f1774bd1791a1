/* Integer dot products of a block of 16 rows with AVX-VNNI; interface: dot_plain.h. */
#pragma once
#include "rows_avx2.h"

enum { VECTORS_PER_PASS = 2 };

/* Unsigned weights of four columns. */
typedef struct {
    __m256i first, second;
} Weights;

/* Where the planes of a block's activations are: those of the first vector, and the distance to the
   next vector's. */
typedef struct {
    const int8_t *high, *low;
    size_t distance;
} Columns;

/* Sums of the planes of n vectors. */
typedef struct {
    Ints16 high[VECTORS_PER_PASS], low[VECTORS_PER_PASS];
} Planes;

INLINE Columns columns_of(const QuantizedRows *x, size_t block) {
    return (Columns){x->high + block * BLOCK_COLS, x->low + block * BLOCK_COLS,
                     (size_t)x->blocks * BLOCK_COLS};
}

INLINE Weights load_weights(const uint8_t *at) {
    return (Weights){_mm256_loadu_si256((const __m256i *)at),
                     _mm256_loadu_si256((const __m256i *)(at + 32))};
}

INLINE void clear(Planes *p, int n) {
#pragma GCC unroll 2
    for (int v = 0; v < n; v++) {
        p->high[v].first = p->high[v].second = _mm256_setzero_si256();
        p->low[v].first = p->low[v].second = _mm256_setzero_si256();
    }
}

/* Keep the compiler from moving the computation of a register past this point: it would compute all
   sums of one vector after those of another, and spill the operands that they share. */
INLINE void pin(Ints16 *v) { __asm__ volatile("" : "+x"(v->first), "+x"(v->second) : : "memory"); }

INLINE void add_product(Ints16 *sum, Weights w, __m256i x) {
    sum->first = _mm256_dpbusd_avx_epi32(sum->first, w.first, x);
    sum->second = _mm256_dpbusd_avx_epi32(sum->second, w.second, x);
}

/* Add weights of four columns times the activations from column `at` of the block on. */
INLINE void add_columns(Planes *p, Weights w, Columns x, int at, int n) {
#pragma GCC unroll 2
    for (int v = 0; v < n; v++) {
        add_product(&p->high[v], w, four_bytes(x.high + at + v * x.distance));
        add_product(&p->low[v], w, four_bytes(x.low + at + v * x.distance));
        if (n > 1) pin(&p->high[v]), pin(&p->low[v]);
    }
}

/* 256 * high + low. */
INLINE __m256i join_planes(__m256i high, __m256i low) {
    return _mm256_add_epi32(_mm256_slli_epi32(high, 8), low);
}
INLINE void store_sums(const Planes *p, int n, Ints16 *sums) {
#pragma GCC unroll 2
    for (int v = 0; v < n; v++) {
        sums[v].first = join_planes(p->high[v].first, p->low[v].first);
        sums[v].second = join_planes(p->high[v].second, p->low[v].second);
    }
}

/* The four bits of every byte from bit `shift` on. */
INLINE Weights four_bits(Weights w, int shift, const uint8_t *numbers) {
    const __m256i mask = _mm256_set1_epi8(15);
    w = (Weights){_mm256_and_si256(_mm256_srli_epi16(w.first, shift), mask),
                  _mm256_and_si256(_mm256_srli_epi16(w.second, shift), mask)};
    return numbers ? (Weights){number_of(w.first, numbers), number_of(w.second, numbers)} : w;
}

INLINE void dot_4_bits(const uint8_t *values, const uint8_t *numbers, const QuantizedRows *x, size_t block,
                       int n, int half, Ints16 *sums) {
    const Columns columns = columns_of(x, block);
    Planes planes;
    clear(&planes, n);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const Weights both = load_weights(values + 64 * j);
        if (half != 1) add_columns(&planes, four_bits(both, 0, numbers), columns, 4 * j, n);
        if (half != 0) add_columns(&planes, four_bits(both, 4, numbers), columns, 4 * j + 16, n);
    }
    store_sums(&planes, n, sums);
}

/* The instruction multiplies unsigned by signed bytes: 128 is added to the weights, and 128 times the
   sum of the activations subtracted. */
INLINE void dot_int8(const uint8_t *values, const QuantizedRows *x, size_t block, int n, int half,
                     Ints16 *sums) {
    const __m256i flip = _mm256_set1_epi8((char)128);
    const Columns columns = columns_of(x, block);
    Planes planes;
    clear(&planes, n);
#pragma GCC unroll 8
    for (int j = half == 1 ? 4 : 0; j < (half == 0 ? 4 : 8); j++) {
        Weights w = load_weights(values + 64 * j);
        w = (Weights){_mm256_xor_si256(w.first, flip), _mm256_xor_si256(w.second, flip)};
        add_columns(&planes, w, columns, 4 * j, n);
    }
    store_sums(&planes, n, sums);
#pragma GCC unroll 2
    for (int v = 0; v < n; v++) {
        const size_t at = block + (size_t)v * x->blocks;
        const int32_t sum = half == 0   ? x->half_sum[at]
                            : half == 1 ? x->sum[at] - x->half_sum[at]
                                        : x->sum[at];
        sums[v] = subtract(sums[v], 128 * sum);
    }
}
