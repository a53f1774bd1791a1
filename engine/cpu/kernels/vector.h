/* The widest vectors of 32-bit elements that the instruction set computes at once. Operators of C
   work on them; here is what operators cannot say. Loads and stores need no alignment. */
#pragma once
#include "common.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>
enum { LANES = 16 };
#elif defined(__AVX2__)
#include <immintrin.h>
enum { LANES = 8 };
#else
enum { LANES = 4 };
#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Uints __attribute__((vector_size(4 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));
typedef uint16_t Ushorts __attribute__((vector_size(4 * LANES)));
typedef float Floats4 __attribute__((vector_size(16)));

INLINE int round_up_lanes(int n) { return (n + LANES - 1) / LANES * LANES; }

INLINE Floats load_floats(const void *from) {
    Floats v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE Ints load_ints(const void *from) {
    Ints v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE Floats select_floats(Ints mask, Floats yes, Floats no) {
    return (Floats)((mask & (Ints)yes) | (~mask & (Ints)no));
}

/* LANES bf16 numbers. */
INLINE Floats load_bf16(const uint8_t *from) {
    uint16_t __attribute__((vector_size(2 * LANES))) halves;
    memcpy(&halves, from, sizeof halves);
    return (Floats)(__builtin_convertvector(halves, Uints) << 16);
}

#if defined(__F16C__) || defined(__aarch64__)
typedef _Float16 Halves __attribute__((vector_size(2 * LANES)));
#endif

typedef uint16_t HalfWords __attribute__((vector_size(2 * LANES)));

/* LANES fp16 numbers. */
INLINE Floats fp16_to_floats(HalfWords words) {
#if defined(__F16C__) || defined(__aarch64__)
    return __builtin_convertvector((Halves)words, Floats);
#else
    /* The exponent and the fraction at fp32's place are the number times 2^-112. */
    Uints wide = __builtin_convertvector(words, Uints);
    Uints magnitude = (wide & 0x7fff) << 13, sign = (wide & 0x8000) << 16;
    Floats finite = (Floats)magnitude * 0x1p112f;
    Ints is_special = (Ints)magnitude >= 0x7c00 << 13;
    Floats value = select_floats(is_special, (Floats)(magnitude | 0x7f800000), finite);
    return (Floats)((Uints)value | sign);
#endif
}

INLINE Floats load_fp16(const uint8_t *from) {
    HalfWords words;
    memcpy(&words, from, sizeof words);
    return fp16_to_floats(words);
}

INLINE void store_floats(void *to, Floats v) { memcpy(to, &v, sizeof v); }
INLINE void store_ints(void *to, Ints v) { memcpy(to, &v, sizeof v); }

INLINE Floats broadcast(float value) { return value - (Floats){0}; }

/* Every element is the float, or the 32 bits, at `from`. */
INLINE Floats broadcast_float(const float *from) {
#if defined(__AVX512VNNI__)
    return _mm512_set1_ps(*from);
#elif defined(__AVX2__)
    return _mm256_broadcast_ss(from);
#else
    return (Floats){*from, *from, *from, *from};
#endif
}

INLINE Ints broadcast_int(const void *from) {
    int32_t v;
    memcpy(&v, from, 4);
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_set1_epi32(v);
#elif defined(__AVX2__)
    return (Ints)_mm256_set1_epi32(v);
#else
    return (Ints){v, v, v, v};
#endif
}

/* first, first + 1, first + 2, ... */
INLINE Floats lane_numbers(int first) {
    Ints numbers;
    for (int i = 0; i < LANES; i++) numbers[i] = first + i;
    return __builtin_convertvector(numbers, Floats);
}

INLINE Floats ints_to_floats(Ints v) { return __builtin_convertvector(v, Floats); }

/* a * b + c, rounded once: `fused_multiply_add` of every element. */
INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512VNNI__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    typedef double Doubles __attribute__((vector_size(8 * LANES)));
    typedef int64_t Longs __attribute__((vector_size(8 * LANES)));
    Doubles product = __builtin_convertvector(a, Doubles) * __builtin_convertvector(b, Doubles);
    Doubles addend = __builtin_convertvector(c, Doubles), sum = product + addend;
    Doubles added = sum - product, error = (product - (sum - added)) + (addend - added);
    Longs inexact = (error > 0) | (error < 0), is_even = ((Longs)sum & 1) - 1;
    Longs toward_zero = (error > 0) ^ (sum > 0);
    sum = (Doubles)((Longs)sum + ((2 * toward_zero + 1) & inexact & is_even));
    return __builtin_convertvector(sum, Floats);
#endif
}

/* sums + a * b, rounded once where that is one instruction, else twice. */
INLINE Floats add_product(Floats sums, Floats a, Floats b) {
#if defined(__AVX2__) || defined(__aarch64__)
    return multiply_add(a, b, sums);
#else
    return sums + a * b;
#endif
}

/* sums + a.even * b.even + a.odd * b.odd of the 16-bit halves of every element, exactly. */
INLINE Ints add_products(Ints sums, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
    /* Compilers replace the intrinsic by a multiplication and an addition, unless they are told the
       processor. */
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
#elif defined(__AVXVNNI__)
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sums) : "x"(a), "x"(b));
    return sums;
