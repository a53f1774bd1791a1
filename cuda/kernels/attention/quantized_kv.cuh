// The 8-bit KV cache: rows of head_dim quantized values, and an fp32 scale for each row; an element is its
// value times the scale (docs/notes/packed-layouts.md). KV_SCHEME is KV_INT8 or KV_FP8 (e4m3).
//
// Registers hold the values times VALUE_SCALE, exactly, as T. The scales of K multiply the scores and those
// of V the attention weights, so the inner products need no scaling.
#pragma once
#include "attention/kv_schemes.cuh"
#include "common/pairs.cuh"

static_assert(sizeof(T) == 2);
constexpr bool IS_BF16 = Same<T, bf16>::value;
// For fp16: small enough that an attention weight times its scale is at most the largest fp16 number,
// for every original element, and large enough to avoid subnormal numbers.
constexpr float VALUE_SCALE = IS_BF16 ? 1.f : KV_SCHEME == KV_INT8 ? 1.f / 64 : 1.f / 256;

// e4m3 in bf16 skips the multiplication that would scale the shifted bits (see shift_e4m3): registers hold
// values SUM_UPSCALE^2 too small. The query or the attention weights make up for one SUM_UPSCALE, and the
// sums for the other.
constexpr bool UNSCALED = IS_BF16 && KV_SCHEME == KV_FP8;
constexpr float SUM_UPSCALE = UNSCALED ? 0x1p60f : 1.f;

// The values of two bytes of `x`: the lower bytes of both halves, or with ODD the upper ones. If UNSCALED
// they are too small. int8 in bf16, which has 8 significant bits: the lower 7 bits on top of 128, minus 128,
// or minus 256 if the sign is set. In fp16: all 8 bits, the sign flipped, on top of 16, minus 18. e4m3: as
// in common/pairs.cuh.
template <bool ODD> __device__ __forceinline__ u32 unpack_two(u32 x) {
    if constexpr (KV_SCHEME == KV_FP8) return shift_e4m3<ODD ? 0xb391 : 0xa280>(x, T());
    if constexpr (ODD) x >>= 8;
    if constexpr (IS_BF16)
        return subtract_pairs(and_or<0x007f007f, 0x43004300>(x), and_or<0x00800080, 0x43004300>(x),
                              bf16());
    return subtract_pairs((x & 0x00ff00ff) ^ 0x4c804c80, 0x4c804c80, half());
}

// Four values: bytes 0 and 2, then bytes 1 and 3; too small if UNSCALED.
__device__ __forceinline__ void unpack_four_unscaled(u32 x, u32& even, u32& odd) {
    even = unpack_two<false>(x);
    odd = unpack_two<true>(x);
}

// The same with the right scale.
__device__ __forceinline__ void unpack_four(u32 x, u32& even, u32& odd) {
    unpack_four_unscaled(x, even, odd);
    if constexpr (UNSCALED) {
        even = multiply_pairs(even, 0x7b807b80, bf16());
        odd = multiply_pairs(odd, 0x7b807b80, bf16());
    }
}
