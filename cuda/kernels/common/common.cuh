// Definitions for all kernels: element types, dependent launch, 16-byte vectors.
// The macro DTYPE is the element type T: __nv_bfloat16, __half or float.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;
using bf16 = __nv_bfloat16;
using half = __half;
#ifdef DTYPE
using T = DTYPE;
#endif

constexpr int WARP = 32;
constexpr u32 ALL = 0xffffffffu;

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(bf16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_float(half v) { return __half2float(v); }
template <typename A> __device__ __forceinline__ A from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v) { return v; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float v) { return __float2bfloat16(v); }
template <> __device__ __forceinline__ half from_float<half>(float v) { return __float2half(v); }

// Two 16-bit elements in a register, the first in the lower half.
__device__ __forceinline__ u32 pair_bits(float low, float high, bf16) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}
__device__ __forceinline__ u32 pair_bits(float low, float high, half) {
    __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

constexpr float LOG2_E = 1.44269504f;
__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// 2^x; subnormal results are flushed to 0, which is accurate enough for attention weights.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <typename A, typename B> struct Same {
    static constexpr bool value = false;
};
template <typename A> struct Same<A, A> {
    static constexpr bool value = true;
};
template <bool CONDITION, typename A, typename B> struct Choose {
    using type = A;
};
template <typename A, typename B> struct Choose<false, A, B> {
    using type = B;
};

// N elements, loaded and stored by one instruction if they fill 4, 8 or 16 bytes.
template <typename A, int N> struct alignas(sizeof(A) * N) Vec {
    A at[N];
};

// The 32-bit address in shared memory that PTX instructions take.
__device__ __forceinline__ u32 shared_address(const void* p) {
    return (u32)__cvta_generic_to_shared(p);
}

// Whether a block should warm the instruction cache: true of the first blocks of the grid, which reach every
// multiprocessor. Before they wait for the upstream kernel, they run the code after the wait on zeros. Otherwise a short
// kernel waits for its instructions, one after the other, in each phase.
__device__ __forceinline__ bool warms_instructions() {
    u32 num_sms;
    asm("mov.u32 %0, %%nsmid;" : "=r"(num_sms));
    return blockIdx.y == 0 && blockIdx.x < num_sms;
}

// Programmatic dependent launch. `start_dependents` at a kernel's entry allows the blocks of the next
// kernel to start as soon as there is room; `wait_for_upstream` returns when all earlier work on the
// stream is complete and visible. A thread must wait before it reads memory written upstream and
// before it writes any memory (the upstream kernel may still read it). At least one thread of every
// block must wait; otherwise the next kernel but one may start too early.
__device__ __forceinline__ void start_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_upstream() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
