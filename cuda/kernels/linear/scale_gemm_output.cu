// scale_sums: what a product of int8 numbers means, as T.
//
//   sums       i32 [n, width]: some columns of a product, `first` and those after it of `rows`
//   factors    fp32 [n], of each vector
//   row_scale  fp32 [rows], of each row of the matrix
//   bias       T [rows] or null
//   out        T [n, rows]: sums * (factor * row_scale) + bias, in those columns
//
// A thread makes 4 columns. Grid (ceil(width / 1024), n), block 256, no shared memory. Moves
// n * width * (4 + sizeof T) bytes. Requires first, width and rows to be multiples of 4, and n to be
// at most 65,535.
// In fp32, rounded once. Test: tests/cuda/kernels/test_scale_sums.py, relative 2^-8 (bf16), 2^-11 (fp16),
// 2e-6 (fp32).
#include "common/vectors.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
scale_gemm_output_kernel(const int* sums, const float* factors, const float* row_scale, const T* bias, T* out,
                  int width, int first, int rows) {
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
    int4 sum = *(const int4*)(sums + (i64)blockIdx.y * width + column);
    float f = factors[blockIdx.y];
    float values[4] = {sum.x * (f * scale.x) + added[0], sum.y * (f * scale.y) + added[1],
                       sum.z * (f * scale.z) + added[2], sum.w * (f * scale.w) + added[3]};
    Pack<T, 4> result;
    result = values;
    store(out + (i64)blockIdx.y * rows + first + column, result);
}
