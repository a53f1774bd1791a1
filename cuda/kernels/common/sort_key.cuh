// A logit and its id as one 64-bit sort key: larger logits have larger keys, and of equal logits the
// lower id has the larger key. Keys of a row are unique and never 0 or ~0.
#pragma once
#include "common/common.cuh"

__device__ __forceinline__ u64 sort_key(float logit, int id) {
    u32 bits = __float_as_uint(logit + 0.f);  // turns -0 into 0, which is equal
    bits ^= bits >> 31 ? ALL : 0x80000000u;
    return (u64)bits << 32 | (u32)~id;
}
__device__ __forceinline__ float key_logit(u64 key) {
    u32 bits = (u32)(key >> 32);
    return __uint_as_float(bits >> 31 ? bits ^ 0x80000000u : ~bits);
}
__device__ __forceinline__ int key_id(u64 key) { return (int)~(u32)key; }
