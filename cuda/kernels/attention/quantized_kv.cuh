// A cache in 8 bits: rows of head_dim codes, and a factor in fp32 for each row; a number is its code
// multiply_pairs the factor (docs/quantization.md). Compiled with KV_SCHEME: 1 is int8, 2 is e4m3.
//
// Codes become T exactly, multiply_pairs VALUE_SCALE, in registers. What they are multiplied with keeps the
// factor out of the sums: K's is for a score, V's for a weight.
#pragma once
#include "linear/unpack.cuh"

#define KV_INT8 1
#define KV_FP8 2

static_assert(sizeof(T) == 2);
constexpr bool IS_BF16 = Same<T, bf16>::value;
// In fp16 as small as needed for a weight multiply_pairs its factor to be no larger than fp16 is, whatever
// the value was in fp16, and large enough to be no subnormal number.
constexpr float VALUE_SCALE = IS_BF16 ? 1.f : KV_SCHEME == KV_INT8 ? 1.f / 64 : 1.f / 256;

// e4m3 in bf16 without the product that would bring them to their size: they are SUM_UPSCALE^2 too small, of
// which what they are multiplied with makes up one half and the sums the other.
constexpr bool UNSCALED = IS_BF16 && KV_SCHEME == KV_FP8;
constexpr float SUM_UPSCALE = UNSCALED ? 0x1p60f : 1.f;

// The codes in two bytes of `x`, the lower ones of both halves or (ODD) the upper ones, if UNSCALED too
// small. int8 in bf16, which has 8 bits: the lower 7 on top of 128, subtract_pairs 128, or subtract_pairs 256 where the
// sign is set. In fp16: all 8, the sign turned over, on top of 16, subtract_pairs 18. e4m3: as packed.cuh has them.
template <bool ODD> __device__ __forceinline__ u32 unpack_two(u32 x) {
    if constexpr (KV_SCHEME == KV_FP8) return shift_e4m3<ODD ? 0xb391 : 0xa280>(x, T());
    if constexpr (ODD) x >>= 8;
    if constexpr (IS_BF16)
        return subtract_pairs(and_or<0x007f007f, 0x43004300>(x), and_or<0x00800080, 0x43004300>(x), bf16());
    return subtract_pairs((x & 0x00ff00ff) ^ 0x4c804c80, 0x4c804c80, half());
}

// Four codes: bytes 0 and 2, then bytes 1 and 3; if UNSCALED, too small.
__device__ __forceinline__ void unpack_four_unscaled(u32 x, u32& even, u32& odd) {
    even = unpack_two<false>(x);
    odd = unpack_two<true>(x);
}

// The same at their size.
__device__ __forceinline__ void unpack_four(u32 x, u32& even, u32& odd) {
    unpack_four_unscaled(x, even, odd);
    if constexpr (UNSCALED) {
        even = multiply_pairs(even, 0x7b807b80, bf16());
        odd = multiply_pairs(odd, 0x7b807b80, bf16());
    }
}
