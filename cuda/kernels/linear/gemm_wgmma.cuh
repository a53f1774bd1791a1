// The sm_90a path of packed_gemm: a warpgroup multiplies 64 weight rows, in registers, by wgmma. It runs while the
// next 64 columns are converted.
#pragma once
#include "linear/gemm_operands.cuh"

template <int N> __device__ __forceinline__ void fence_operand(float (&c)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
}
__device__ __forceinline__ void fence_operand(u32 (&a)[4][4]) {
#pragma unroll
    for (int i = 0; i < 16; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_WARPS == 8 ? 232 : 112));
}
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(CONSUMER_WARPS == 8 ? 40 : 32));
}
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define OUT_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define OUT_16(c, i) OUT_4(c, i), OUT_4(c, i + 4), OUT_4(c, i + 8), OUT_4(c, i + 12)
#define OUT_32(c, i) OUT_16(c, i), OUT_16(c, i + 16)
#define OUT_48(c, i) OUT_32(c, i), OUT_16(c, i + 32)
#define OUT_64(c, i) OUT_32(c, i), OUT_32(c, i + 32)
#define OUT_96(c, i) OUT_64(c, i), OUT_32(c, i + 64)
#define OUT_128(c, i) OUT_64(c, i), OUT_64(c, i + 64)
#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_48 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_64 NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_96                                                                                        \
    NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, "  \
             "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_128                                                                                       \
    NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
             "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "     \
             "%125, %126, %127"
#define MULTIPLY(N, TYPE, NAMES, OUT, A0, A1, A2, A3, B)                                   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES "}, {%" #A0 ", %" #A1 \
                 ", %" #A2 ", %" #A3 "}, %" #B ", 1, 1, 1, 0;"                             \
                 : OUT(c, 0)                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define MULTIPLY_BOTH(N, NAMES, OUT, A0, A1, A2, A3, B)                                    \
    if constexpr (Same<T, half>::value) MULTIPLY(N, "f16", NAMES, OUT, A0, A1, A2, A3, B); \
    else MULTIPLY(N, "bf16", NAMES, OUT, A0, A1, A2, A3, B)

// c[64 × N] += a · bᵀ; b describes N rows of 16 columns.
template <int N> __device__ __forceinline__ void wgmma(float (&c)[N / 2], const u32 (&a)[4], u64 b) {
    static_assert(N == 32 || N == 64 || N == 96 || N == 128 || N == 192 || N == 256);
    if constexpr (N == 32) {
        MULTIPLY_BOTH(32, NAMES_16, OUT_16, 16, 17, 18, 19, 20);
    } else if constexpr (N == 64) {
        MULTIPLY_BOTH(64, NAMES_32, OUT_32, 32, 33, 34, 35, 36);
    } else if constexpr (N == 96) {
        MULTIPLY_BOTH(96, NAMES_48, OUT_48, 48, 49, 50, 51, 52);
    } else if constexpr (N == 128) {
        MULTIPLY_BOTH(128, NAMES_64, OUT_64, 64, 65, 66, 67, 68);
    } else if constexpr (N == 192) {
        MULTIPLY_BOTH(192, NAMES_96, OUT_96, 96, 97, 98, 99, 100);
    } else {
        MULTIPLY_BOTH(256, NAMES_128, OUT_128, 128, 129, 130, 131, 132);
    }
}

// Starts the products of 64 columns; returns when those of the 64 columns before are complete.
template <int HALF>
__device__ __forceinline__ void multiply_half(const Arguments& a, Rings& rings, RingState& state,
                                              float (&sums)[BLOCK_N / 2], u32 (&operands)[4][4], int& pending) {
    constexpr bool FIRST = X_BOXES == 1 || HALF == 0, LAST = X_BOXES == 1 || HALF == 1;  // of a stage
    if (FIRST) barrier_wait(&rings.x_full[state.x], state.x_parity);
    u32 address = shared_address(rings.x + state.x * X_STAGE_BYTES + (FIRST ? 0 : X_BOX_BYTES));
    // 128-byte swizzle; groups of eight rows are 1024 bytes apart.
    u64 right = (u64)((address & 0x3ffff) >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
    fence_operand(operands);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < 4; step++) wgmma<BLOCK_N>(sums, operands[step], right + step * 2);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    wgmma_wait<1>();
    if (FIRST) {
        if (pending >= 0) release_activations(&rings.x_empty[pending]);
        pending = state.x;
    }
    if (LAST) state.next_activations(a);
}

__device__ __forceinline__ void add_units(const Arguments& a, const Segment& s, Rings& rings, RingState& state,
                                          float (&sums)[BLOCK_N / 2]) {
    LaneRows lane;
    RowGroups groups;
    u32 first[4][4], second[4][4];
    int pending = -1;  // stage that wgmma may still read
    for (int unit = s.first; unit < s.last; unit++) {
        barrier_wait(&rings.w_full[state.w], state.w_parity);
        const u8* stage = rings.weights + state.w * W_STAGE_BYTES;
        convert<0>(first, stage, lane, groups);
        multiply_half<0>(a, rings, state, sums, first, pending);
        convert<1>(second, stage, lane, groups);
        release_weights(&rings.w_empty[state.w]);
        state.next_weights(a);
        multiply_half<1>(a, rings, state, sums, second, pending);
    }
    wgmma_wait<0>();
    fence_operand(sums);
    release_activations(&rings.x_empty[pending]);
}
