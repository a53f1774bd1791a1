// How `rotary` stores a head as 8-bit values and a scale (quantized_kv.cuh).
#pragma once
#include "attention/quantized_kv.cuh"
#include "common/pack.cuh"
#if KV_SCHEME == KV_FP8
#include <cuda_fp8.h>
#endif

constexpr float MAX_VALUE = KV_SCHEME == KV_INT8 ? 127.f : 448.f;
constexpr float MIN_SCALE = 0x1p-100f;  // so that zeros can be divided by it

// Rounds to nearest, ties to even. `at` exceeds MAX_VALUE at most by rounding.
__device__ __forceinline__ u8 quantize_value(float at) {
#if KV_SCHEME == KV_INT8
    return (u8)(signed char)__float2int_rn(at);
#else
    return __nv_cvt_float_to_fp8(at, __NV_SATFINITE, __NV_E4M3);
#endif
}

// The scale of a head that `items` neighboring lanes hold in parts. Compared as integers, infinities and
// NaNs are the largest, so the scale of such a head is not finite.
template <int N>
__device__ __forceinline__ float head_scale(const float (&at)[N], int items) {
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < N; i++) largest = max(largest, __float_as_uint(fabsf(at[i])));
    u32 first = threadIdx.x % WARP & ~(items - 1);
    u32 head_lanes = (items == WARP ? ALL : (1u << items) - 1) << first;
    for (int lanes = 1; lanes < items; lanes *= 2)
        largest = max(largest, __shfl_xor_sync(head_lanes, largest, lanes));
    u32 scale = __float_as_uint(__uint_as_float(largest) / MAX_VALUE);
    return __uint_as_float(max(scale, __float_as_uint(MIN_SCALE)));
}

// Quantizes and stores the W elements from at[FIRST] on.
template <int FIRST, int W, int N>
__device__ __forceinline__ void store_quantized(u8* to, const float (&at)[N], float scale) {
    Vec<u8, W> values;
#pragma unroll
    for (int i = 0; i < W; i++) values.at[i] = quantize_value(at[FIRST + i] / scale);
    *reinterpret_cast<Vec<u8, W>*>(to) = values;
}
