/* What the four bits of a value stand for, in formats in which they are not integers. */
#pragma once
#include "common.h"
#include "matrix.h"

/* Twice the numbers of e2m1 (OCP Microscaling Formats 1.0), and the same plus E2M1_CENTER, for
   instructions that multiply unsigned bytes. */
static const int8_t double_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static const uint8_t centered_e2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                          12, 11, 10, 9,  8,  6,  4,  0};

/* The numbers of a format of four bits; NULL: integers. Below 32, so that AVX2's sums fit. */
INLINE const int8_t *numbers_of(int format) { return format >= FORMAT_MXFP4 ? double_e2m1 : NULL; }
/* The same plus their center; NULL: the bits are that. */
INLINE const uint8_t *centered_numbers_of(int format) {
    return format >= FORMAT_MXFP4 ? centered_e2m1 : NULL;
}
INLINE int center_of(int format) { return format >= FORMAT_MXFP4 ? E2M1_CENTER : INT4_CENTER; }

/* 2^(e8m0 - 128): what multiplies `double_e2m1`. The two smallest are subnormal. */
INLINE float half_e8m0(uint8_t e8m0) {
    uint32_t bits = e8m0 < 2 ? 0x00200000u << e8m0 : (uint32_t)(e8m0 - 1) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return scale;
}
/* An e4m3 number at the place of fp16's bits, where it is 2^-8 times as large: what multiplies
   `double_e2m1`. */
INLINE uint16_t e4m3_as_fp16(uint8_t e4m3) {
    return (uint16_t)((e4m3 & 0x80) << 8 | (e4m3 & 0x7f) << 7);
}

/* What a scale that is a byte multiplies `numbers_of` by. */
INLINE float byte_scale(int format, uint8_t byte) {
    return format == FORMAT_MXFP4 ? half_e8m0(byte) : fp16_to_float(e4m3_as_fp16(byte));
}
