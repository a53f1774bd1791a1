// Barriers in shared memory that also count bytes, and the bulk copies that complete on them.
// Before sm_90 there are no bulk copies: `copy_rows` then uses 16-byte asynchronous copies.
#pragma once
#include "common.cuh"

__device__ __forceinline__ void barrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
}

// Makes initialised barriers visible to the copy engine; the threads still need a __syncthreads.
__device__ __forceinline__ void barrier_init_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void barrier_arrive(u64* barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(
                     shared_address(barrier))
                 : "memory");
}

// Returns when the barrier's phase of this parity is complete.
__device__ __forceinline__ void barrier_wait(u64* barrier, u32 parity) {
    u32 address = shared_address(barrier), done;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(address), "r"(parity)
            : "memory");
#else
        asm volatile(
            "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(address), "r"(parity)
            : "memory");
#endif
    } while (!done);
}

// A warp brings ROWS rows of `bytes` (a multiple of 16) to shared memory, row r to `to + r * stride`,
// and completes one phase of `barrier`, initialised with COPY_ARRIVALS. Lane r has row r's address,
// and every lane the one of row `lane % ROWS`. What is read once need not stay in L2.
#if __CUDA_ARCH__ >= 900
constexpr u32 COPY_ARRIVALS = 1;
#else
constexpr u32 COPY_ARRIVALS = WARP;
#endif

template <int ROWS>
__device__ __forceinline__ void copy_rows(u8* to, int stride, const void* from, u32 bytes,
                                          u64* barrier) {
    int lane = threadIdx.x % WARP;
#if __CUDA_ARCH__ >= 900
    u32 address = shared_address(barrier);
    if (lane == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address),
                     "r"(bytes * ROWS)
                     : "memory");
    __syncwarp();
    u64 evict_first;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(evict_first));
    if (lane < ROWS)
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to + lane * stride)),
            "l"(from), "r"(bytes), "r"(address), "l"(evict_first)
            : "memory");
#else
    constexpr int LANES = WARP / ROWS;  // that share a row
    u32 row = shared_address(to + lane % ROWS * stride);
    for (u32 at = lane / ROWS * 16; at < bytes; at += LANES * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(row + at),
                     "l"((const u8*)from + at)
                     : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
                 : "memory");
#endif
}

// A barrier among the first THREADS threads of a block, or any fixed set that uses the same `id`.
template <int ID, int THREADS> __device__ __forceinline__ void named_barrier() {
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

// Counts towards a `named_barrier` without waiting for it.
template <int ID, int THREADS> __device__ __forceinline__ void named_arrive() {
    asm volatile("bar.arrive %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
