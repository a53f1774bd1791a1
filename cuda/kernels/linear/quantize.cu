// quantize: quantize each activation row to 8 bits with a scale of its own (per-token quantization).
//
//   x       T [n, k]
//   values  T [n, k] with AS_T, int8 [n, k] with SCHEME INT8, else e4m3 [n, k]: T holds them exactly
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
#include "schemes/scheme.cuh"
#include "common/reduce.cuh"
#include "common/pack.cuh"

constexpr int THREADS = 256;
// For int8 half of the whole range, as in compressed-tensors.
constexpr float MAX_VALUE = Scheme::INTEGERS ? 127.5f : 448.f;
constexpr float MIN_SCALE = 0x1p-100f;  // so that zeros can be divided by it

using Values = typename Choose<AS_T, T, u8>::type;

// x / scale, correctly rounded (Markstein, 1990), in a third of the instructions of a division; `inverse` is
// 1 / scale. Beyond the limits, where all results saturate, the first product could be infinite and become NaN.
__device__ __forceinline__ float quotient(float x, float scale, float inverse) {
    float first = fminf(fmaxf(x * inverse, -0x1p20f), 0x1p20f);
    return fmaf(fmaf(-first, scale, x), inverse, first);
}
// Two quantized values; those of NaN do not matter, because the scale is NaN too.
__device__ __forceinline__ u32 quantize_pair(float low, float high) {
    if (!Scheme::INTEGERS) return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3);
    constexpr float ROUND = 0x1.8p23f;  // the sum's last bits are the nearest integer
    u32 first = __float_as_uint(fminf(fmaxf(low, -128), 127) + ROUND);
    u32 second = __float_as_uint(fminf(fmaxf(high, -128), 127) + ROUND);
    return __byte_perm(first, second, 0x40) & 0xffff;
}
__device__ __forceinline__ void store_pair(u8* to, u32 pair) { to[0] = pair, to[1] = pair >> 8; }
template <typename A> __device__ __forceinline__ void store_pair(A* to, u32 pair) {
#pragma unroll
    for (int i = 0; i < 2; i++) to[i] = from_float<A>(Scheme::value_at(&pair, i));
}

__device__ __forceinline__ void store_values(Values* to, const Pack<T, 8>& x, float scale, float inverse) {
    Vec<Values, 8> values;
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        store_pair(values.at + i, quantize_pair(quotient(x[i], scale, inverse), quotient(x[i + 1], scale, inverse)));
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
    float inverse = 1 / scale;
#if VECTORS
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        if (first + v * STRIDE < k) store_values(to + first + v * STRIDE, elements[v], scale, inverse);
#else
    for (int i = first; i < k; i += STRIDE) store_values(to + i, load<8>(from + i), scale, inverse);
#endif
}
