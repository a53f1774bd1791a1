// activation: an MLP's activation function, with the bias of the product before it, and gated.
//
//   x     T [n, width], or with GATED [n, 2 * width]: the gates, then what they are multiplied with
//   bias  T of one row of x, or null
//   out   T [n, width] = activate(x + bias), or with GATED activate(gate + bias) * (up + bias)
//
// ACTIVATION is one of activation.cuh, by name. Gated: Shazeer, 2020, arXiv:2002.05202.
//
// Grid (ceil(n / ROWS), ceil(width / (WIDTH * 128))), block 128, no shared memory. Moves
// n * width * 2 * sizeof T bytes, GATED 3 * sizeof T. WIDTH elements are one access: 8 where the
// width allows it, else 1. A thread keeps to its columns and takes ROWS rows of them at once: 1 for
// the least latency, 4 for several loads under way when there are many rows.
// In fp32, rounded once. `out` may be x itself when not GATED.
// Test: tests/cuda/kernels/test_activation.py, relative 2^-8 (bf16), 2^-11 (fp16), 2e-6 (fp32): one
// rounding of the result and that of an exponential.
#include "common/activation.cuh"
#include "common/vectors.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS)
act_and_mul_kernel(const T* x, const T* bias, T* out, int n, int width) {
    start_dependents();
    int column = (blockIdx.y * THREADS + threadIdx.x) * WIDTH;
    i64 row = (i64)blockIdx.x * ROWS, stride = GATED ? 2 * (i64)width : width;
    bool inside = column < width;
    Pack<T, WIDTH> gate_bias{}, up_bias{}, gate[ROWS], up[ROWS];
    if (bias && inside) {
        gate_bias = load<WIDTH>(bias + column);
        if (GATED) up_bias = load<WIDTH>(bias + width + column);
    }
    wait_for_upstream();
    if (!inside) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (row + r >= n) continue;
        gate[r] = load<WIDTH>(x + (row + r) * stride + column);
        if (GATED) up[r] = load<WIDTH>(x + (row + r) * stride + width + column);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (row + r >= n) continue;
        float values[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            values[i] = activate<ACTIVATION>(gate[r][i] + gate_bias[i]);
            if (GATED) values[i] *= up[r][i] + up_bias[i];
        }
        Pack<T, WIDTH> result;
        result = values;
        store(out + (row + r) * width + column, result);
    }
}
