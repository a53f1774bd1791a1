/* Look-ups of numbers of four bits by vectors, for GEMMs. */
#pragma once
#include "numbers.h"
#include "vector.h"

/* For the low four bits of every byte the signed byte that they stand for. */
INLINE Ints look_up(Ints bits, const int8_t *numbers) {
    bits &= 0x0f0f0f0f;
#if defined(__AVX512VNNI__)
    const __m128i table = _mm_loadu_si128((const __m128i *)numbers);
    return (Ints)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)bits);
#elif defined(__AVX2__)
    const __m128i table = _mm_loadu_si128((const __m128i *)numbers);
    return (Ints)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)bits);
#else
    int8_t bytes[4 * LANES];
    memcpy(bytes, &bits, sizeof bytes);
    for (int i = 0; i < 4 * LANES; i++) bytes[i] = numbers[bytes[i]];
    return load_ints((const uint8_t *)bytes);
#endif
}
