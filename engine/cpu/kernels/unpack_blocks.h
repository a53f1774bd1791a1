/* Thirty-two columns of one row, out of the blocks of GGUF files. Layouts and formulas are those of
   weights/formats/ggml_dequantize.py. */
#pragma once
#include "common.h"

/* 32 values, each as the bits that a target stores (tile_values.h), of INT8 a signed byte, and their
   tables. These are those of the two halves, 16 columns each; they are equal if a group has 32 columns
   or more. Of targets with factors, which are fp16, scale and minimum are integers. */
typedef struct {
    uint8_t values[32];
    float scale[2], minimum[2];
    uint16_t scale_factor, minimum_factor;
} Columns;

/* The functions `unpack_TYPE` fill `to` with the columns 32 * part .. 32 * part + 32 of a block and
   return 0 if its scales are finite, else 1. */

/* With a larger scale the largest element would be infinite. */
enum { LARGEST_E8M0 = 252 };

INLINE uint16_t load_16(const uint8_t *at) {
    uint16_t bits;
    memcpy(&bits, at, 2);
    return bits;
}
INLINE uint32_t load_32(const uint8_t *at) {
    uint32_t bits;
    memcpy(&bits, at, 4);
    return bits;
}

INLINE int is_finite_fp16(uint16_t bits) { return (bits & 0x7c00) != 0x7c00; }

INLINE void set_scales(Columns *to, float first, float second) {
    to->scale[0] = first;
    to->scale[1] = second;
}

INLINE void set_minimums(Columns *to, float first, float second) {
    to->minimum[0] = first;
    to->minimum[1] = second;
}

/* fp16 numbers; the second is subtracted. */
INLINE void set_factors(Columns *to, uint16_t scale, uint16_t minimum) {
    to->scale_factor = scale;
    to->minimum_factor = minimum ^ 0x8000;
}

/* One fp16 scale of all columns. Returns whether it is not finite. */
INLINE int set_half(Columns *to, uint16_t d) {
    set_scales(to, fp16_to_float(d), fp16_to_float(d));
    return !is_finite_fp16(d);
}

/* The same with a minimum. */
INLINE int set_two_halves(Columns *to, uint16_t d, uint16_t m) {
    set_minimums(to, fp16_to_float(m), fp16_to_float(m));
    return set_half(to, d) | !is_finite_fp16(m);
}

/* The factor of the scales. */
INLINE int set_factor(Columns *to, uint16_t d) {
    set_factors(to, d, 0);
    return !is_finite_fp16(d);
}

/* The same bits of eight bytes; the mask removes those that are shifted in from the next byte. */
INLINE uint64_t bits_of_8(const uint8_t *bytes, int shift, uint64_t mask) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    return word >> shift & mask;
}

/* `byte` eight times. */
INLINE uint64_t eight(uint8_t byte) { return byte * (uint64_t)0x0101010101010101; }

/* The same bits of 32 bytes. */
INLINE void store_bits(const uint8_t *bytes, int shift, uint8_t mask, uint8_t *values) {
    for (int i = 0; i < 32; i += 8) {
        const uint64_t word = bits_of_8(bytes + i, shift, eight(mask));
        memcpy(values + i, &word, 8);
    }
}

/* `num` values of 4 bits, as most types of 32 columns store them: the first half in the low halves. */
INLINE void split_nibbles(const uint8_t *packed, int num, uint8_t *values) {
    for (int i = 0; i < num / 2; i++) {
        values[i] = packed[i] & 15;
        values[num / 2 + i] = packed[i] >> 4;
    }
}

/* half d, bit[128]: d * (2 * bit - 1). */
INLINE int unpack_q1_0(const uint8_t *block, int part, Columns *to) {
    const uint32_t word = load_32(block + 2 + 4 * part);
    for (int i = 0; i < 32; i++) to->values[i] = (uint8_t)((word >> i & 1) << 1);
    return set_half(to, load_16(block));
}

/* half d, 4-bit q[32]: d * (q - 8). */
INLINE int unpack_q4_0(const uint8_t *block, int part, Columns *to) {
    (void)part;
    split_nibbles(block + 2, 32, to->values);
    return set_half(to, load_16(block));
}

/* half d, half m, 4-bit q[32]: d * q + m. */
INLINE int unpack_q4_1(const uint8_t *block, int part, Columns *to) {
    (void)part;
    split_nibbles(block + 4, 32, to->values);
    return set_two_halves(to, load_16(block), load_16(block + 2));
}

