/* exp, tanh, sigmoid and erfc in fp32 without calls and branches, so that loops over them become
   vector code. Relative errors are below 2e-7; that of erfc grows with x^2 and is 1e-6 at 3. NaNs stay
   NaNs, infinities have their limits. Polynomials are minimax fits (Remez). */
#pragma once
#include "common.h"

/* a * b + c, with one rounding where the instruction set has that. */
INLINE float multiply_add_float(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* e^x = 2^n * e^r with |r| <= ln(2) / 2 and e^r = 1 + r + r^2 q(r), q within 3e-9. 2^n is two
   factors, so that results may be subnormal. */
INLINE float fast_exp(float x) {
    const float round = 0x1.8p23f; /* added: the integer part is in the low bits */
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float shifted = multiply_add_float(x, 0x1.715476p0f, round);
    float n = shifted - round;
    float r = multiply_add_float(n, -0x1.62e4p-1f, x); /* n times these 16 bits of ln(2) is exact */
    r = multiply_add_float(n, -0x1.7f7d1cp-20f, r);
    float q = 0x1.6a2434p-10f;
    q = multiply_add_float(q, r, 0x1.1239e2p-7f);
    q = multiply_add_float(q, r, 0x1.5558f2p-5f);
    q = multiply_add_float(q, r, 0x1.555492p-3f);
    q = multiply_add_float(q, r, 0x1.fffffcp-2f);
    q = multiply_add_float(q * r, r, r) + 1.0f;
    int32_t k = (int32_t)(bits_of_float(shifted) - bits_of_float(round)), half = k >> 1;
    float first = float_of_bits(((uint32_t)half + 127) << 23);
    return q * first * float_of_bits(((uint32_t)(k - half) + 127) << 23);
}

INLINE float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

/* x + x^3 p(x^2), p within 7e-9, where the other formula would lose digits. */
INLINE float fast_tanh(float x) {
    float size = float_of_bits(bits_of_float(x) & 0x7fffffff), y = x * x;
    float p = -0x1.6a5316p-8f;
    p = multiply_add_float(p, y, 0x1.4f9942p-6f);
    p = multiply_add_float(p, y, -0x1.b7da5p-5f);
    p = multiply_add_float(p, y, 0x1.11044ep-3f);
    p = multiply_add_float(p, y, -0x1.555526p-2f);
    float small = multiply_add_float(p * y, x, x);
    float large = 1.0f - 2.0f / (1.0f + fast_exp(2.0f * size));
    large = float_of_bits(bits_of_float(large) | (bits_of_float(x) & 0x80000000));
    return size < 0.65f ? small : large;
}

/* erfc(x) for x >= 0: e^(-x^2) t p(t) with t = 1 / (1 + 0.35 x), p within 2e-8. */
INLINE float fast_erfc(float x) {
    float t = 1.0f / multiply_add_float(x, 0.35f, 1.0f);
    float p = 0x1.6229acp-5f;
    p = multiply_add_float(p, t, -0x1.7bdffap-3f);
    p = multiply_add_float(p, t, 0x1.f4f588p-3f);
    p = multiply_add_float(p, t, -0x1.cde3c6p-4f);
    p = multiply_add_float(p, t, 0x1.445ce6p-3f);
    p = multiply_add_float(p, t, 0x1.b82e88p-4f);
    p = multiply_add_float(p, t, 0x1.511546p-3f);
    p = multiply_add_float(p, t, 0x1.7aec2ep-3f);
    p = multiply_add_float(p, t, 0x1.947348p-3f);
    p = multiply_add_float(p, t, 0x1.946906p-3f);
    return fast_exp(-x * x) * t * p;
}
