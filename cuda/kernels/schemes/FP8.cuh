// FP8: e4m3 values with a scale of each row, or in groups with scales.
#pragma once
#include "common/pairs.cuh"

// The scale of a group of e4m3 values, of 11 bits and less than 2, as a factor of their shifted pairs.
template <typename A> struct Fp8Scale;
template <> struct Fp8Scale<half> {
    u32 factor;

    __device__ __forceinline__ void set(float scale) { factor = pair_bits(scale * 0x1p8f, scale * 0x1p8f, half()); }
    __device__ __forceinline__ u32 apply(u32 pair) const { return multiply_pairs(pair, factor, half()); }
};
// Two factors of eight bits. A value has four, the lower factor at most three: their product is exact, so the weight is
// rounded once.
template <> struct Fp8Scale<bf16> {
    u32 high, low;

    __device__ __forceinline__ void set(float scale) {
        scale *= 0x1p120f;
        high = pair_bits(scale, scale, bf16());
        float below = scale - __uint_as_float(high << 16);
        low = pair_bits(below, below, bf16());
    }
    __device__ __forceinline__ u32 apply(u32 pair) const {
        return multiply_add_pairs(pair, high, multiply_pairs(pair, low, bf16()));
    }
};

struct FP8 : SchemeDefaults {
    static constexpr int BITS = 8;
    using Entry = half;

    static __device__ __forceinline__ float2 group_of(const Entry& entry) { return {__half2float(entry), 0}; }
    static __device__ __forceinline__ float value_at(const u32* words, int i) {
        u32 byte = words[i / 4] >> (8 * (i % 4));
        return __uint_as_float((byte & 0x80) << 24 | (byte & 0x7f) << 20) * 0x1p120f;
    }

    // Four values as two registers of pairs, shifted only, and converted.
    template <typename A> static __device__ __forceinline__ void shift(u32 bytes, u32 (&pairs)[2], A) {
        pairs[0] = shift_e4m3<0x9180>(bytes, A());
        pairs[1] = shift_e4m3<0xb3a2>(bytes, A());
    }
    template <typename A> static __device__ __forceinline__ void unpack_word(u32 bytes, u32 (&pairs)[2], A) {
        constexpr u32 FACTOR = Same<A, half>::value ? 0x5c005c00 : 0x7b807b80;
        pairs[0] = multiply_pairs(shift_e4m3<0x9180>(bytes, A()), FACTOR, A());
        pairs[1] = multiply_pairs(shift_e4m3<0xb3a2>(bytes, A()), FACTOR, A());
    }
    template <typename A>
    static __device__ __forceinline__ void unpack(const u32 (&words)[4], u32, int octet, u32 (&pairs)[4], A) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 two[2];
            unpack_word(words[2 * octet + i], two, A());
            pairs[2 * i] = two[0];
            pairs[2 * i + 1] = two[1];
        }
    }

    // In groups shifted only: the group's scale makes up for it.
    template <typename A> static __device__ __forceinline__ void neighbors(const u8* at, u32 (&pairs)[4], A) {
        uint2 words = *(const uint2*)at;
        u32 halves[2][2];
        if constexpr (GROUPED) {
            shift(words.x, halves[0], A());
            shift(words.y, halves[1], A());
        } else {
            unpack_word(words.x, halves[0], A());
            unpack_word(words.y, halves[1], A());
        }
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = halves[i / 2][i % 2];
    }
    template <typename A> static __device__ __forceinline__ void scaled(const Entry& entry, u32 (&pairs)[4], A) {
        Fp8Scale<A> scale;
        scale.set(group_of(entry).x);
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = scale.apply(pairs[i]);
    }

    template <typename A> static __device__ __forceinline__ u32 pair_of(uint2 octet, u32 selector, A) {
        u32 spread = permute_bytes(octet.x, octet.y, selector);
        constexpr bool IS_FP16 = Same<A, half>::value;
        u32 pair = IS_FP16 ? spread << 7 & 0xbf80bf80 : spread << 4 & 0x87f087f0;
        return GROUPED ? pair : multiply_pairs(pair, IS_FP16 ? 0x5c005c00 : 0x7b807b80, A());
    }
    template <typename A> struct Group : Fp8Scale<A> {
        __device__ __forceinline__ void load(const Entry& entry) { this->set(group_of(entry).x); }
    };
};
