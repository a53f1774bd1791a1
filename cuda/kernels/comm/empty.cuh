// Numbers that say themselves whether they have arrived, so that one trip to memory brings them; a
// counter would take two more.
#pragma once
#include "common/common.cuh"

// A number that is not there yet: a NaN that no computation gives.
constexpr u32 EMPTY = ~0u;

__device__ __forceinline__ u32 never_empty(float v) {
    u32 bits = __float_as_uint(v);
    return bits == EMPTY ? 0x7fffffffu : bits;
}