/* Adds 16 to the values whose bit is set, the lowest bit first. */
INLINE void add_fifth_bits(uint8_t *values, const uint8_t *bits) {
    const uint32_t word = load_32(bits);
    for (int i = 0; i < 32; i++) values[i] = (uint8_t)(values[i] | (word >> i & 1) << 4);
}

/* half d, fifth bits[32], 4-bit q[32]: d * (q - 16). */
INLINE int unpack_q5_0(const uint8_t *block, int part, Columns *to) {
    (void)part;
    split_nibbles(block + 6, 32, to->values);
    add_fifth_bits(to->values, block + 2);
    return set_half(to, load_16(block));
}

/* half d, half m, fifth bits[32], 4-bit q[32]: d * q + m. */
INLINE int unpack_q5_1(const uint8_t *block, int part, Columns *to) {
    (void)part;
    split_nibbles(block + 8, 32, to->values);
    add_fifth_bits(to->values, block + 4);
    return set_two_halves(to, load_16(block), load_16(block + 2));
}

/* half d, int8 q[32]: d * q. */
INLINE int unpack_q8_0(const uint8_t *block, int part, Columns *to) {
    (void)part;
    memcpy(to->values, block + 2, 32);
    return set_half(to, load_16(block));
}

/* float d, int8 q[256]: d * q. */
INLINE int unpack_q8_k(const uint8_t *block, int part, Columns *to) {
    const float d = float_of_bits(load_32(block));
    memcpy(to->values, block + 4 + 32 * part, 32);
    set_scales(to, d, d);
    /* The largest weight of the block is finite, too. */
    return !(fabsf(d) * 128 <= 3.4028235e38f);
}

/* half d, 4-bit q[32]: d * table[q]. */
INLINE int unpack_iq4_nl(const uint8_t *block, int part, Columns *to) {
    return unpack_q4_0(block, part, to);
}

/* e8m0 d, e2m1 q[32]: 2^(d - 127) * q. The scale is the byte d. */
INLINE int unpack_mxfp4(const uint8_t *block, int part, Columns *to) {
    (void)part;
    split_nibbles(block + 1, 32, to->values);
    set_scales(to, (float)block[0], (float)block[0]);
    return block[0] > LARGEST_E8M0;
}

/* e4m3 scale[4] without sign, of which 0x7f is 0, e2m1 q[64]: scale * q. The scales are bytes. */
INLINE int unpack_nvfp4(const uint8_t *block, int part, Columns *to) {
    for (int half = 0; half < 2; half++) {
        const uint8_t bits = block[2 * part + half];
        to->scale[half] = bits == 0x7f ? 0 : (float)(bits & 0x7f);
        split_nibbles(block + 4 + 8 * (2 * part + half), 16, to->values + 16 * half);
    }
    return 0;
}

/* 4+4-bit scale and minimum[16], 2-bit q[256], half d, half dmin:
   d * scale * q - dmin * minimum. */
INLINE int unpack_q2_k(const uint8_t *block, int part, Columns *to) {
    const uint8_t *scales = block + 2 * part;
    store_bits(block + 16 + 32 * (part / 4), 2 * (part % 4), 3, to->values);
    set_scales(to, (float)(scales[0] & 15), (float)(scales[1] & 15));
    set_minimums(to, (float)(scales[0] >> 4), (float)(scales[1] >> 4));
    uint16_t d = load_16(block + 80), dmin = load_16(block + 82);
    set_factors(to, d, dmin);
    return !(is_finite_fp16(d) && is_finite_fp16(dmin));
}

/* Scale `i` of the 16 scales of 6 bits in 12 bytes, less 32. */
INLINE float q3_scale(const uint8_t *packed, int i) {
    int low = packed[i % 8] >> (i / 8 * 4) & 15, high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
    return (float)((low | high << 4) - 32);
}

/* High bit[256], 2-bit q[256], 6-bit scale[16], half d: d * (scale - 32) * (q - 4). */
INLINE int unpack_q3_k(const uint8_t *block, int part, Columns *to) {
    const uint8_t *packed = block + 32 + 32 * (part / 4);
    for (int i = 0; i < 32; i += 8) {
        const uint64_t low = bits_of_8(packed + i, 2 * (part % 4), eight(3));
        const uint64_t word = low | bits_of_8(block + i, part, eight(1)) << 2;
        memcpy(to->values + i, &word, 8);
    }
    set_scales(to, q3_scale(block + 96, 2 * part), q3_scale(block + 96, 2 * part + 1));
    return set_factor(to, load_16(block + 108));
}

