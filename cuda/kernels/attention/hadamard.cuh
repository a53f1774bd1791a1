// Multiplication by Sylvester's Hadamard matrix, in the registers of several lanes.
#pragma once
#include "common/common.cuh"

// Multiplies a vector of N * lanes elements by its Hadamard matrix, without the factor 1 / sqrt(size). Lanes
// that differ in the bits below `lanes`, a power of two, hold N elements each; the bits of a place, of an
// index or a lane, may be any bits of the element's number. The lanes of `mask` call it together.
template <int N>
__device__ __forceinline__ void hadamard(float (&x)[N], int lanes, u32 mask) {
#pragma unroll
    for (int step = 1; step < N; step *= 2)
#pragma unroll
        for (int i = 0; i < N; i++)
            if (!(i & step)) {
                float low = x[i], high = x[i + step];
                x[i] = low + high;
                x[i + step] = low - high;
            }
#pragma unroll 1
    for (int step = 1; step < lanes; step *= 2) {
        bool upper = threadIdx.x & step;
#pragma unroll
        for (int i = 0; i < N; i++) {
            float other = __shfl_xor_sync(mask, x[i], step);
            x[i] = upper ? other - x[i] : x[i] + other;
        }
    }
}
