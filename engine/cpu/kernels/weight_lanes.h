/* LANES neighboring weights of a row of a float matrix as a register of floats. */
#pragma once
#include "matrix_layout.h"
#include "vector.h"

/* Bytes of a weight of the float formats. */
INLINE int weight_bytes(int format) {
    return format == FORMAT_F32 ? 4 : format == FORMAT_FP8 ? 1 : 2;
}

/* What `load_weights` returns is to be multiplied by this power of two. */
INLINE float weight_factor(int format) { return format == FORMAT_FP8 ? 256.0f : 1.0f; }

/* e4m3 / 256. The exponent and fraction at fp16's place are the number times 2^-8, also if it is
   subnormal: fp16 and not fp32, because processors convert subnormal fp16 at full speed. */
INLINE Floats load_fp8(const uint8_t *at) {
    typedef int8_t Bytes __attribute__((vector_size(LANES)));
    typedef int16_t Codes __attribute__((vector_size(2 * LANES)));
    Bytes bytes;
    memcpy(&bytes, at, sizeof bytes);
    Codes bits = __builtin_convertvector(bytes, Codes) << 7 & (int16_t)0xbf80;
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