/* half d, half dmin, 6-bit scale and minimum[8] in 12 bytes: the tables of Q4_K and Q5_K. */
INLINE int unpack_k_tables(const uint8_t *block, int part, Columns *to) {
    const uint8_t *packed = block + 4;
    int scale, minimum;
    if (part < 4) {
        scale = packed[part] & 63;
        minimum = packed[4 + part] & 63;
    } else {
        scale = (packed[4 + part] & 15) | packed[part - 4] >> 6 << 4;
        minimum = packed[4 + part] >> 4 | packed[part] >> 6 << 4;
    }
    uint16_t d = load_16(block), dmin = load_16(block + 2);
    set_scales(to, (float)scale, (float)scale);
    set_minimums(to, (float)minimum, (float)minimum);
    set_factors(to, d, dmin);
    return !(is_finite_fp16(d) && is_finite_fp16(dmin));
}

/* Tables, 4-bit q[256]: d * scale * q - dmin * minimum. */
INLINE int unpack_q4_k(const uint8_t *block, int part, Columns *to) {
    store_bits(block + 16 + 32 * (part / 2), part % 2 * 4, 15, to->values);
    return unpack_k_tables(block, part, to);
}

/* Tables, fifth bits[256], 4-bit q[256], as Q4_K. */
INLINE int unpack_q5_k(const uint8_t *block, int part, Columns *to) {
    const uint8_t *packed = block + 48 + 32 * (part / 2), *fifth = block + 16;
    int shift = part % 2 * 4;
    for (int i = 0; i < 32; i++)
        to->values[i] = (uint8_t)((packed[i] >> shift & 15) | (fifth[i] >> part & 1) << 4);
    return unpack_k_tables(block, part, to);
}

/* 4-bit q[256], upper 2 bits[256], int8 scale[16], half d: d * scale * (q - 32). */
INLINE int unpack_q6_k(const uint8_t *block, int part, Columns *to) {
    const uint8_t *low = block + 64 * (part / 4) + 32 * (part % 2);
    const uint8_t *high = block + 128 + 32 * (part / 4);
    int low_shift = part % 4 / 2 * 4, high_shift = part % 4 * 2;
    for (int i = 0; i < 32; i++)
        to->values[i] = (uint8_t)((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4);
    const int8_t *scales = (const int8_t *)block + 192 + 2 * part;
    set_scales(to, (float)scales[0], (float)scales[1]);
    return set_factor(to, load_16(block + 208));
}

/* half d, upper 2 bits and lower 4 bits of scale[8], 4-bit q[256]: d * (scale - 32) * table[q]. */
INLINE int unpack_iq4_xs(const uint8_t *block, int part, Columns *to) {
    int low = block[4 + part / 2] >> (part % 2 * 4) & 15;
    int high = load_16(block + 2) >> (2 * part) & 3;
    float scale = (float)((low | high << 4) - 32);
    split_nibbles(block + 8 + 16 * part, 32, to->values);
    set_scales(to, scale, scale);
    return set_factor(to, load_16(block));
}

/* Element `i` of TQ1_0: a byte b is the fraction b / 256, whose digits to the base 3 are those of five
   elements, of the last four bytes of four. */
INLINE uint8_t ternary_digit(const uint8_t *block, int i) {
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    const uint8_t *run = block;
    int length = 32;
    if (i >= 240)
        run += 48, length = 4, i -= 240;
    else if (i >= 160)
        run += 32, length = 16, i -= 160;
    const uint8_t fraction = (uint8_t)(run[i % length] * powers[i / length]);
    return (uint8_t)(fraction * 3 >> 8);
}

/* Five digits a byte[48], four digits a byte[4], half d: d * (digit - 1). */
INLINE int unpack_tq1_0(const uint8_t *block, int part, Columns *to) {
    for (int i = 0; i < 32; i++) to->values[i] = ternary_digit(block, 32 * part + i);
    return set_half(to, load_16(block + 52));
}

/* 2-bit q[256], half d: d * (q - 1). */
INLINE int unpack_tq2_0(const uint8_t *block, int part, Columns *to) {
    store_bits(block + 32 * (part / 4), 2 * (part % 4), 3, to->values);
    return set_half(to, load_16(block + 64));
}
