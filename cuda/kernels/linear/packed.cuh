// Numbers of 8 and 4 bits as T, exactly: what kernels do with the bytes they read.
//
// SCHEME is PLAIN (they are T), INT8, FP8 (e4m3) or INT4. A decoder layer's matrix is read at the speed of
// the memory, which leaves seven operations of a lane for a weight of 8 bits and half as many for 4:
// bits are moved to where they mean a number of T that is off by a known power or difference.
#pragma once
#include "common/common.cuh"

#define PLAIN 0
#define INT8 1
#define FP8 2
#define INT4 3

// Two neighbors of T's 16 bits each in a register, minus or times the same number twice.
__device__ __forceinline__ u32 minus(u32 a, u32 b, bf16) {
    __nv_bfloat162 c = __hsub2((__nv_bfloat162&)a, (__nv_bfloat162&)b);
    return (u32&)c;
}
__device__ __forceinline__ u32 minus(u32 a, u32 b, half) {
    __half2 c = __hsub2((__half2&)a, (__half2&)b);
    return (u32&)c;
}
__device__ __forceinline__ u32 times(u32 a, u32 b, bf16) {
    u32 c;  // plus -0, as there is no product alone before sm_90; keeps what is below normal numbers
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(c) : "r"(a), "r"(b), "r"(0x80008000u));
    return c;
}
__device__ __forceinline__ u32 times(u32 a, u32 b, half) {
    __half2 c = __hmul2((__half2&)a, (__half2&)b);
    return (u32&)c;
}

// (a & MASK) | BITS in one instruction; the compiler makes two of constants.
template <u32 MASK, u32 BITS> __device__ __forceinline__ u32 and_or(u32 a) {
    u32 c;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(c) : "r"(a), "n"(MASK), "r"(BITS));
    return c;
}

// Four int8 as two registers of pairs.
__device__ __forceinline__ void decode_int8(u32 bytes, u32 (&pairs)[2], bf16) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 spread = __byte_perm(bytes, 0, i ? 0x4342 : 0x4140);
        // 128 + the lower seven bits, minus 256 where the number is negative and 128 where not
        u32 low = and_or<0x007f007f, 0x43004300>(spread);
        u32 sign = and_or<0x00800080, 0x43004300>(spread);
        pairs[i] = minus(low, sign, bf16());
    }
}
__device__ __forceinline__ void decode_int8(u32 bytes, u32 (&pairs)[2], half) {
    u32 positive = bytes ^ 0x80808080;  // 128 more than the number
#pragma unroll
    for (int i = 0; i < 2; i++)  // the lower bits of 1024
        pairs[i] = minus(__byte_perm(positive, 0x64646464, i ? 0x4342 : 0x4140), 0x64806480, half());
}

// Two e4m3 as a pair: exponent and fraction at T's place mean the same number times 2^-120 (bf16) or
// 2^-8 (fp16), also below the smallest power. BYTES chooses two bytes and twice the sign of each,
// which stays what it is when all is moved up.
template <u32 BYTES> __device__ __forceinline__ u32 with_signs(u32 bytes) {
    u32 c;  // __byte_perm knows of no signs
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(c) : "r"(bytes), "n"(BYTES));
    return c;
}
template <u32 BYTES> __device__ __forceinline__ u32 moved_e4m3(u32 bytes, bf16) {
    return with_signs<BYTES>(bytes) << 4 & 0x87f087f0;
}
template <u32 BYTES> __device__ __forceinline__ u32 moved_e4m3(u32 bytes, half) {
    return with_signs<BYTES>(bytes) << 7 & 0xbf80bf80;
}

// Four e4m3 as two registers of pairs.
__device__ __forceinline__ void decode_fp8(u32 bytes, u32 (&pairs)[2], bf16) {
    pairs[0] = times(moved_e4m3<0x9180>(bytes, bf16()), 0x7b807b80, bf16());
    pairs[1] = times(moved_e4m3<0xb3a2>(bytes, bf16()), 0x7b807b80, bf16());
}
__device__ __forceinline__ void decode_fp8(u32 bytes, u32 (&pairs)[2], half) {
    pairs[0] = times(moved_e4m3<0x9180>(bytes, half()), 0x5c005c00, half());
    pairs[1] = times(moved_e4m3<0xb3a2>(bytes, half()), 0x5c005c00, half());
}

// Eight numbers of 4 bits, the first four in the low halves of the bytes, as four registers of pairs:
// numbers 0 and 2, 1 and 3, 4 and 6, 5 and 7. They are `int4_more` too large: one number times the sum
// of x takes that away.
__device__ __forceinline__ void decode_int4(u32 word, u32 (&pairs)[4], bf16) {
#pragma unroll
    for (int i = 0; i < 4; i++)  // the lower bits of 128
        pairs[i] = and_or<0x000f000f, 0x43004300>(word >> (i % 2 * 8 + i / 2 * 4));
}
__device__ __forceinline__ void decode_int4(u32 word, u32 (&pairs)[4], half) {
#pragma unroll
    for (int i = 0; i < 4; i++)  // 64 has fractions of a sixteenth: the bits above those
        pairs[i] = and_or<0x00f000f0, 0x54005400>(i ? word >> (i % 2 * 4 + i / 3 * 4) : word << 4);
}
constexpr float int4_more(bf16) { return 128; }
constexpr float int4_more(half) { return 64; }
constexpr float int4_more(float) { return 0; }

// The same in fp32, in the order of the columns.
__device__ __forceinline__ float int8_at(u32 bytes, int i) { return (signed char)(bytes >> (8 * i)); }
__device__ __forceinline__ float fp8_at(u32 bytes, int i) {
    u32 byte = bytes >> (8 * i);
    return __uint_as_float((byte & 0x80) << 24 | (byte & 0x7f) << 20) * 0x1p120f;
}
__device__ __forceinline__ float int4_at(u32 word, int i) {
    return (float)((word >> (i % 4 * 8 + i / 4 * 4)) & 15);
}
