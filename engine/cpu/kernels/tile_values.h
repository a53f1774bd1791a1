/* The values of tiles: what their bits stand for, and how they are taken out of their planes. */
#pragma once
#include "common.h"
#include "matrix_layout.h"
#include "vector.h"

/* What the bits of a value stand for: number `bits`, less `center`. `numbers` NULL: the bits are the
   number. Numbers are at most `largest`. The bits of INT8 are signed, with 128 added. */
typedef struct {
    int bits, center, largest;
    const uint8_t *numbers;
} Values;

/* Of GGUF's IQ types, those of IQ1 times eight; twice the numbers of e2m1 (OCP Microscaling Formats
   1.0). Each plus its center; a table has 16 bytes for instructions that look up. */
static const uint8_t iq1_numbers[16] = {0, 2, 8, 10, 16, 18}; /* -9 -7 -1 1 7 9 */
static const uint8_t iq2_numbers[16] = {51, 68, 86, 43, 35, 18, 0, 43};
static const uint8_t iq3_xxs_numbers[16] = {66, 74, 82, 90, 98, 106, 114, 124,
                                            58, 50, 42, 34, 26, 18,  10,  0};
static const uint8_t iq3_s_numbers[16] = {16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0};
static const uint8_t iq4_numbers[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                        129, 141, 153, 166, 181, 197, 217, 241};
static const uint8_t e2m1_numbers[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                         12, 11, 10, 9,  8,  6,  4,  0};

INLINE Values values_of(int format, int has_minimum) {
    const int bits = value_bits(format), largest = (1 << bits) - 1;
    switch (format) {
        case FORMAT_IQ1: return (Values){bits, 9, 18, iq1_numbers};
        case FORMAT_IQ2: return (Values){bits, 43, 86, iq2_numbers};
        case FORMAT_IQ3_XXS: return (Values){bits, 62, 124, iq3_xxs_numbers};
        case FORMAT_IQ3_S: return (Values){bits, 15, 30, iq3_s_numbers};
        case FORMAT_IQ4: return (Values){bits, 128, 241, iq4_numbers};
        case FORMAT_E2M1: return (Values){bits, 12, 24, e2m1_numbers};
        case FORMAT_INT8: return (Values){bits, 128, largest, NULL};
        case FORMAT_INT2: return (Values){bits, has_minimum ? 0 : 1, largest, NULL};
        default: return (Values){bits, has_minimum ? 0 : (largest + 1) / 2, largest, NULL};
    }
}

/* Column `col` of row r of a block, signed: the reference for the functions below. */
INLINE int value_at(Values v, const uint8_t *block, int r, int col) {
    const uint8_t *at = block + 4 * r + col % 4;
    const int j = col / 4;
    if (v.bits == 8) return (int8_t)at[64 * j];
    int q = v.bits >= 4 ? at[64 * (j % 4)] >> 4 * (j / 4) & 15 : 0, bits = v.bits & 4;
    at += 64 * bits;
    if (v.bits & 2) q |= (at[64 * (j / 4)] >> 2 * (j % 4) & 3) << bits, at += 128, bits += 2;
    if (v.bits & 1) q |= (at[0] >> j & 1) << bits;
    return (v.numbers ? v.numbers[q] : q) - v.center;
}

/* For the low four bits of every byte the byte of `numbers`; the others are zero. */
INLINE Uints look_up(Uints bits, const uint8_t *numbers) {
#if defined(__AVX512VNNI__)
    const __m128i table = _mm_loadu_si128((const __m128i *)numbers);
    return (Uints)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)bits);
#elif defined(__AVX2__)
    const __m128i table = _mm_loadu_si128((const __m128i *)numbers);
    return (Uints)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)bits);
#elif defined(__aarch64__)
    return (Uints)vqtbl1q_u8(vld1q_u8(numbers), (uint8x16_t)bits);
#else
    uint8_t bytes[4 * LANES];
    memcpy(bytes, &bits, sizeof bytes);
    for (int i = 0; i < 4 * LANES; i++) bytes[i] = numbers[bytes[i]];
    return (Uints)load_ints(bytes);
#endif
}

/* Columns 4j .. 4j+3 of rows r .. r+LANES of a block, one byte each, with the center added. */
INLINE Uints unsigned_columns(Values v, const uint8_t *block, int j, int r) {
    const uint8_t *at = block + 4 * r;
    if (v.bits == 8) return (Uints)load_ints(at + 64 * j) ^ 0x80808080;
    Uints q = {0};
    const int bits = v.bits & 4;
    if (bits) q = (Uints)load_ints(at + 64 * (j % 4)) >> 4 * (j / 4) & 0x0f0f0f0f, at += 256;
    if (v.bits & 2) {
        q |= ((Uints)load_ints(at + 64 * (j / 4)) >> 2 * (j % 4) & 0x03030303) << bits;
        at += 128;
    }
    if (v.bits & 1) q |= ((Uints)load_ints(at) >> j & 0x01010101) << (v.bits & 6);
    return v.numbers ? look_up(q, v.numbers) : q;
}

/* The same, signed. The bytes wrap, which only unsigned ones may. */
INLINE Ints signed_columns(Values v, const uint8_t *block, int j, int r) {
    typedef uint8_t Bytes __attribute__((vector_size(4 * LANES)));
    if (v.bits == 8) return load_ints(block + 64 * j + 4 * r);
    return (Ints)((Bytes)unsigned_columns(v, block, j, r) - (uint8_t)v.center);
}

/* Calls FUNCTION(format, has_minimum) with constants, those of a tiled matrix. */
#define FOR_FORMAT(m, FUNCTION)                                         \
    switch ((m)->format) {                                              \
        FORMAT_CASE(m, FUNCTION, FORMAT_INT2)                           \
        FORMAT_CASE(m, FUNCTION, FORMAT_INT3)                           \
        FORMAT_CASE(m, FUNCTION, FORMAT_INT4)                           \
        FORMAT_CASE(m, FUNCTION, FORMAT_INT5)                           \
        FORMAT_CASE(m, FUNCTION, FORMAT_INT6)                           \
        FORMAT_CASE(m, FUNCTION, FORMAT_INT8)                           \
        case FORMAT_IQ1: FUNCTION(FORMAT_IQ1, 0); break;                \
        case FORMAT_IQ2: FUNCTION(FORMAT_IQ2, 0); break;                \
        case FORMAT_IQ3_XXS: FUNCTION(FORMAT_IQ3_XXS, 0); break;        \
        case FORMAT_IQ3_S: FUNCTION(FORMAT_IQ3_S, 0); break;            \
        case FORMAT_IQ4: FUNCTION(FORMAT_IQ4, 0); break;                \
        case FORMAT_E2M1: FUNCTION(FORMAT_E2M1, 0); break;              \
    }
#define FORMAT_CASE(m, FUNCTION, format) \
    case format:                         \
        if ((m)->has_minimum)            \
            FUNCTION(format, 1);         \
        else                             \
            FUNCTION(format, 0);         \
        break;
