// Tensor-core matmuls (mma.sync) of 16-bit elements with fp32 sums, and of int8 with int32 sums.
#pragma once
#include "common/common.cuh"

// c[16 × 8] += a[16 × 16] · b[16 × 8] for a warp. Thread (g, t) = (lane / 4, lane % 4) holds, two elements
// in a register: a0 (g, 2t), a1 (g + 8, 2t), a2 (g, 2t + 8), a3 (g + 8, 2t + 8); b0 (2t, g), b1 (2t + 8, g);
// c0, c1 (g, 2t), c2, c3 (g + 8, 2t).
template <typename A>
__device__ __forceinline__ void mma(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    if constexpr (Same<A, bf16>::value)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <typename A>
__device__ __forceinline__ void mma(float* c, const u32 (&a)[4], u32 b0, u32 b1) {
    mma<A>(c, a[0], a[1], a[2], a[3], b0, b1);
}

// The same for int8 with int32 sums, c[16 × 8] += a[16 × 32] · b[32 × 8]: four elements in a register,
// a0 (g, 4t), a1 (g + 8, 4t), a2 (g, 4t + 16), a3 (g + 8, 4t + 16); b0 (4t, g), b1 (4t + 16, g).
__device__ __forceinline__ void mma_int8(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Transposes an 8 × 8 matrix of 16-bit elements: thread (g, t) passes row g, columns 2t and 2t + 1.
__device__ __forceinline__ u32 transpose(u32 pair) {
    u32 transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
    return transposed;
}

// Loads four 8 × 8 matrices from shared memory; lane l passes the address of row l % 8 of matrix l / 8.
template <bool TRANSPOSED>
__device__ __forceinline__ void ldmatrix(u32 (&at)[4], u32 address) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(at[0]), "=r"(at[1]), "=r"(at[2]), "=r"(at[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(at[0]), "=r"(at[1]), "=r"(at[2]), "=r"(at[3])
                     : "r"(address)
                     : "memory");
}
