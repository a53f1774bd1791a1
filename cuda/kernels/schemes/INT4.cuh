// INT4: 4-bit integers from 0 to 15 in groups with scales and zero points.
#pragma once
#include "schemes/zero_points.cuh"

struct INT4 : ZeroPoints {
    static constexpr int BITS = 4;
    // In the lower bits of 128 (bf16), or in bits 4 to 7 of 64 (fp16), which stand for integers.
    template <typename A> static constexpr float SUM_BIAS = Same<A, bf16>::value ? 128 : Same<A, half>::value ? 64 : 0;

    // The bits of an integer become the last ones of 2^23: conversion instructions are four times slower.
    static __device__ __forceinline__ float value_at(const u32* words, int i) {
        return __uint_as_float(and_or<15, 0x4b000000>(words[i / 8] >> (i % 4 * 8 + i % 8 / 4 * 4))) - 0x1p23f;
    }

    // Values 0 and 2, 1 and 3, 4 and 6, 5 and 7, each SUM_BIAS too large; the caller subtracts SUM_BIAS times the sum
    // of x from the result.
    template <typename A>
    static __device__ __forceinline__ void unpack(const u32 (&words)[4], u32, int octet, u32 (&pairs)[4], A) {
        unpack_word(words[octet], pairs, A());
    }
    static __device__ __forceinline__ void unpack_word(u32 word, u32 (&pairs)[4], bf16) {
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = and_or<0x000f000f, 0x43004300>(word >> (i % 2 * 8 + i / 2 * 4));
    }
    static __device__ __forceinline__ void unpack_word(u32 word, u32 (&pairs)[4], half) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            pairs[i] = and_or<0x00f000f0, 0x54005400>(i ? word >> (i % 2 * 4 + i / 3 * 4) : word << 4);
    }

    static __device__ __forceinline__ void integers(const u32 (&words)[4], int j, u32& first, u32& second) {
        first = words[j] & 0x0f0f0f0f;
        second = words[j] >> 4 & 0x0f0f0f0f;
    }

    template <typename A> static __device__ __forceinline__ void neighbors(const u8* at, u32 (&pairs)[4], A) {
        u32 word = *(const u32*)at;
        constexpr u32 BIAS = Same<A, bf16>::value ? 0x43004300 : 0x54005400;
#pragma unroll
        for (int i = 0; i < 2; i++) {  // values i * 2 and i * 2 + 1 are in the lower halves of two bytes
            u32 spread = __byte_perm(word, 0, i ? 0x4342 : 0x4140);
            if constexpr (Same<A, bf16>::value) {
                pairs[i] = and_or<0x000f000f, BIAS>(spread);
                pairs[i + 2] = and_or<0x000f000f, BIAS>(spread >> 4);
            } else {
                pairs[i] = and_or<0x00f000f0, BIAS>(spread << 4);
                pairs[i + 2] = and_or<0x00f000f0, BIAS>(spread);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = subtract_pairs(pairs[i], BIAS, A());
    }

    template <typename A> static constexpr u32 UPPER_BYTES = Same<A, half>::value ? 0x64646464 : 0x43434343;
    template <typename A> static __device__ __forceinline__ u32 pair_of(u32 bits, A) { return bits; }
    template <typename A> using Group = ZeroPointGroup<A, Same<A, half>::value ? 1024 : 128>;
};
