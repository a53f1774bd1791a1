// quantize: quantize each activation row to 8 bits with a scale of its own (per-token quantization).
//
//   x       T [n, k]
//   values  u8 [n, k]: int8 or e4m3; with AS_T the same values as T, which holds them exactly
//   scales  fp32 [n]: the row's largest magnitude / MAX_VALUE, or `fixed_scale` if that is above 0
//   values = round(x / scale), to nearest, ties to even, saturated. SCHEME is INT8 or FP8.
//
// Algorithm: VECTORS > 0: a thread holds up to VECTORS * 8 columns of its row in registers, so the row is
// read once. VECTORS = 0: the row is read again, from L2. A row with an infinity or NaN gets a scale
// that is not finite (not with fixed_scale). A row of zeros gets the smallest scale.
//
// Requires: k % 8 == 0; with VECTORS > 0, k <= 8 * VECTORS * 256.
// Launch: grid n, block 256, no dynamic shared memory.
// Moves n * k * (sizeof T + 1) bytes, with AS_T 2 * sizeof T.
// Accuracy: equal to torch's fp32 computation. Test: tests/cuda/kernels/test_quantize.py
#include <cuda_fp8.h>
#include "linear/unpack.cuh"
#include "common/reduce.cuh"
#include "common/pack.cuh"

constexpr int THREADS = 256;
// For int8 half of the whole range, as in compressed-tensors.
constexpr float MAX_VALUE = SCHEME == INT8 ? 127.5f : 448.f;
constexpr float MIN_SCALE = 0x1p-100f;  // so that zeros can be divided by it

using Values = typename Choose<AS_T, T, u8>::type;

// The result for NaN does not matter: the scale is NaN too.
__device__ __forceinline__ u8 quantize_value(float at) {
    if (SCHEME == INT8) return (u8)(signed char)max(min(__float2int_rn(at), 127), -128);
    return __nv_cvt_float_to_fp8(at, __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ u8 stored_value(float at, u8) { return quantize_value(at); }
template <typename A> __device__ __forceinline__ A stored_value(float at, A) {
    u32 byte = quantize_value(at);
    return from_float<A>(SCHEME == INT8 ? int8_at(byte, 0) : fp8_at(byte, 0));
}

__device__ __forceinline__ void store_values(Values* to, const Pack<T, 8>& x, float scale) {
    Vec<Values, 8> values;
#pragma unroll
    for (int i = 0; i < 8; i++) values.at[i] = stored_value(x[i] / scale, Values());
    constexpr int PARTS = sizeof(values) > 16 ? 2 : 1;  // one instruction stores at most 16 bytes
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        ((Vec<Values, 8 / PARTS>*)to)[i] = ((const Vec<Values, 8 / PARTS>*)&values)[i];
}

// Compared as integers, infinities and NaNs are the largest.
__device__ __forceinline__ u32 max_bits(const Pack<T, 8>& x) {
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = max(largest, __float_as_uint(fabsf(x[i])));
    return largest;
}

extern "C" __global__ void __launch_bounds__(THREADS)
quantize_kernel(const T* x, Values* values, float* scales, int k, float fixed_scale) {
    __shared__ u32 scratch[THREADS / WARP];
    start_dependents();
    const T* from = x + (i64)blockIdx.x * k;
    Values* to = values + (i64)blockIdx.x * k;
    int first = threadIdx.x * 8;
    constexpr int STRIDE = THREADS * 8;
    u32 largest = 0;
    wait_for_upstream();
#if VECTORS
    Pack<T, 8> elements[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        elements[v] = {};
        if (first + v * STRIDE < k) elements[v] = load<8>(from + first + v * STRIDE);
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) largest = max(largest, max_bits(elements[v]));
#else
    for (int i = first; i < k; i += STRIDE) largest = max(largest, max_bits(load<8>(from + i)));
#endif
    float scale = fixed_scale;
    if (fixed_scale <= 0) {
        largest = block_reduce<THREADS>(largest, Max(), scratch);
        u32 found = __float_as_uint(__uint_as_float(largest) / MAX_VALUE);
        scale = __uint_as_float(max(found, __float_as_uint(MIN_SCALE)));
    }
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
#if VECTORS
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        if (first + v * STRIDE < k) store_values(to + first + v * STRIDE, elements[v], scale);
#else
    for (int i = first; i < k; i += STRIDE) store_values(to + i, load<8>(from + i), scale);
#endif
}
