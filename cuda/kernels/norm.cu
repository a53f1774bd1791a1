// norm: adds a layer's output to the residual stream, then normalises each row.
//
//   x       fp32 [n, hidden], in place: x += delta (+ bias)
//   delta   T [n, hidden] or null (nothing is added, x is only read)
//   bias    T [hidden] or null: the bias of the product that made delta
//   weight  T [hidden]
//   shift   T [hidden] or null: LayerNorm's own bias
//   out     T [n, hidden]
//
// LAYER_NORM 0: out = x / sqrt(mean(x²) + eps) * weight       (Zhang and Sennrich, 2019)
// LAYER_NORM 1: out = (x - mean) / sqrt(var + eps) * weight + shift     (Ba et al., 2016)
//
// Grid n, block 256, no dynamic shared memory. Moves n * hidden * (4 + sizeof T) bytes, with delta
// 4 + sizeof T more. Any hidden. Sums in fp32, LayerNorm's variance about the mean in a second pass
// over the row (x² - mean² would cancel). A row is read again for each pass; it lies in L1 or L2.
// Test: tests/cuda/test_norm.py, relative 2e-6 (fp32), 2^-8 (bf16), 2^-11 (fp16): one rounding of
// the result plus the order of a sum.
#include "reduce.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
norm_kernel(float* x, const T* delta, const T* bias, const T* weight, const T* shift, T* out, int hidden,
     float eps) {
    __shared__ float scratch[THREADS / WARP];
    start_dependents();
    wait_for_upstream();
    i64 row = (i64)blockIdx.x * hidden;
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < hidden; i += THREADS) {
        float value = x[row + i];
        if (delta) {
            value += to_float(delta[row + i]) + (bias ? to_float(bias[i]) : 0.f);
            x[row + i] = value;
        }
        sum += value;
        squares += value * value;
    }
    float mean = 0;
    if (LAYER_NORM) {
        mean = block_reduce<THREADS>(sum, Sum(), scratch) / hidden;
        squares = 0;
        for (int i = threadIdx.x; i < hidden; i += THREADS) {
            float value = x[row + i] - mean;
            squares += value * value;
        }
    }
    float scale = rsqrtf(block_reduce<THREADS>(squares, Sum(), scratch) / hidden + eps);
    for (int i = threadIdx.x; i < hidden; i += THREADS) {
        float value = (x[row + i] - mean) * scale * to_float(weight[i]);
        out[row + i] = from_float<T>(shift ? value + to_float(shift[i]) : value);
    }
}
