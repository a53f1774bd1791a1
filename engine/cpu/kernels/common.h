/* Conversions and functions that every kernel uses. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

INLINE int min_int(int a, int b) { return a < b ? a : b; }
INLINE int max_int(int a, int b) { return a > b ? a : b; }

INLINE float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

INLINE float bf16_to_float(uint16_t bits) {
    return float_of_bits((uint32_t)bits << 16);
}

/* Round to the nearest, ties to even; a NaN stays a NaN. */
INLINE uint16_t float_to_bf16(float value) {
    uint32_t wide = bits_of_float(value);
    uint32_t rounded = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
    return (uint16_t)((wide & 0x7fffffff) > 0x7f800000 ? (wide >> 16) | 0x40 : rounded);
}

INLINE float fp16_to_float(uint16_t bits) {
    _Float16 value;
    memcpy(&value, &bits, 2);
    return (float)value;
}

INLINE uint16_t float_to_fp16(float value) {
    _Float16 narrow = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &narrow, 2);
    return bits;
}

/* An e4m3 number (no infinities; 0x7f and 0xff are NaN). Its exponent and fraction at bf16's place
   are the same number times 2^-120, also if it is subnormal. */
INLINE float fp8_to_float(uint8_t bits) {
    if ((bits & 0x7f) == 0x7f) return NAN;
    return bf16_to_float((uint16_t)((bits & 0x80) << 8 | (bits & 0x7f) << 4)) * 0x1p120f;
}

/* a * b + c, rounded once. Without such an instruction: the exact product and the sum in double, the
   sum rounded to odd, so that rounding it to float is right. */
INLINE float fused_multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    double product = (double)a * b, sum = product + c;
    double added = sum - product, error = (product - (sum - added)) + (c - added);
    int64_t bits;
    memcpy(&bits, &sum, 8);
    if ((error > 0 || error < 0) && !(bits & 1)) bits += (error > 0) == (sum > 0) ? 1 : -1;
    memcpy(&sum, &bits, 8);
    return (float)sum;
#endif
}
