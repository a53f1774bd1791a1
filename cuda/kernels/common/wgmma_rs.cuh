// Hopper's warpgroup matmul with the left operand in registers: 64 rows × N columns × 16, where the right operand in
// shared memory is N rows of 16 columns, with the 128-byte swizzle (see wgmma.cuh). Only for sm_90a.
#pragma once
#include "common/common.cuh"

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
