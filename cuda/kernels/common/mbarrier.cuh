// mbarriers in shared memory, and the asynchronous copies that complete on them. sm_90 and newer use
// bulk and tensor copies (TMA); older GPUs use 16-byte cp.async copies by all lanes instead.
#pragma once
#include "common/common.cuh"

__device__ __forceinline__ void barrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
}

// Makes initialized barriers visible to the copy engine; the threads also need a __syncthreads.
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

// Returns when the phase of this parity of the barrier at a shared address is complete.
__device__ __forceinline__ void barrier_wait(u32 address, u32 parity) {
    u32 done;
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
__device__ __forceinline__ void barrier_wait(u64* barrier, u32 parity) {
    barrier_wait(shared_address(barrier), parity);
}

// Orders earlier writes to shared memory before later writes of the copy engine.
__device__ __forceinline__ void copy_engine_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// A phase completes after COPY_ARRIVALS arrivals and the expected number of bytes.
#if __CUDA_ARCH__ >= 900
constexpr u32 COPY_ARRIVALS = 1;

// Arrives, and adds `bytes` to the expected number of bytes.
__device__ __forceinline__ void barrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}
#else
constexpr u32 COPY_ARRIVALS = WARP;

// Starts a copy of 16 bytes to shared memory, bypassing L1; if not `valid`, writes zeros instead.
__device__ __forceinline__ void copy_16_async(void* to, const void* from, bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
                 : "memory");
}

// Arrives when all copies that this thread has started are complete.
__device__ __forceinline__ void arrive_after_copies(u64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}
#endif

// A tensor map (CUtensorMap): the copy engine's description of a matrix and of the copied boxes.
struct alignas(64) TensorMap {
    u64 opaque[16];
};

#if __CUDA_ARCH__ >= 900
// Returns true for one thread of a warp.
__device__ __forceinline__ bool elected() {
    u32 is_it;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(is_it));
    return is_it;
}

// Prefetches a tensor map into the copy engine's cache.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies the box at (row, column); elements outside the matrix are zero. One thread calls it.
__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, int column, int row,
                                         u64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
        "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
        : "memory");
}

// L2 policies. Evict first: for what is read once.
__device__ __forceinline__ u64 evict_first() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// The same with an L2 policy.
__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, int column, int row, u64* barrier,
                                         u64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
        "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}

// The same for a map of a tensor of three dimensions.
__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, int column, int middle, int row,
                                         u64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
        "l"(&map), "r"(column), "r"(middle), "r"(row), "r"(shared_address(barrier))
        : "memory");
}

// Copies `bytes` (a multiple of 16) between addresses aligned to 16. One thread calls it.
__device__ __forceinline__ void copy_bytes(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// The same with an L2 policy.
__device__ __forceinline__ void copy_bytes(void* to, const void* from, u32 bytes, u64* barrier, u64 policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}
#endif

// A warp copies NUM_ROWS rows of `bytes` (a multiple of 16) to shared memory, row r to `to + r * stride`,
// and completes one phase of `barrier`, which was initialized with COPY_ARRIVALS. `from` is the address
// of row `lane % NUM_ROWS`. The rows are read once, so L2 evicts them first.
template <int NUM_ROWS>
__device__ __forceinline__ void copy_rows(u8* to, int stride, const void* from, u32 bytes,
                                          u64* barrier) {
#if __CUDA_ARCH__ >= 900
    const void* row[NUM_ROWS];
#pragma unroll
    for (int r = 0; r < NUM_ROWS; r++) row[r] = (const void*)__shfl_sync(ALL, (u64)from, r);
    if (!elected()) return;  // elect.sync: the compiler generates no loop over threads
    barrier_expect(barrier, bytes * NUM_ROWS);
    u64 policy = evict_first();
#pragma unroll
    for (int r = 0; r < NUM_ROWS; r++)
        copy_bytes(to + r * stride, row[r], bytes, barrier, policy);
#else
    constexpr int LANES = WARP / NUM_ROWS;  // that share a row
    int lane = threadIdx.x % WARP;
    u8* row = to + lane % NUM_ROWS * stride;
    for (u32 at = lane / NUM_ROWS * 16; at < bytes; at += LANES * 16)
        copy_16_async(row + at, (const u8*)from + at);
    arrive_after_copies(barrier);
#endif
}

// A barrier among THREADS threads of a block: the fixed set that uses this ID.
template <int ID, int THREADS> __device__ __forceinline__ void named_barrier() {
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

// Arrives at a `named_barrier` without waiting.
template <int ID, int THREADS> __device__ __forceinline__ void named_arrive() {
    asm volatile("bar.arrive %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
