/* Thirty-two columns of one row, out of blocks whose values are points of a grid: as unpack_blocks.h.
   Layouts and formulas are those of weights/formats/ggml_grids.py. `grid` has the digits of each
   point: 8, of IQ3 4. */
#pragma once
#include "unpack_blocks.h"

/* The eight signs of seven bits: an even number of them is negative. */
INLINE int eight_signs(uint32_t bits) {
    const int low = (int)(bits & 127);
    return low | __builtin_parity((unsigned)low) << 7;
}

/* Eight values of IQ2 or IQ3: a digit, and above its bits one that says that it is negative. */
INLINE void signed_points(const uint8_t *digits, int signs, int sign_shift, uint8_t *values) {
    for (int i = 0; i < 8; i++) values[i] = (uint8_t)(digits[i] | (signs >> i & 1) << sign_shift);
}

/* Eight values of two points of IQ3. */
INLINE void two_points(const uint8_t *grid, int first, int second, int signs, uint8_t *values) {
    uint8_t digits[8];
    memcpy(digits, grid + 4 * first, 4);
    memcpy(digits + 4, grid + 4 * second, 4);
    signed_points(digits, signs, 3, values);
}

INLINE void set_odd_scales(Columns *to, int first, int second) {
    set_scales(to, (float)(2 * first + 1), (float)(2 * second + 1));
}

/* half d, of each 32 values: index[4], 7 signs[4] and 4-bit scale: d * (2 * scale + 1) / 8 * value. */
INLINE int unpack_iq2_xxs(const uint8_t *block, int part, const uint8_t *grid, Columns *to) {
    const uint8_t *indices = block + 2 + 8 * part;
    const uint32_t word = load_32(indices + 4);
    for (int i = 0; i < 4; i++)
        signed_points(grid + 8 * indices[i], eight_signs(word >> 7 * i), 2, to->values + 8 * i);
    set_odd_scales(to, (int)(word >> 28), (int)(word >> 28));
    return set_factor(to, load_16(block));
}

/* half d, 9-bit index and 7 signs[32], 4-bit scale[16]: as IQ2_XXS. */
INLINE int unpack_iq2_xs(const uint8_t *block, int part, const uint8_t *grid, Columns *to) {
    for (int i = 0; i < 4; i++) {
        const uint16_t word = load_16(block + 2 + 8 * part + 2 * i);
        signed_points(grid + 8 * (word & 511), eight_signs(word >> 9), 2, to->values + 8 * i);
    }
    const uint8_t scales = block[66 + part];
    set_odd_scales(to, scales & 15, scales >> 4);
    return set_factor(to, load_16(block));
}

/* half d, low index byte[32], 8 signs[32], 2 high index bits[32], 4-bit scale[16]: as IQ2_XXS. */
INLINE int unpack_iq2_s(const uint8_t *block, int part, const uint8_t *grid, Columns *to) {
    const uint8_t high = block[66 + part], scales = block[74 + part];
    for (int i = 0; i < 4; i++) {
        const int index = block[2 + 4 * part + i] | (high >> 2 * i & 3) << 8;
        signed_points(grid + 8 * index, block[34 + 4 * part + i], 2, to->values + 8 * i);
    }
    set_odd_scales(to, scales & 15, scales >> 4);
    return set_factor(to, load_16(block));
}

/* half d, index[64], of each 32 values: 7 signs[4], 4-bit scale: d * (2 * scale + 1) / 4 * value. */
INLINE int unpack_iq3_xxs(const uint8_t *block, int part, const uint8_t *grid, Columns *to) {
    const uint8_t *indices = block + 2 + 8 * part;
    const uint32_t word = load_32(block + 66 + 4 * part);
    for (int i = 0; i < 4; i++)
        two_points(grid, indices[2 * i], indices[2 * i + 1], eight_signs(word >> 7 * i),
                   to->values + 8 * i);
    set_odd_scales(to, (int)(word >> 28), (int)(word >> 28));
    return set_factor(to, load_16(block));
}

/* half d, low index byte[64], ninth index bit[64], 8 signs[32], 4-bit scale[8]:
   d * (2 * scale + 1) * value. */
INLINE int unpack_iq3_s(const uint8_t *block, int part, const uint8_t *grid, Columns *to) {
    const uint8_t *indices = block + 2 + 8 * part;
    const int ninth = block[66 + part];
    for (int i = 0; i < 4; i++)
        two_points(grid, indices[2 * i] | (ninth >> 2 * i & 1) << 8,
                   indices[2 * i + 1] | (ninth >> (2 * i + 1) & 1) << 8,
                   block[74 + 4 * part + i], to->values + 8 * i);
    const int scale = block[106 + part / 2] >> 4 * (part % 2) & 15;
    set_odd_scales(to, scale, scale);
    return set_factor(to, load_16(block));
}

/* half d, low index byte[32], of each 32 values: 3 high index bits[4], 3-bit scale, sign of delta:
   d * (2 * scale + 1) * (digit - 1 + delta), |delta| = 1/8, as multiples of d / 8. */
INLINE int unpack_iq1_s(const uint8_t *block, int part, const uint8_t *grid, Columns *to) {
    const uint16_t word = load_16(block + 34 + 2 * part), d = load_16(block);
    for (int i = 0; i < 4; i++)
        memcpy(to->values + 8 * i,
               grid + 8 * (block[2 + 4 * part + i] | (word >> 3 * i & 7) << 8), 8);
    const int odd = 2 * (word >> 12 & 7) + 1, minimum = odd * (word >> 15 ? 9 : 7);
    set_scales(to, (float)(8 * odd), (float)(8 * odd));
    set_minimums(to, (float)minimum, (float)minimum);
    set_factors(to, d, d);
    return !is_finite_fp16(d);
}

/* Low index byte[32], 3 high index bits and sign of delta[32], of each 64 values: 3-bit scale[4] and
   four bits of half d: as IQ1_S, with a delta for eight values. A value is 2 * digit + (delta > 0). */
INLINE int unpack_iq1_m(const uint8_t *block, int part, const uint8_t *grid, Columns *to) {
    for (int i = 0; i < 4; i++) {
        const int high = block[32 + 2 * part + i / 2] >> 4 * (i % 2) & 15;
        const uint8_t *digits = grid + 8 * (block[4 * part + i] | (high & 7) << 8);
        for (int k = 0; k < 8; k++)
            to->values[8 * i + k] = (uint8_t)(2 * digits[k] + !(high >> 3));
    }
    const uint8_t *words = block + 48;
    const int scales = load_16(words + part / 2 * 2) >> 6 * (part % 2);
    set_odd_scales(to, scales & 7, scales >> 3 & 7);
    uint16_t d = 0;
    for (int i = 0; i < 4; i++) d = (uint16_t)(d | load_16(words + 2 * i) >> 12 << 4 * i);
    return set_factor(to, d);
}
