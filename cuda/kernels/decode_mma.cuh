// Tensor-core products of 16-bit elements and asynchronous copies (sm_80 and newer): a function
// for each instruction. Lane = 4 g + t; what a lane holds of a tile:
//   a (16 × 16): (g, 2t..2t+1) (g+8, 2t..) (g, 2t+8..) (g+8, 2t+8..)
//   b (16 × 8):  (2t..2t+1, g) (2t+8.., g)
//   c (16 × 8):  (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1)
#pragma once
#include "common.cuh"

// Requests 16 bytes for shared memory, past L1; zeros, and nothing is read, if not `valid`.
__device__ __forceinline__ void copy_16_async(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (u32)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
                 : "memory");
}

// Ends a group of this thread's requests, possibly an empty one.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Returns when all but the newest PENDING groups of this thread have arrived.
template <int PENDING> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four 8 × 8 matrices; lane i gives the address of row i % 8 of matrix i / 8, 16 bytes.
__device__ __forceinline__ void load_matrices(u32 (&a)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(u32 (&a)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// An 8 × 8 matrix of which each lane holds (g, 2t..2t+1), transposed.
__device__ __forceinline__ u32 transpose(u32 pair) {
    u32 result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
}

// Two elements of type A in a register, the first in the lower half.
template <typename A> __device__ __forceinline__ u32 pack(float first, float second) {
    Vec<A, 2> pair = {from_float<A>(first), from_float<A>(second)};
    return *reinterpret_cast<u32*>(&pair);
}

// c += a b
template <typename A>
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]);
template <>
__device__ __forceinline__ void mma<bf16>(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ __forceinline__ void mma<half>(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
