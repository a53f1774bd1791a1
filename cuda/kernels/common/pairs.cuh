// Arithmetic of two 16-bit elements in a register, and exact conversion of e4m3 values to them.
#pragma once
#include "common/common.cuh"

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
__device__ __forceinline__ float2 pair_floats(u32 pair, bf16) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
}
__device__ __forceinline__ float2 pair_floats(u32 pair, half) { return __half22float2((__half2&)pair); }

// (a & MASK) | BITS in one instruction; from constants the compiler would make two.
template <u32 MASK, u32 BITS> __device__ __forceinline__ u32 and_or(u32 a) {
    u32 c;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(c) : "r"(a), "n"(MASK), "r"(BITS));
    return c;
}
// (a & mask) ^ bits
__device__ __forceinline__ u32 and_xor(u32 a, u32 mask, u32 bits) {
    u32 c;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(c) : "r"(a), "r"(mask), "r"(bits));
    return c;
}
__device__ __forceinline__ u32 permute_bytes(u32 a, u32 b, u32 selector) {
    u32 c;  // prmt can replicate signs; __byte_perm cannot
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(c) : "r"(a), "r"(b), "r"(selector));
    return c;
}

// Two e4m3 values as a pair: exponent and fraction at T's place mean the value times 2^-120 (bf16) or
// 2^-8 (fp16), subnormal values too. BYTES selects two bytes and, above each, a byte of its sign
// bits, from which the shift keeps the sign.
template <u32 BYTES> __device__ __forceinline__ u32 spread_bytes(u32 bytes) {
    u32 c;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(c) : "r"(bytes), "n"(BYTES));
    return c;
}
template <u32 BYTES> __device__ __forceinline__ u32 shift_e4m3(u32 bytes, bf16) {
    return spread_bytes<BYTES>(bytes) << 4 & 0x87f087f0;
}
template <u32 BYTES> __device__ __forceinline__ u32 shift_e4m3(u32 bytes, half) {
    return spread_bytes<BYTES>(bytes) << 7 & 0xbf80bf80;
}
