/* fp32 vectors as wide as the instruction set's registers, for kernels that are the same code for
   all of them: clang's vector types. Loads need no alignment. */
#pragma once
#include "fast_math.h"

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t IntVector __attribute__((vector_size(4 * LANES)));
typedef uint32_t BitVector __attribute__((vector_size(4 * LANES)));
typedef float Vector4 __attribute__((vector_size(16)));

INLINE int round_up_lanes(int n) { return (n + LANES - 1) / LANES * LANES; }

INLINE Vector load_vector(const float *from) {
    Vector v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void store_vector(float *to, Vector v) { memcpy(to, &v, sizeof v); }

INLINE Vector broadcast(float value) { return value - (Vector){0}; }

/* first, first + 1, first + 2, ... */
INLINE Vector lane_numbers(int first) {
    IntVector numbers;
    for (int i = 0; i < LANES; i++) numbers[i] = first + i;
    return __builtin_convertvector(numbers, Vector);
}

/* a * b + c, with one rounding where the instruction set has it. */
INLINE Vector multiply_add(Vector a, Vector b, Vector c) {
#if defined(__clang__) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))
    return __builtin_elementwise_fma(a, b, c);
#else
    return a * b + c;
#endif
}

INLINE Vector select_vector(IntVector mask, Vector yes, Vector no) {
    return (Vector)((mask & (IntVector)yes) | (~mask & (IntVector)no));
}

/* The larger of each two; b where one is NaN. */
INLINE Vector max_vector(Vector a, Vector b) { return select_vector(a > b, a, b); }

INLINE Vector4 add_quarters(Vector v) {
#if defined(__AVX512F__)
    typedef float Vector8 __attribute__((vector_size(32)));
    Vector8 low = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
    Vector8 high = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    Vector8 sum = low + high;
    return __builtin_shufflevector(sum, sum, 0, 1, 2, 3) +
           __builtin_shufflevector(sum, sum, 4, 5, 6, 7);
#elif defined(__AVX2__)
    return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
#else
    return v;
#endif
}

/* The sum of the elements, in a fixed order. */
INLINE float add_elements(Vector v) {
    Vector4 sum = add_quarters(v);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

INLINE float max_element(Vector v) {
    float largest = v[0];
    for (int i = 1; i < LANES; i++) largest = v[i] > largest ? v[i] : largest;
    return largest;
}

/* Interleave the first, or the last, halves of each four elements of a and b. */
INLINE Vector interleave_low(Vector a, Vector b) {
#if defined(__AVX512F__)
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
#elif defined(__AVX2__)
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
#else
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}

INLINE Vector interleave_high(Vector a, Vector b) {
#if defined(__AVX512F__)
    return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15,
                                   31);
#elif defined(__AVX2__)
    return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
#else
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

/* The sums of the elements of a, b, c and d, each in the order of `add_elements`. */
INLINE Vector4 add_elements_of_four(Vector a, Vector b, Vector c, Vector d) {
    Vector ab = interleave_low(a, b) + interleave_high(a, b); /* a0+a2 b0+b2 a1+a3 b1+b3 */
    Vector cd = interleave_low(c, d) + interleave_high(c, d);
#if defined(__AVX512F__)
    Vector even = __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13,
                                          28, 29);
    Vector odd = __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15,
                                         30, 31);
#elif defined(__AVX2__)
    Vector even = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13);
    Vector odd = __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
#else
    Vector even = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    Vector odd = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
#endif
    return add_quarters(even + odd);
}

/* `fast_exp` without subnormal results: 0 below -87.3, NaN for NaN. Not for x above 88.

   The lowest bits of `shifted` are the exponent of 2^n. */
INLINE Vector exp_vector(Vector x) {
    KEEP_ORDER
    const Vector round = broadcast(0x1.8p23f + 127.0f);
    Vector shifted = multiply_add(x, broadcast(0x1.715476p0f), round);
    Vector n = shifted - round;
    Vector power = (Vector)((BitVector)shifted << 23);
    Vector r = multiply_add(n, broadcast(-0x1.62e4p-1f), x);
    r = multiply_add(n, broadcast(-0x1.7f7d1cp-20f), r);
    Vector q = broadcast(0x1.6a2434p-10f);
    q = multiply_add(q, r, broadcast(0x1.1239e2p-7f));
    q = multiply_add(q, r, broadcast(0x1.5558f2p-5f));
    q = multiply_add(q, r, broadcast(0x1.555492p-3f));
    q = multiply_add(q, r, broadcast(0x1.fffffcp-2f));
    q = multiply_add(q * r, r, r) + 1.0f;
    return select_vector(x < broadcast(-87.3f), broadcast(0.0f), q * power);
}

/* tanh(x), error below 1e-7. */
INLINE Vector tanh_vector(Vector x) {
    const BitVector sign = (BitVector)x & 0x80000000u;
    Vector t = exp_vector((Vector)((BitVector)(x + x) | 0x80000000u));
    return (Vector)((BitVector)((1.0f - t) / (1.0f + t)) | sign);
}
