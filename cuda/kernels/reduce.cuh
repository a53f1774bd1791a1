// Reductions over a warp and over a block; every thread gets the result, in an order that does
// not depend on timing.
#pragma once
#include "common.cuh"

struct Sum {
    template <typename A> __device__ __forceinline__ A operator()(A a, A b) const { return a + b; }
};
struct Max {
    template <typename A> __device__ __forceinline__ A operator()(A a, A b) const {
        return a > b ? a : b;
    }
};

template <typename Op, typename A> __device__ __forceinline__ A warp_reduce(A value, Op op) {
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2)
        value = op(value, __shfl_xor_sync(ALL, value, offset));
    return value;
}

// All THREADS (a multiple of 32) threads of a block call it; `scratch` has THREADS / 32 places and may
// be used again at once.
template <int THREADS, typename Op, typename A>
__device__ __forceinline__ A block_reduce(A value, Op op, A* scratch) {
    constexpr int WARPS = THREADS / WARP;
    static_assert(THREADS % WARP == 0 && WARPS <= WARP);
    value = warp_reduce(value, op);
    __syncthreads();  // whoever read the scratch of an earlier call is done
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    value = scratch[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) value = op(value, scratch[i]);
    return value;
}
