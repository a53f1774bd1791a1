// RMSNorm and rotary embedding of a head. Neighboring threads have an item of it each: 2 * WIDTH elements, in whole pairs.
// The algorithm is described in rotary.cu.
#pragma once
#include "common/pack.cuh"

constexpr int W = WIDTH;

struct Item {
    Pack<T, W> low, high;
};

// The norm weights at an item's place in the head.
struct NormWeight {
    Pack<T, W> low, high;
};

// The inverse root mean square of a head that `items` neighboring lanes hold in parts.
__device__ __forceinline__ float inverse_rms(const float (&at)[2 * W], int items, float eps) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 2 * W; i++) squares += at[i] * at[i];
    u32 lane = threadIdx.x % WARP, first = lane & ~(items - 1);
    u32 head_lanes = (items == WARP ? ALL : (1u << items) - 1) << first;
    for (int lanes = 1; lanes < items; lanes *= 2)
        squares += __shfl_xor_sync(head_lanes, squares, lanes);
    return rsqrtf(squares / (2 * W * items) + eps);
}

__device__ __forceinline__ void normalize(float (&at)[2 * W], bool is_query,
                                          const NormWeight& query, const NormWeight& key,
                                          int items, float eps, float weight_offset) {
    float scale = inverse_rms(at, items, eps);
#pragma unroll
    for (int i = 0; i < W; i++) {
        at[i] *= scale * ((is_query ? query.low[i] : key.low[i]) + weight_offset);
        at[W + i] *= scale * ((is_query ? query.high[i] : key.high[i]) + weight_offset);
    }
}

// Rotates an item's pairs by W consecutive angles.
__device__ __forceinline__ void rotate(float (&at)[2 * W], const Pack<float, W>& cos,
                                       const Pack<float, W>& sin) {
#pragma unroll
    for (int i = 0; i < W; i++) {
        float x = at[i], y = at[W + i];
        at[i] = x * cos[i] - y * sin[i];
        at[W + i] = y * cos[i] + x * sin[i];
    }
}

__device__ __forceinline__ void unpack(const Item& item, float (&at)[2 * W]) {
#pragma unroll
    for (int i = 0; i < W; i++) {
        at[i] = item.low[i];
        at[W + i] = item.high[i];
    }
}
__device__ __forceinline__ void pack(const float (&at)[2 * W], Item& item) {
    float low[W], high[W];
#pragma unroll
    for (int i = 0; i < W; i++) {
        low[i] = at[i];
        high[i] = at[W + i];
    }
    item.low = low;
    item.high = high;
}
