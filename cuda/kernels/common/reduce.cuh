// Reductions over a warp and over a block; every thread gets the result, in an order that does
// not depend on timing.
#pragma once
#include "common/common.cuh"

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

// The sums of N values a thread, in one pass; `scratch` as above, for each of them.
template <int THREADS, int N>
__device__ __forceinline__ void block_sums(u64 (&values)[N], u64 (*scratch)[THREADS / WARP]) {
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = warp_reduce(values[i], Sum());
    __syncthreads();  // whoever read the scratch of an earlier call is done
    if (threadIdx.x % WARP == 0)
#pragma unroll
        for (int i = 0; i < N; i++) scratch[i][threadIdx.x / WARP] = values[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        values[i] = 0;
#pragma unroll
        for (int w = 0; w < THREADS / WARP; w++) values[i] += scratch[i][w];
    }
}

// Adds 1 to a counter of all blocks and returns what it was. What this block's threads wrote before
// their last __syncthreads() is visible to whoever sees the addition, and the other way round.
__device__ __forceinline__ u64 count_arrival(u64* counter) {
    u64 before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;"
                 : "=l"(before)
                 : "l"(__cvta_generic_to_global(counter))
                 : "memory");
    return before;
}
