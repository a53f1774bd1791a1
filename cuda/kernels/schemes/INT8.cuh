// INT8: signed 8-bit integers with a scale of each row, or in groups with scales and zero points.
#pragma once
#include "schemes/zero_points.cuh"

struct INT8 : ZeroPoints {
    static constexpr int BITS = 8;

    // The bits of an integer become the last ones of 2^23: conversion instructions are four times slower.
    static __device__ __forceinline__ float value_at(const u32* words, int i) {
        return __uint_as_float(__byte_perm(words[i / 4] ^ 0x80808080, 0x4b000000, 0x7440 | i % 4)) - 0x1.0001p23f;
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
    static __device__ __forceinline__ void unpack_word(u32 bytes, u32 (&pairs)[2], bf16) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 spread = __byte_perm(bytes, 0, i ? 0x4342 : 0x4140);
            // 128 + the lower seven bits, minus 256 if the value is negative, minus 128 if not
            u32 low = and_or<0x007f007f, 0x43004300>(spread);
            u32 sign = and_or<0x00800080, 0x43004300>(spread);
            pairs[i] = subtract_pairs(low, sign, bf16());
        }
    }
    static __device__ __forceinline__ void unpack_word(u32 bytes, u32 (&pairs)[2], half) {
        u32 positive = bytes ^ 0x80808080;  // the value plus 128
#pragma unroll
        for (int i = 0; i < 2; i++)  // in the lower bits of 1024
            pairs[i] = subtract_pairs(__byte_perm(positive, 0x64646464, i ? 0x4342 : 0x4140), 0x64806480,
                                      half());
    }

    static __device__ __forceinline__ void integers(const u32 (&words)[4], int j, u32& first, u32& second) {
        first = words[2 * j % 4];
        second = words[2 * j % 4 + 1];
    }

    template <typename A> static __device__ __forceinline__ void neighbors(const u8* at, u32 (&pairs)[4], A) {
        uint2 words = *(const uint2*)at;
        u32 halves[2][2];
        unpack_word(words.x, halves[0], A());
        unpack_word(words.y, halves[1], A());
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = halves[i / 2][i % 2];
    }

    static __device__ __forceinline__ u32 pair_of(uint2 octet, u32 selector, bf16) {
        u32 spread = permute_bytes(octet.x, octet.y, selector);
        return subtract_pairs(and_or<0x007f007f, 0x43004300>(spread), and_or<0x00800080, 0x43004300>(spread), bf16());
    }
    static __device__ __forceinline__ u32 pair_of(uint2 octet, u32 selector, half) {
        u32 spread = permute_bytes(octet.x, octet.y, selector);
        return subtract_pairs(and_xor(spread, 0x00ff00ff, 0x64806480), 0x64806480, half());
    }
    template <typename A> using Group = ZeroPointGroup<A, 0>;
};
