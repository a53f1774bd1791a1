// Hopper's warpgroup matmul (wgmma): 64 rows × N columns × 16 by four warps, asynchronous, with operands in
// shared memory. Only for sm_90a.
//
// Tiles have the layout of `chunk_offset` in attention/mma_softmax.cuh and are aligned to 1024 bytes. A descriptor holds
// a tile's address (bits 0-13), the distance of its 64-column panels (bits 16-29, used if rows are the summed
// dimension) and of its groups of eight rows (bits 32-45), all in units of 16 bytes, and the 128-byte swizzle
// (1 in bits 62-63). Offsets in a tile are added to the address, because the swizzle uses bits 7-9 of the
// final address.
#pragma once
#include "common/common.cuh"

template <int ROWS> __device__ __forceinline__ u64 tile_descriptor(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(ROWS * 128 >> 4) << 16 |
           (u64)(8 * 128 >> 4) << 32 | 1ull << 62;
}

// Required before the first wgmma and whenever other instructions wrote registers that wgmma uses.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// The compiler does not know that wgmma changes the accumulators until the wait. `fence_operand` before and after
// keeps other uses of them, and of operands in registers, in place.
template <int N> __device__ __forceinline__ void fence_operand(float (&c)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
}
template <int N> __device__ __forceinline__ void fence_operand(u32 (&a)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(a[i])::"memory");
}
// Waits until at most PENDING groups are incomplete.
template <int PENDING = 0> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

template <int COUNT> __device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
// Makes writes to shared memory visible to wgmma.
__device__ __forceinline__ void wgmma_proxy_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void warpgroup_barrier(int id) {
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

// Lists of the accumulators of an instruction: their operands, and their constraints from c[i] on.
#define SUMS_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SUMS_16(c, i) SUMS_4(c, i), SUMS_4(c, i + 4), SUMS_4(c, i + 8), SUMS_4(c, i + 12)
#define SUMS_32(c, i) SUMS_16(c, i), SUMS_16(c, i + 16)
#define SUMS_48(c, i) SUMS_32(c, i), SUMS_16(c, i + 32)
#define SUMS_64(c, i) SUMS_32(c, i), SUMS_32(c, i + 32)
#define SUMS_96(c, i) SUMS_64(c, i), SUMS_32(c, i + 64)
#define SUMS_128(c, i) SUMS_64(c, i), SUMS_64(c, i + 64)
#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_48 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_64 NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_96 NAMES_64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
    "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_128 NAMES_96 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
    "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
    "%126, %127"

// Both operands in shared memory; each row has 16 consecutive elements of the summed dimension.
#define WGMMA_SS(N, TYPE, NAMES, SUMS, A, B, ADD)                                                         \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %" #ADD ", 0;"                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES "}, %" #A     \
                 ", %" #B ", add, 1, 1, 0, 0; }"                                                          \
                 : SUMS(c, 0)                                                                             \
                 : "l"(a), "l"(b), "r"(add))
// c (+)= a · bᵀ; without `add`, c is overwritten.
template <typename A, int N>
__device__ __forceinline__ void wgmma_ss(float (&c)[N], u64 a, u64 b, int add) {
    constexpr bool IS_HALF = Same<A, half>::value;
    static_assert(N == 32 || N == 64);
    if constexpr (N == 64 && IS_HALF)
        WGMMA_SS(128, "f16", NAMES_64, SUMS_64, 64, 65, 66);
    else if constexpr (N == 64)
        WGMMA_SS(128, "bf16", NAMES_64, SUMS_64, 64, 65, 66);
    else if constexpr (IS_HALF)
        WGMMA_SS(64, "f16", NAMES_32, SUMS_32, 32, 33, 34);
    else
        WGMMA_SS(64, "bf16", NAMES_32, SUMS_32, 32, 33, 34);
}

// The left operand in registers.
#define WGMMA_RS_TYPE(N, TYPE, NAMES, SUMS, A0, A1, A2, A3, B, ORDER)                                     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES "}, {%" #A0   \
                 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", 1, 1, 1, %" #ORDER ";"                        \
                 : SUMS(c, 0)                                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ROWS_SUMMED))
#define WGMMA_RS(N, NAMES, SUMS, ...)                                                                     \
    if constexpr (Same<A, half>::value) WGMMA_RS_TYPE(N, "f16", NAMES, SUMS, __VA_ARGS__);                \
    else WGMMA_RS_TYPE(N, "bf16", NAMES, SUMS, __VA_ARGS__)
// c += a · b, 64 × N sums, of which a thread has c[0] … c[N / 2 - 1]. The right operand has N columns, and its rows are
// the summed dimension; or without ROWS_SUMMED it has N rows of 16 elements of the summed dimension.
template <typename A, bool ROWS_SUMMED, int N>
__device__ __forceinline__ void wgmma_rs(float* c, const u32 (&a)[4], u64 b) {
    static_assert(N == 32 || N == 64 || N == 96 || N == 128 || N == 192 || N == 256);
    if constexpr (N == 32) {
        WGMMA_RS(32, NAMES_16, SUMS_16, 16, 17, 18, 19, 20, 21);
    } else if constexpr (N == 64) {
        WGMMA_RS(64, NAMES_32, SUMS_32, 32, 33, 34, 35, 36, 37);
    } else if constexpr (N == 96) {
        WGMMA_RS(96, NAMES_48, SUMS_48, 48, 49, 50, 51, 52, 53);
    } else if constexpr (N == 128) {
        WGMMA_RS(128, NAMES_64, SUMS_64, 64, 65, 66, 67, 68, 69);
    } else if constexpr (N == 192) {
        WGMMA_RS(192, NAMES_96, SUMS_96, 96, 97, 98, 99, 100, 101);
    } else {
        WGMMA_RS(256, NAMES_128, SUMS_128, 128, 129, 130, 131, 132, 133);
    }
}
