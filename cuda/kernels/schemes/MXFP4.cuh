// MXFP4: e2m1 elements in groups of 32 columns with a power of two. Stored is the exponent field of the factor of T
// that makes weights of placed elements.
#pragma once
#include "schemes/e2m1.cuh"

struct PowersOfTwo {
    static constexpr bool ROW_SCALES = false;
    struct Entry {
        u8 field;
    };

    static __device__ __forceinline__ float scale(const Entry& entry) {
        return __uint_as_float((u32)entry.field << 23) * (Same<T, half>::value ? 0x1p98f : 0x1p-126f);
    }
    static __device__ __forceinline__ u32 factor(const Entry& entry, bf16) { return entry.field * 0x00800080; }
    static __device__ __forceinline__ u32 factor(const Entry& entry, half) { return entry.field * 0x04000400; }
    template <typename A> static __device__ __forceinline__ u32 factor_of(u32 entries, int p, A) {
        return __byte_perm(entries, 0, 0x4040 + p * 0x0101) << (Same<A, half>::value ? 10 : 7);
    }
};
using MXFP4 = E2m1<PowersOfTwo>;
