/* LANES neighboring weights of a row of a float matrix as a register of floats. */
#pragma once
#include "matrix.h"
#include "simd.h"

/* Bytes of a weight of the float formats. */
INLINE int weight_bytes(int format) {
    return format == FORMAT_F32 ? 4 : format == FORMAT_FP8 ? 1 : 2;
}

/* What `load_weights` returns is to be multiplied by this power of two. */
INLINE float weight_factor(int format) { return format == FORMAT_FP8 ? 256.0f : 1.0f; }

INLINE Floats load_fp16(const uint8_t *at) {
#if defined(__AVX512VNNI__)
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
#elif defined(__AVX2__)
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
#elif defined(__aarch64__)
    return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)at)));
#else
    Floats weights;
    uint16_t bits[LANES];
    memcpy(bits, at, sizeof bits);
    for (int i = 0; i < LANES; i++) weights[i] = fp16_to_float(bits[i]);
    return weights;
#endif
}

INLINE Floats load_bf16(const uint8_t *at) {
#if defined(__AVX512VNNI__)
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at)), 16);
#elif defined(__AVX2__)
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at)), 16);
#elif defined(__aarch64__)
    return (Floats)vshll_n_u16(vld1_u16((const uint16_t *)at), 16);
#else
    typedef uint16_t Narrow __attribute__((vector_size(2 * LANES)));
    Narrow bits;
    memcpy(&bits, at, sizeof bits);
    return (Floats)(__builtin_convertvector(bits, Uints) << 16);
#endif
}

/* e4m3 / 256. The exponent and fraction at fp16's place are the number times 2^-8, also if it is
   subnormal: fp16 and not fp32, because processors convert subnormal fp16 at full speed. */
INLINE Floats load_fp8(const uint8_t *at) {
    typedef int8_t Bytes __attribute__((vector_size(LANES)));
    typedef int16_t Halves __attribute__((vector_size(2 * LANES)));
    Bytes bytes;
    memcpy(&bytes, at, sizeof bytes);
    Halves bits = __builtin_convertvector(bytes, Halves) << 7 & (int16_t)0xbf80;
    bits |= (bits & 0x3f80) == 0x3f80; /* NaN */
    uint8_t narrow[2 * LANES];
    memcpy(narrow, &bits, sizeof narrow);
    return load_fp16(narrow);
}

INLINE Floats load_weights(int format, const uint8_t *at) {
    switch (format) {
        case FORMAT_F16: return load_fp16(at);
        case FORMAT_BF16: return load_bf16(at);
        case FORMAT_FP8: return load_fp8(at);
        default: return load_floats(at);
    }
}