#elif defined(__AVX2__)
    return sums + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return sums + (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return sums + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

/* The larger of each two; b where one is NaN. */
INLINE Floats max_floats(Floats a, Floats b) { return select_floats(a > b, a, b); }

INLINE float max_element(Floats v) {
    float largest = v[0];
    for (int i = 1; i < LANES; i++) largest = v[i] > largest ? v[i] : largest;
    return largest;
}

/* Of each four elements of a and b: a0 b0 a1 b1. */
INLINE Floats unpack_low(Floats a, Floats b) {
#if defined(__AVX512VNNI__)
    return _mm512_unpacklo_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_unpacklo_ps(a, b);
#else
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}

/* Of each four elements of a and b: a2 b2 a3 b3. */
INLINE Floats unpack_high(Floats a, Floats b) {
#if defined(__AVX512VNNI__)
    return _mm512_unpackhi_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_unpackhi_ps(a, b);
#else
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

/* Of each four elements of a and b: a0 a1 b0 b1. */
INLINE Floats join_low(Floats a, Floats b) {
#if defined(__AVX512VNNI__)
    return _mm512_shuffle_ps(a, b, 0x44);
#elif defined(__AVX2__)
    return _mm256_shuffle_ps(a, b, 0x44);
#else
    return __builtin_shufflevector(a, b, 0, 1, 4, 5);
#endif
}

/* Of each four elements of a and b: a2 a3 b2 b3. */
INLINE Floats join_high(Floats a, Floats b) {
#if defined(__AVX512VNNI__)
    return _mm512_shuffle_ps(a, b, 0xee);
#elif defined(__AVX2__)
    return _mm256_shuffle_ps(a, b, 0xee);
#else
    return __builtin_shufflevector(a, b, 2, 3, 6, 7);
#endif
}

INLINE Floats4 add_quarters(Floats v) {
#if defined(__AVX512VNNI__)
    typedef float Floats8 __attribute__((vector_size(32)));
    Floats8 low = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
    Floats8 high = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    Floats8 sum = low + high;
    return __builtin_shufflevector(sum, sum, 0, 1, 2, 3) +
           __builtin_shufflevector(sum, sum, 4, 5, 6, 7);
#elif defined(__AVX2__)
    return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
#else
    return v;
#endif
}

/* The sum of the elements, in a fixed order. */
INLINE float add_elements(Floats v) {
    Floats4 sum = add_quarters(v);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* The sums of the elements of a, b, c and d, each in the order of `add_elements`. */
INLINE Floats4 add_elements_of_four(Floats a, Floats b, Floats c, Floats d) {
    Floats ab = unpack_low(a, b) + unpack_high(a, b); /* a0+a2 b0+b2 a1+a3 b1+b3 */
    Floats cd = unpack_low(c, d) + unpack_high(c, d);
    return add_quarters(join_low(ab, cd) + join_high(ab, cd));
}
