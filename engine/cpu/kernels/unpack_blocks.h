/* Thirty-two columns of one row, out of the blocks of GGUF files. Layouts and formulas are those of
   weights/formats/ggml_dequantize.py. */
#pragma once
#include "common.h"

/* 32 values and their tables. INT4: byte i of values has column i in the low half and column 16 + i
   in the high half. INT8: byte i is column i, signed. The tables are those of the two halves, 16
   columns each; they are equal if a group has 32 columns or more. */
typedef struct {
    uint8_t values[32];
    float scale[2], minimum[2];
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

INLINE int is_finite_fp16(uint16_t bits) { return (bits & 0x7c00) != 0x7c00; }

INLINE void set_scales(Columns *to, float first, float second) {
    to->scale[0] = first;
    to->scale[1] = second;
}

INLINE void set_minimums(Columns *to, float first, float second) {
    to->minimum[0] = first;
    to->minimum[1] = second;
}

/* The same bits of eight bytes; the mask removes those that are shifted in from the next byte. */
INLINE uint64_t bits_of_8(const uint8_t *bytes, int shift, uint64_t mask) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    return word >> shift & mask;
}

/* `byte` eight times. */
INLINE uint64_t eight(uint8_t byte) { return byte * (uint64_t)0x0101010101010101; }

/* 32 values of 4 bits, eight bytes a word, as INT4 pairs. */
INLINE void store_pairs(const uint64_t *words, uint8_t *pairs) {
    for (int i = 0; i < 2; i++) {
        uint64_t both = words[i] | words[2 + i] << 4;
        memcpy(pairs + 8 * i, &both, 8);
    }
}

/* 32 values of 4 bits, as most types of 32 columns store them: columns 0..15 in the low halves. */
INLINE void split_nibbles(const uint8_t *packed, uint8_t *values) {
    for (int i = 0; i < 16; i++) {
        values[i] = packed[i] & 15;
        values[16 + i] = packed[i] >> 4;
    }
}

/* half d, 4-bit q[32]: d * (q - 8). */
INLINE int unpack_q4_0(const uint8_t *block, int part, Columns *to) {
    (void)part;
    uint16_t d = load_16(block);
    memcpy(to->values, block + 2, 16);
    set_scales(to, fp16_to_float(d), fp16_to_float(d));
    return !is_finite_fp16(d);
}

/* half d, half m, 4-bit q[32]: d * q + m. */
INLINE int unpack_q4_1(const uint8_t *block, int part, Columns *to) {
    (void)part;
    uint16_t d = load_16(block), m = load_16(block + 2);
    memcpy(to->values, block + 4, 16);
    set_scales(to, fp16_to_float(d), fp16_to_float(d));
    set_minimums(to, fp16_to_float(m), fp16_to_float(m));
    return !(is_finite_fp16(d) && is_finite_fp16(m));
}

/* Adds 16 to the values whose bit is set, the lowest bit first, and subtracts the center. */
INLINE void add_fifth_bits(uint8_t *values, const uint8_t *bits, int center) {
    uint32_t word;
    memcpy(&word, bits, 4);
    for (int i = 0; i < 32; i++)
        values[i] = (uint8_t)((values[i] | (word >> i & 1) << 4) - (unsigned)center);
}

/* half d, fifth bits[32], 4-bit q[32]: d * (q - 16). */
INLINE int unpack_q5_0(const uint8_t *block, int part, Columns *to) {
    (void)part;
    uint16_t d = load_16(block);
    split_nibbles(block + 6, to->values);
    add_fifth_bits(to->values, block + 2, 16);
    set_scales(to, fp16_to_float(d), fp16_to_float(d));
    return !is_finite_fp16(d);
}

/* half d, half m, fifth bits[32], 4-bit q[32]: d * q + m. */
INLINE int unpack_q5_1(const uint8_t *block, int part, Columns *to) {
    (void)part;
    uint16_t d = load_16(block), m = load_16(block + 2);
    split_nibbles(block + 8, to->values);
    add_fifth_bits(to->values, block + 4, 0);
    set_scales(to, fp16_to_float(d), fp16_to_float(d));
    set_minimums(to, fp16_to_float(m), fp16_to_float(m));
    return !(is_finite_fp16(d) && is_finite_fp16(m));
}

/* half d, int8 q[32]: d * q. */
INLINE int unpack_q8_0(const uint8_t *block, int part, Columns *to) {
    (void)part;
    uint16_t d = load_16(block);
    memcpy(to->values, block + 2, 32);
    set_scales(to, fp16_to_float(d), fp16_to_float(d));
    return !is_finite_fp16(d);
}

static const int8_t iq4_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

INLINE void look_up_nibbles(const uint8_t *packed, uint8_t *values) {
    for (int i = 0; i < 16; i++) {
        values[i] = (uint8_t)iq4_table[packed[i] & 15];
        values[16 + i] = (uint8_t)iq4_table[packed[i] >> 4];
    }
}

