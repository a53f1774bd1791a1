// Sentinel values: elements that show by themselves whether they have arrived. Reading them takes one
// trip to memory; a separate counter or flag would take two more.
#pragma once
#include "common/common.cuh"

// Marks an element that has not arrived: a NaN that no computation returns.
constexpr u32 SENTINEL = ~0u;

__device__ __forceinline__ u32 not_sentinel(float v) {
    u32 bits = __float_as_uint(v);
    return bits == SENTINEL ? 0x7fffffffu : bits;
}
