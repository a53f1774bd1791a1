// The KV cache of --kv-dtype int5: heads rotated by a Hadamard matrix, values in 5 bits, keys in 6, and an fp32
// scale for each row (engine/model/int5_kv.py has the layout). An element is (u - LEVELS) * scale.
//
// Keys: a 32-bit word has the lower four bits of eight elements; in each half of it the nibbles are, from the
// lowest on, of the dimensions d, d + DIMS / 2, d + 1, d + 1 + DIMS / 2, with d two larger in the upper half. So
// nibble i of both halves is a pair of dimensions two apart. A word of a key's upper two bits belongs to
// the word with the same number and to the one DIMS / 16 words on: their nibble i has its field 2 i, or
// 2 i + 1.
// Values: eight elements take 40 bits: two 16-bit words of three elements each, from the lowest bit on, and a
// byte of the seventh and the lower bits of the eighth, whose bits 3 and 4 are the upper bits of the words.
#pragma once
#include "common/pairs.cuh"

constexpr bool IS_BF16 = Same<T, bf16>::value;
constexpr u32 KEY_LEVELS = 32, VALUE_LEVELS = 16;
constexpr u32 BASE = IS_BF16 ? 0x43004300u : 0x64006400u;  // 128 or 1024: an integer in the lowest bits is added
constexpr u32 KEY_BASE = BASE + KEY_LEVELS * 0x10001u, VALUE_BASE = BASE + VALUE_LEVELS * 0x10001u;
constexpr float VALUE_SCALE = 1;

// Nibble I of both halves of `x`, as T, plus BASE.
template <int I> __device__ __forceinline__ u32 low_bits(u32 x) {
    return and_or<0x000f000fu, BASE>(x >> 4 * I);
}

// The same for keys, with field FIELD of both halves of `bits` above the nibble.
template <int I, int FIELD> __device__ __forceinline__ u32 key_pair(u32 x, u32 bits) {
    u32 high = FIELD < 2 ? bits << (4 - 2 * FIELD) : bits >> (2 * FIELD - 4);
    return (high & 0x00300030u) | low_bits<I>(x);
}

// Field I of both halves of `words`, three values of five bits, as T, plus BASE.
template <int I> __device__ __forceinline__ u32 value_pair(u32 words) {
    return and_or<0x001f001fu, BASE>(words >> 5 * I);
}

// The same for the eighth values: three bits are in both halves of `bits` from bit SHIFT on.
template <int SHIFT> __device__ __forceinline__ u32 eighth_pair(u32 bits, u32 first, u32 second) {
    u32 low = and_or<0x00070007u, BASE>(bits >> SHIFT);
    return low | (first >> 12 & 0x00080008u) | (second >> 11 & 0x00100010u);
}
