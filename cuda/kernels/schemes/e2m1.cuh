// e2m1 elements in groups with a scale, of which a byte is stored for each row: MXFP4 and NVFP4.
#pragma once
#include "common/pairs.cuh"

// The elements in the four bits from AT on of both halves of a register, as a pair: exponent and fraction at T's
// place mean the value times 2^-126 (bf16) or 2^-14 (fp16), 0.5 too. In bf16 a multiplication makes two shifted copies:
// one has the sign at its place, one the rest.
template <int AT> __device__ __forceinline__ u32 place_e2m1(u32 bits, bf16) {
    u32 first = AT < 8 ? bits : bits >> 8;
    return (AT % 8 ? (first & 0x00f000f0) * 260 : (first & 0x000f000f) * 4160) & 0x81c081c0;
}
template <int AT> __device__ __forceinline__ u32 place_e2m1(u32 bits, half) {
    u32 rest = AT < 9 ? bits << (AT < 9 ? 9 - AT : 0) : bits >> (AT < 9 ? 0 : AT - 9);
    return (bits << (12 - AT) & 0x80008000) | (rest & 0x0e000e00);
}

// FACTORS says what the byte of an Entry means: `scale` in fp32; as a factor of placed pairs, `factor` of an entry and
// `factor_of` of the entry p of four in a register.
template <typename FACTORS> struct E2m1 : SchemeDefaults {
    static constexpr int BITS = 4;
    static constexpr bool ROW_SCALES = FACTORS::ROW_SCALES, SCALED_SUMS = false;
    using Entry = typename FACTORS::Entry;

    static __device__ __forceinline__ float2 group_of(const Entry& entry) { return {FACTORS::scale(entry), 0}; }

    static __device__ __forceinline__ float value_at(const u32* words, int i) {
        u32 bits = words[i / 8] >> (i % 4 * 8 + i % 8 / 4 * 4);
        return __uint_as_float((bits & 8) << 28 | (bits & 7) << 22) * 0x1p126f;
    }

    // Values 0 and 2, 1 and 3, 4 and 6, 5 and 7, times their scale; `entries` are those of the thread's octets.
    template <typename A>
    static __device__ __forceinline__ void unpack(const u32 (&words)[4], u32 entries, int octet, u32 (&pairs)[4], A) {
        u32 word = words[octet], factor = FACTORS::factor_of(entries, octet, A());
        pairs[0] = multiply_pairs(place_e2m1<0>(word, A()), factor, A());
        pairs[1] = multiply_pairs(place_e2m1<8>(word, A()), factor, A());
        pairs[2] = multiply_pairs(place_e2m1<4>(word, A()), factor, A());
        pairs[3] = multiply_pairs(place_e2m1<12>(word, A()), factor, A());
    }

    template <typename A> static __device__ __forceinline__ void neighbors(const u8* at, u32 (&pairs)[4], A) {
        u32 word = *(const u32*)at;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 spread = __byte_perm(word, 0, i ? 0x4342 : 0x4140);
            pairs[i] = place_e2m1<0>(spread, A());
            pairs[i + 2] = place_e2m1<4>(spread, A());
        }
    }
    template <typename A> static __device__ __forceinline__ void scaled(const Entry& entry, u32 (&pairs)[4], A) {
        u32 factor = FACTORS::factor(entry, A());
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = multiply_pairs(pairs[i], factor, A());
    }

    template <typename A> static __device__ __forceinline__ u32 pair_of(u32 bits, A) { return place_e2m1<0>(bits, A()); }
    template <typename A> struct Group {
        u32 by;

        __device__ __forceinline__ void load(const Entry& entry) { by = FACTORS::factor(entry, A()); }
        __device__ __forceinline__ u32 apply(u32 pair) const { return multiply_pairs(pair, by, A()); }
    };
};
