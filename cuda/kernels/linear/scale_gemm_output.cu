// scale_gemm_output: scale the int32 results of an int8 GEMM to T, and add the bias.
//
//   products   int32 [n, width]: columns first … first + width - 1 of the GEMM's [n, rows]
//   x_scale    fp32 [n], of each activation row
//   row_scale  fp32 [rows], of each weight row
//   bias       T [rows] or null
//   out        T [n, rows]: products * (x_scale * row_scale) + bias, in these columns
//
// Algorithm: a thread computes 4 columns of a row.
// Requires: first, width and rows multiples of 4; n at most 65,535.
// Launch: grid (ceil(width / 1024), n), block 256, no shared memory.
// Moves n * width * (4 + sizeof T) bytes.
// Accuracy: fp32, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 2e-6 (fp32).
// Test: tests/cuda/kernels/test_scale_gemm_output.py
#include "common/pack.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
scale_gemm_output_kernel(const int* products, const float* x_scale, const float* row_scale,
                         const T* bias, T* out, int width, int first, int rows) {
    start_dependents();
    int column = (blockIdx.x * THREADS + threadIdx.x) * 4;
    bool inside = column < width;
    float4 scale = {};
    Pack<T, 4> added{};
    if (inside) {
        scale = *(const float4*)(row_scale + first + column);
        if (bias) added = load<4>(bias + first + column);
    }
    wait_for_upstream();
    if (!inside) return;
    int4 sum = *(const int4*)(products + (i64)blockIdx.y * width + column);
    float x_factor = x_scale[blockIdx.y];
    float values[4] = {sum.x * (x_factor * scale.x) + added[0], sum.y * (x_factor * scale.y) + added[1],
                       sum.z * (x_factor * scale.z) + added[2], sum.w * (x_factor * scale.w) + added[3]};
    Pack<T, 4> result;
    result = values;
    store(out + (i64)blockIdx.y * rows + first + column, result);
}
