// Exact conversion of 8-bit and 4-bit quantized values to T.
//
// SCHEME is PLAIN (elements of T), INT8, FP8 (e4m3), INT4 or MXFP4 (e2m1). At the speed of the memory there is time
// for about seven operations of a lane for an 8-bit weight and half as many for a 4-bit one. So the bits
// are moved to a place where they mean a number of T that is off by a known factor or summand.
#pragma once
#include "common/common.cuh"

#define PLAIN 0
#define INT8 1
#define FP8 2
#define INT4 3
#define MXFP4 4

// Subtracts from, or multiplies, both 16-bit elements of a register.
__device__ __forceinline__ u32 subtract_pairs(u32 a, u32 b, bf16) {
    __nv_bfloat162 c = __hsub2((__nv_bfloat162&)a, (__nv_bfloat162&)b);
    return (u32&)c;
}
__device__ __forceinline__ u32 subtract_pairs(u32 a, u32 b, half) {
    __half2 c = __hsub2((__half2&)a, (__half2&)b);
    return (u32&)c;
}
__device__ __forceinline__ u32 multiply_add_pairs(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ u32 multiply_pairs(u32 a, u32 b, bf16) {
    // a * b + -0: before sm_90 there is no multiplication alone; keeps subnormal results
    return multiply_add_pairs(a, b, 0x80008000u);
}
__device__ __forceinline__ u32 multiply_pairs(u32 a, u32 b, half) {
    __half2 c = __hmul2((__half2&)a, (__half2&)b);
    return (u32&)c;
}

// (a & MASK) | BITS in one instruction; from constants the compiler would make two.
template <u32 MASK, u32 BITS> __device__ __forceinline__ u32 and_or(u32 a) {
    u32 c;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(c) : "r"(a), "n"(MASK), "r"(BITS));
    return c;
}

// Four int8 values as two registers of pairs.
__device__ __forceinline__ void unpack_int8(u32 bytes, u32 (&pairs)[2], bf16) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 spread = __byte_perm(bytes, 0, i ? 0x4342 : 0x4140);
        // 128 + the lower seven bits, minus 256 if the value is negative, minus 128 if not
        u32 low = and_or<0x007f007f, 0x43004300>(spread);
        u32 sign = and_or<0x00800080, 0x43004300>(spread);
        pairs[i] = subtract_pairs(low, sign, bf16());
    }
}
__device__ __forceinline__ void unpack_int8(u32 bytes, u32 (&pairs)[2], half) {
    u32 positive = bytes ^ 0x80808080;  // the value plus 128
#pragma unroll
    for (int i = 0; i < 2; i++)  // in the lower bits of 1024
        pairs[i] = subtract_pairs(__byte_perm(positive, 0x64646464, i ? 0x4342 : 0x4140), 0x64806480,
                                  half());
}

// Two e4m3 values as a pair: exponent and fraction at T's place mean the value times 2^-120 (bf16) or
// 2^-8 (fp16), subnormal values too. BYTES selects two bytes and, above each, a byte of its sign
// bits, from which the shift keeps the sign.
template <u32 BYTES> __device__ __forceinline__ u32 spread_bytes(u32 bytes) {
    u32 c;  // prmt can replicate signs; __byte_perm cannot
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(c) : "r"(bytes), "n"(BYTES));
    return c;
}
template <u32 BYTES> __device__ __forceinline__ u32 shift_e4m3(u32 bytes, bf16) {
    return spread_bytes<BYTES>(bytes) << 4 & 0x87f087f0;
}
template <u32 BYTES> __device__ __forceinline__ u32 shift_e4m3(u32 bytes, half) {
    return spread_bytes<BYTES>(bytes) << 7 & 0xbf80bf80;
}

