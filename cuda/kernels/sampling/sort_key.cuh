// A logit and its id as one number: the larger logit is the larger number, and of equal logits the
// one with the lower id. No two ids of a row have the same number, and none has 0 or ~0.
#pragma once
#include "common/common.cuh"

__device__ __forceinline__ u64 rank_key(float logit, int id) {
    u32 bits = __float_as_uint(logit + 0.f);  // makes -0 a 0: they are equal
    bits ^= bits >> 31 ? ALL : 0x80000000u;
    return (u64)bits << 32 | (u32)~id;
}
__device__ __forceinline__ float key_logit(u64 key) {
    u32 bits = (u32)(key >> 32);
    return __uint_as_float(bits >> 31 ? bits ^ 0x80000000u : ~bits);
}
__device__ __forceinline__ int key_id(u64 key) { return (int)~(u32)key; }
