// Integers, and groups of columns with a scale and minus a zero point, fp16 each.
#pragma once
#include "common/pairs.cuh"

struct ZeroPoints : SchemeDefaults {
    static constexpr bool ZERO_POINTS = true, INTEGERS = true;
    using Entry = __half2;
    // Scaled fp16 weights could exceed its range, as scales are up to 2 and zero points up to 2^15.
    template <typename A> static constexpr float SHRINK = Same<A, half>::value ? 0.25f : 1;

    static __device__ __forceinline__ float2 group_of(const Entry& entry) { return __half22float2(entry); }
    // Whole zero points are subtracted exactly.
    template <typename A> static __device__ __forceinline__ void scaled(const Entry& entry, u32 (&pairs)[4], A) {
        float2 group = group_of(entry);
        u32 by = pair_bits(group.x, group.x, A()), zero = pair_bits(-group.y, -group.y, A());
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = multiply_pairs(subtract_pairs(pairs[i], zero, A()), by, A());
    }
};

// A group's scale and zero point, applied to pairs of values that are BIAS too large.
template <typename A, int BIAS> struct ZeroPointGroup {
    float scale, offset;

    __device__ __forceinline__ void load(const __half2& stored) {
        float2 entry = ZeroPoints::group_of(stored);
        scale = entry.x * ZeroPoints::SHRINK<A>;
        offset = scale * (entry.y - BIAS);
    }
    __device__ __forceinline__ u32 apply(u32 pair) const {
        float2 values = pair_floats(pair, A());
        return pair_bits(fmaf(values.x, scale, offset), fmaf(values.y, scale, offset), A());
    }
};

// In bf16x2 arithmetic, which rounds the weight as fp32 does: BIAS + zero point, an integer, is subtracted exactly, the
// scale has two parts of eight bits, and `rest` is what the zero point's rounding left.
template <> struct ZeroPointGroup<bf16, 128> {
    u32 minus_zero, high, low, rest;

    __device__ __forceinline__ void load(const __half2& stored) {
        float2 entry = ZeroPoints::group_of(stored);
        float zero = entry.y - 128;
        minus_zero = pair_bits(zero, zero, bf16());
        float left = entry.x * (zero - __uint_as_float(minus_zero << 16));
        rest = pair_bits(left, left, bf16());
        high = pair_bits(entry.x, entry.x, bf16());
        float below = entry.x - __uint_as_float(high << 16);
        low = pair_bits(below, below, bf16());
    }
    __device__ __forceinline__ u32 apply(u32 pair) const {
        u32 value = multiply_add_pairs(pair, 0x3f803f80, minus_zero);
        return multiply_add_pairs(value, high, multiply_add_pairs(value, low, rest));
    }
};