// Four e4m3 values as two registers of pairs, shifted only, and converted.
template <typename A> __device__ __forceinline__ void shift_fp8(u32 bytes, u32 (&pairs)[2], A) {
    pairs[0] = shift_e4m3<0x9180>(bytes, A());
    pairs[1] = shift_e4m3<0xb3a2>(bytes, A());
}
template <typename A> __device__ __forceinline__ void unpack_fp8(u32 bytes, u32 (&pairs)[2], A) {
    constexpr u32 FACTOR = Same<A, half>::value ? 0x5c005c00 : 0x7b807b80;
    pairs[0] = multiply_pairs(shift_e4m3<0x9180>(bytes, A()), FACTOR, A());
    pairs[1] = multiply_pairs(shift_e4m3<0xb3a2>(bytes, A()), FACTOR, A());
}

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

// Eight 4-bit values, the first four in the lower halves of the bytes, as four registers of pairs:
// values 0 and 2, 1 and 3, 4 and 6, 5 and 7. Each is `int4_bias` too large; the caller subtracts
// int4_bias times the sum of x from the result.
__device__ __forceinline__ void unpack_int4(u32 word, u32 (&pairs)[4], bf16) {
#pragma unroll
    for (int i = 0; i < 4; i++)  // in the lower bits of 128
        pairs[i] = and_or<0x000f000f, 0x43004300>(word >> (i % 2 * 8 + i / 2 * 4));
}
__device__ __forceinline__ void unpack_int4(u32 word, u32 (&pairs)[4], half) {
#pragma unroll
    for (int i = 0; i < 4; i++)  // in bits 4 to 7 of 64, which stand for integers
        pairs[i] = and_or<0x00f000f0, 0x54005400>(i ? word >> (i % 2 * 4 + i / 3 * 4) : word << 4);
}
constexpr float int4_bias(bf16) { return 128; }
constexpr float int4_bias(half) { return 64; }
constexpr float int4_bias(float) { return 0; }

// The e2m1 elements in the four bits from AT on of both halves of a register, as a pair: exponent and fraction at T's
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
// A group's scale as a factor of placed pairs, from its exponent field; of group p, from the fields of four groups.
__device__ __forceinline__ u32 e2m1_factor(u32 field, bf16) { return field * 0x00800080; }
__device__ __forceinline__ u32 e2m1_factor(u32 field, half) { return field * 0x04000400; }
template <typename A> __device__ __forceinline__ u32 e2m1_factor(u32 fields, int p, A) {
    return __byte_perm(fields, 0, 0x4040 + p * 0x0101) << (Same<A, half>::value ? 10 : 7);
}
// Eight e2m1 elements times their scale, in the order of unpack_int4.
template <typename A> __device__ __forceinline__ void unpack_mxfp4(u32 word, u32 factor, u32 (&pairs)[4], A) {
    pairs[0] = multiply_pairs(place_e2m1<0>(word, A()), factor, A());
    pairs[1] = multiply_pairs(place_e2m1<8>(word, A()), factor, A());
    pairs[2] = multiply_pairs(place_e2m1<4>(word, A()), factor, A());
    pairs[3] = multiply_pairs(place_e2m1<12>(word, A()), factor, A());
}

// A single value in fp32; i counts in the order of the columns. The bits of an integer become the last ones of 2^23:
// conversion instructions are four times slower.
__device__ __forceinline__ float int8_at(u32 bytes, int i) {
    return __uint_as_float(__byte_perm(bytes ^ 0x80808080, 0x4b000000, 0x7440 | i)) - 0x1.0001p23f;
}
__device__ __forceinline__ float fp8_at(u32 bytes, int i) {
    u32 byte = bytes >> (8 * i);
    return __uint_as_float((byte & 0x80) << 24 | (byte & 0x7f) << 20) * 0x1p120f;
}
__device__ __forceinline__ float int4_at(u32 word, int i) {
    return __uint_as_float(and_or<15, 0x4b000000>(word >> (i % 4 * 8 + i / 4 * 4))) - 0x1p23f;
}
__device__ __forceinline__ float e2m1_at(u32 word, int i) {
    u32 bits = word >> (i % 4 * 8 + i / 4 * 4);
    return __uint_as_float((bits & 8) << 28 | (bits & 7) << 22) * 0x1p126f;
}
