/* Elements and scales of MXFP4 (OCP Microscaling Formats 1.0): elements are e2m1, scales e8m0. */
#pragma once
#include "common.h"
#include "matrix.h"

/* Twice the elements, in the order of their bits. */
static const int8_t double_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
/* The same plus MXFP4_CENTER, for instructions that multiply unsigned bytes. */
static const uint8_t centered_e2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                          12, 11, 10, 9,  8,  6,  4,  0};

/* 2^(e8m0 - 128): what multiplies `double_e2m1`. The two smallest are subnormal. */
INLINE float half_e8m0(uint8_t e8m0) {
    uint32_t bits = e8m0 < 2 ? 0x00200000u << e8m0 : (uint32_t)(e8m0 - 1) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return scale;
}
