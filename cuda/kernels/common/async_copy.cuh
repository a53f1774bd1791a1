// Asynchronous copies of 16 bytes to shared memory, which a thread waits for in groups.
#pragma once
#include "common/common.cuh"

// Copies 16 bytes asynchronously; writes zeros if not `valid`.
__device__ __forceinline__ void copy_chunk(u32 to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the last N groups of this thread are on their way.
template <int N> __device__ __forceinline__ void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
