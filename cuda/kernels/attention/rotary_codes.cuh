// How rotary stores a head as codes and a factor (codes.cuh).
#pragma once
#include "attention/codes.cuh"
#include "common/vectors.cuh"
#if KV_SCHEME == E4M3_CODES
#include <cuda_fp8.h>
#endif

constexpr float LARGEST_CODE = KV_SCHEME == INT8_CODES ? 127.f : 448.f;
constexpr float SMALLEST_FACTOR = 0x1p-100f;  // by which zeros can be divided

// Rounds to the nearest, ties to even; `at` is no larger than the largest code by more than rounding.
__device__ __forceinline__ u8 to_code(float at) {
#if KV_SCHEME == INT8_CODES
    return (u8)(signed char)__float2int_rn(at);
#else
    return __nv_cvt_float_to_fp8(at, __NV_SATFINITE, __NV_E4M3);
#endif
}

// The factor of a head of which `items` neighboring lanes hold a part each. Compared as integers,
// what is not finite is the largest, and so is the factor not finite.
template <int N>
__device__ __forceinline__ float factor_of(const float (&at)[N], int items) {
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < N; i++) largest = max(largest, __float_as_uint(fabsf(at[i])));
    u32 first = threadIdx.x % WARP & ~(items - 1);
    u32 sharers = (items == WARP ? ALL : (1u << items) - 1) << first;
    for (int lanes = 1; lanes < items; lanes *= 2)
        largest = max(largest, __shfl_xor_sync(sharers, largest, lanes));
    u32 factor = __float_as_uint(__uint_as_float(largest) / LARGEST_CODE);
    return __uint_as_float(max(factor, __float_as_uint(SMALLEST_FACTOR)));
}

// Stores the W numbers from at[FIRST] on.
template <int FIRST, int W, int N>
__device__ __forceinline__ void store_codes(u8* to, const float (&at)[N], float factor) {
    Vec<u8, W> codes;
#pragma unroll
    for (int i = 0; i < W; i++) codes.at[i] = to_code(at[FIRST + i] / factor);
    *reinterpret_cast<Vec<u8, W>*>(to) = codes;
}
