// Reductions over a warp and over a block. Every thread gets the result; the order does not depend on
// timing.
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

// All threads of the block must call it; THREADS is a multiple of 32. `scratch` in shared memory has
// THREADS / 32 elements and can be used again immediately.
template <int THREADS, typename Op, typename A>
__device__ __forceinline__ A block_reduce(A value, Op op, A* scratch) {
    constexpr int WARPS = THREADS / WARP;
    static_assert(THREADS % WARP == 0 && WARPS <= WARP);
    value = warp_reduce(value, op);
    __syncthreads();  // all threads have read the scratch of an earlier call
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    value = scratch[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) value = op(value, scratch[i]);
    return value;
}

// Sums N values of each thread in one pass; `scratch` is as above, for each value.
template <int THREADS, int N>
__device__ __forceinline__ void block_sums(u64 (&values)[N], u64 (*scratch)[THREADS / WARP]) {
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = warp_reduce(values[i], Sum());
    __syncthreads();  // all threads have read the scratch of an earlier call
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

// Adds 1 to a counter in global memory and returns its previous value. Has acquire and release
// semantics: writes of this block before its last __syncthreads() are visible to a block that reads
// the new value, and the other way round.
__device__ __forceinline__ u64 count_arrival(u64* counter) {
    u64 before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;"
                 : "=l"(before)
                 : "l"(__cvta_generic_to_global(counter))
                 : "memory");
    return before;
}
