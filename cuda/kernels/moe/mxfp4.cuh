// Conversion of MXFP4 (OCP Microscaling Formats 1.0) to bf16.
//
// A group is 32 elements of a row: 16 bytes, the lower element in the low half, and a scale e8m0.
#pragma once
#include "common/common.cuh"

constexpr int GROUP = 32;  // columns
// Dequantized weights are 2^-32 times as large, so that scales up to 2^33 are within the range of bf16.
constexpr float WEIGHT_SCALE = 4294967296.f;

// Returns 2^(e8m0 - 127) times WEIGHT_SCALE's inverse, and times 2^126 for `dequantize`, twice in bf16.
__device__ __forceinline__ u32 scale_pair(u32 e8m0) {
    u32 bits = min(e8m0 + 94, 254u) << 7;
    return bits << 16 | bits;
}

// Dequantizes eight elements to four pairs in bf16: pair i has elements i and i + 4. Exponent and mantissa of
// e2m1 are those of bf16 if the result is multiplied by 2^126, also for subnormal elements. A multiplication makes
// two shifted copies: one has the sign at its place, one the rest.
__device__ __forceinline__ void dequantize(u32 word, u32 scale, u32 (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 bits = i < 2 ? word : word >> 8;
        bits = (i % 2 ? (bits & 0x00f000f0u) * 260u : (bits & 0x000f000fu) * 4160u) & 0x81c081c0u;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pairs[i]) : "r"(bits), "r"(scale), "r"(0x80008000u));
    }
}
