// A cache in 8 bits: rows of head_dim codes, and a factor in fp32 for each row; a number is its code
// times the factor (docs/quantisation.md). Compiled with CODES: 1 is int8, 2 is e4m3.
//
// Codes become T exactly, times CODE_SCALE, in registers. What they are multiplied with keeps the
// factor out of the sums: K's is for a score, V's for a weight.
#pragma once
#include "common.cuh"

#define INT8_CODES 1
#define E4M3_CODES 2

static_assert(sizeof(T) == 2);
constexpr bool IS_BF16 = Same<T, bf16>::value;
// In fp16 as small as needed for a weight times its factor to be no larger than fp16 is, whatever
// the value was in fp16, and large enough to be no subnormal number.
constexpr float CODE_SCALE = IS_BF16 ? 1.f : CODES == INT8_CODES ? 1.f / 64 : 1.f / 256;

__device__ __forceinline__ u32 minus(u32 a, u32 b) {
    if constexpr (IS_BF16) {
        __nv_bfloat162 c = __hsub2(*reinterpret_cast<__nv_bfloat162*>(&a),
                                   *reinterpret_cast<__nv_bfloat162*>(&b));
        return *reinterpret_cast<u32*>(&c);
    } else {
        __half2 c = __hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
        return *reinterpret_cast<u32*>(&c);
    }
}

// The codes in the lower bytes of both halves of `x`. int8 in bf16, which has 8 bits: the lower 7
// on top of 128, minus 128, or minus 256 where the sign is set. In fp16: all 8, the sign turned
// over, on top of 16, minus 18. e4m3: exponent and fraction moved to where T's end and begin; as
// bf16 that is the number times 2^-120, as fp16 times 2^-8, subnormal ones too.
__device__ __forceinline__ u32 lower_codes(u32 x) {
    if constexpr (CODES == INT8_CODES && IS_BF16)
        return minus((x & 0x007f007f) | 0x43004300, (x & 0x00800080) | 0x43004300);
    else if constexpr (CODES == INT8_CODES)
        return minus((x & 0x00ff00ff) ^ 0x4c804c80, 0x4c804c80);
    else if constexpr (IS_BF16) {
        u32 bits = (x << 8 & 0x80008000) | (x << 4 & 0x07f007f0), power = 0x7b807b80;
        __nv_bfloat162 c = __hmul2(*reinterpret_cast<__nv_bfloat162*>(&bits),
                                   *reinterpret_cast<__nv_bfloat162*>(&power));
        return *reinterpret_cast<u32*>(&c);
    } else
        return (x << 8 & 0x80008000) | (x << 7 & 0x3f803f80);
}

// Four codes become T: bytes 0 and 2, then bytes 1 and 3.
__device__ __forceinline__ void split_codes(u32 x, u32& even, u32& odd) {
    even = lower_codes(x);
    odd = lower_codes(x >> 8);
}
