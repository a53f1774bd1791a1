// quantize: rounds each vector to numbers of 8 bits times a factor, for products with packed matrices.
//
//   x        T [n, k]
//   codes    u8 [n, k]: int8, or e4m3's bits; with AS_T the same numbers as T, which holds them exactly
//   factors  fp32 [n]: of a vector's largest number / LARGEST, or with `given` above 0 that
//   codes = round(x / factor), to the nearest, ties to even; what is beyond the form's largest becomes
//   it. SCHEME is INT8 or FP8 (packed.cuh).
//
// A vector with a number that is not finite has a factor that is not (not so with `given`). A vector of
// zeros has the smallest factor.
//
// VECTORS > 0: a thread keeps up to VECTORS times 8 columns of its row in registers, so that the row is
// read once; k <= 8 * VECTORS * 256. VECTORS 0: any k; the row is read again, out of L2.
// Grid n, block 256, no dynamic shared memory. Moves n * k * (sizeof T + 1) bytes, AS_T 2 * sizeof T.
// Requires k % 8 == 0.
// Test: tests/cuda/kernels/test_quantize.py, equal to the same done by torch in fp32.
#include <cuda_fp8.h>
#include "linear/packed.cuh"
#include "common/reduce.cuh"
#include "common/vectors.cuh"

constexpr int THREADS = 256;
// int8's whole range / 2, as the package compressed-tensors has it.
constexpr float LARGEST = SCHEME == INT8 ? 127.5f : 448.f;
constexpr float SMALLEST_FACTOR = 0x1p-100f;  // by which zeros can be divided

using Codes = typename Choose<AS_T, T, u8>::type;

// NaN becomes some code: the factor says what it was.
__device__ __forceinline__ u8 to_byte(float at) {
    if (SCHEME == INT8) return (u8)(signed char)max(min(__float2int_rn(at), 127), -128);
    return __nv_cvt_float_to_fp8(at, __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ u8 code_of(float at, u8) { return to_byte(at); }
template <typename A> __device__ __forceinline__ A code_of(float at, A) {
    u32 byte = to_byte(at);
    return from_float<A>(SCHEME == INT8 ? int8_at(byte, 0) : fp8_at(byte, 0));
}

__device__ __forceinline__ void store_codes(Codes* to, const Pack<T, 8>& x, float factor) {
    Vec<Codes, 8> codes;
#pragma unroll
    for (int i = 0; i < 8; i++) codes.at[i] = code_of(x[i] / factor, Codes());
    constexpr int PARTS = sizeof(codes) > 16 ? 2 : 1;  // no instruction stores more than 16 bytes
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        ((Vec<Codes, 8 / PARTS>*)to)[i] = ((const Vec<Codes, 8 / PARTS>*)&codes)[i];
}

// Compared as integers, what is not finite is the largest.
__device__ __forceinline__ u32 largest_of(const Pack<T, 8>& x) {
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = max(largest, __float_as_uint(fabsf(x[i])));
    return largest;
}

extern "C" __global__ void __launch_bounds__(THREADS)
quantize_kernel(const T* x, Codes* codes, float* factors, int k, float given) {
    __shared__ u32 scratch[THREADS / WARP];
    start_dependents();
    const T* from = x + (i64)blockIdx.x * k;
    Codes* to = codes + (i64)blockIdx.x * k;
    int first = threadIdx.x * 8;
    constexpr int STRIDE = THREADS * 8;
    u32 largest = 0;
    wait_for_upstream();
#if VECTORS
    Pack<T, 8> kept[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        kept[v] = {};
        if (first + v * STRIDE < k) kept[v] = load<8>(from + first + v * STRIDE);
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) largest = max(largest, largest_of(kept[v]));
#else
    for (int i = first; i < k; i += STRIDE) largest = max(largest, largest_of(load<8>(from + i)));
#endif
    float factor = given;
    if (given <= 0) {
        largest = block_reduce<THREADS>(largest, Max(), scratch);
        u32 found = __float_as_uint(__uint_as_float(largest) / LARGEST);
        factor = __uint_as_float(max(found, __float_as_uint(SMALLEST_FACTOR)));
    }
    if (threadIdx.x == 0) factors[blockIdx.x] = factor;
#if VECTORS
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        if (first + v * STRIDE < k) store_codes(to + first + v * STRIDE, kept[v], factor);
#else
    for (int i = first; i < k; i += STRIDE) store_codes(to + i, load<8>(from + i), factor);
#endif
}