/* half d, 4-bit q[32]: d * table[q]. */
INLINE int unpack_iq4_nl(const uint8_t *block, int part, Columns *to) {
    (void)part;
    uint16_t d = load_16(block);
    look_up_nibbles(block + 2, to->values);
    set_scales(to, fp16_to_float(d), fp16_to_float(d));
    return !is_finite_fp16(d);
}

/* e8m0 d, e2m1 q[32]: 2^(d - 127) * q. The scale is the byte d. */
INLINE int unpack_mxfp4(const uint8_t *block, int part, Columns *to) {
    (void)part;
    memcpy(to->values, block + 1, 16);
    set_scales(to, (float)block[0], (float)block[0]);
    return block[0] > LARGEST_E8M0;
}

/* 4+4-bit scale and minimum[16], 2-bit q[256], half d, half dmin:
   d * scale * q - dmin * minimum. */
INLINE int unpack_q2_k(const uint8_t *block, int part, Columns *to) {
    const uint8_t *packed = block + 16 + 32 * (part / 4), *scales = block + 2 * part;
    int shift = 2 * (part % 4);
    for (int i = 0; i < 16; i++)
        to->values[i] = (uint8_t)((packed[i] >> shift & 3) | (packed[16 + i] >> shift & 3) << 4);
    uint16_t d = load_16(block + 80), dmin = load_16(block + 82);
    float scale = fp16_to_float(d), minimum = -fp16_to_float(dmin);
    set_scales(to, scale * (float)(scales[0] & 15), scale * (float)(scales[1] & 15));
    set_minimums(to, minimum * (float)(scales[0] >> 4), minimum * (float)(scales[1] >> 4));
    return !(is_finite_fp16(d) && is_finite_fp16(dmin));
}

/* Scale `i` of the 16 scales of 6 bits in 12 bytes, less 32. */
INLINE int q3_scale(const uint8_t *packed, int i) {
    int low = packed[i % 8] >> (i / 8 * 4) & 15, high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
    return (low | high << 4) - 32;
}

/* High bit[256], 2-bit q[256], 6-bit scale[16], half d: d * (scale - 32) * (q - 4). INT4 values are
   centered at 8, so 4 is added. */
INLINE int unpack_q3_k(const uint8_t *block, int part, Columns *to) {
    const uint8_t *packed = block + 32 + 32 * (part / 4);
    uint64_t words[4];
    for (int i = 0; i < 4; i++) {
        uint64_t low = bits_of_8(packed + 8 * i, 2 * (part % 4), eight(3));
        words[i] = (low | bits_of_8(block + 8 * i, part, eight(1)) << 2) + eight(4);
    }
    store_pairs(words, to->values);
    uint16_t d = load_16(block + 108);
    float scale = fp16_to_float(d);
    set_scales(to, scale * (float)q3_scale(block + 96, 2 * part),
               scale * (float)q3_scale(block + 96, 2 * part + 1));
    return !is_finite_fp16(d);
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
    float s = fp16_to_float(d) * (float)scale, m = -fp16_to_float(dmin) * (float)minimum;
    set_scales(to, s, s);
    set_minimums(to, m, m);
    return !(is_finite_fp16(d) && is_finite_fp16(dmin));
}

/* Tables, 4-bit q[256]: d * scale * q - dmin * minimum. */
INLINE int unpack_q4_k(const uint8_t *block, int part, Columns *to) {
    const uint8_t *packed = block + 16 + 32 * (part / 2);
    uint64_t words[4];
    for (int i = 0; i < 4; i++) words[i] = bits_of_8(packed + 8 * i, part % 2 * 4, eight(15));
    store_pairs(words, to->values);
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
    for (int i = 0; i < 32; i++) {
        int value = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
        to->values[i] = (uint8_t)(value - 32);
    }
    uint16_t d = load_16(block + 208);
    float scale = fp16_to_float(d);
    const int8_t *scales = (const int8_t *)block + 192 + 2 * part;
    set_scales(to, scale * (float)scales[0], scale * (float)scales[1]);
    return !is_finite_fp16(d);
}

/* half d, upper 2 bits and lower 4 bits of scale[8], 4-bit q[256]: d * (scale - 32) * table[q]. */
INLINE int unpack_iq4_xs(const uint8_t *block, int part, Columns *to) {
    int low = block[4 + part / 2] >> (part % 2 * 4) & 15;
    int high = load_16(block + 2) >> (2 * part) & 3;
    uint16_t d = load_16(block);
    float scale = fp16_to_float(d) * (float)((low | high << 4) - 32);
    look_up_nibbles(block + 8 + 16 * part, to->values);
    set_scales(to, scale, scale);
    return !is_finite_fp16(d);
}
