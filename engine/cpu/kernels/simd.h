/* The widest vectors of 32-bit elements that the instruction set computes at once. Operators of C
   work on them; here is what operators cannot say. */
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

INLINE void store_floats(void *to, Floats v) { memcpy(to, &v, sizeof v); }
INLINE void store_ints(void *to, Ints v) { memcpy(to, &v, sizeof v); }

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
#pragma clang fp reassociate(off)
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

/* sums + a.even * b.even + a.odd * b.odd of the 16-bit halves of every element, exactly. */
INLINE Ints add_products(Ints sums, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
    /* Compilers replace the intrinsic by a multiplication and an addition, unless they are told the
       processor. */
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
#elif defined(__AVX2__)
    return sums + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return sums + (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return sums + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

/* sums + a * b, rounded once or twice. */
INLINE Floats add_product(Floats sums, Floats a, Floats b) {
#if defined(__AVX2__) || defined(__aarch64__)
    return multiply_add(a, b, sums);
#else
    return sums + a * b;
#endif
}
