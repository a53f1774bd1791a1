// NVFP4: e2m1 elements in groups of 16 columns with an e4m3 scale, and a scale of each row. A byte is stored of which
// five bits are exponent and three fraction, without subnormal numbers: at the place of fp16's bits it is the factor of
// placed elements, 2^7 times the scale. A product has six bits, so it is exact, and 2^-7 times the weight.
#pragma once
#include "schemes/e2m1.cuh"

struct ThreeBitScales {
    static constexpr bool ROW_SCALES = true;
    struct Entry {
        u8 bits;
    };

    static __device__ __forceinline__ float scale(const Entry& entry) {
        return __uint_as_float(((u32)entry.bits << 20) + (98u << 23));
    }
    static __device__ __forceinline__ u32 factor(const Entry& entry, bf16) { return entry.bits * 0x00100010 + BF16; }
    static __device__ __forceinline__ u32 factor(const Entry& entry, half) { return entry.bits * 0x00800080; }
    static __device__ __forceinline__ u32 factor_of(u32 entries, int p, bf16) { return both(entries, p) * 16 + BF16; }
    static __device__ __forceinline__ u32 factor_of(u32 entries, int p, half) { return both(entries, p) << 7; }

  private:
    static constexpr u32 BF16 = 0x70007000;  // bf16 has eight bits of exponent
    static __device__ __forceinline__ u32 both(u32 entries, int p) {
        return __byte_perm(entries, 0, 0x4040 + p * 0x0101);
    }
};
using NVFP4 = E2m1<ThreeBitScales>;
