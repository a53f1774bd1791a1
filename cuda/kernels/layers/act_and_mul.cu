// act_and_mul: activation function of an MLP, gated or not.
//
//   x    T [num_rows, columns], rows x_stride elements apart: row_size columns, or with GATED but without `up`
//        2 * row_size: gate, then up
//   up   T [num_rows, row_size] or null
//   out  T [num_rows, row_size] = act(x), or with GATED act(gate) * up; without GATED it may be x itself
//
// Algorithm: a thread handles WIDTH columns of ROWS rows; all loads are in flight before the first
// use. ROWS = 1 has the least latency; ROWS = 4 has more loads in flight when there are many rows.
// ACTIVATION is one of activation.cuh. Gated MLPs: Shazeer, 2020, arXiv:2002.05202.
//
// Requires: row_size and x_stride multiples of WIDTH (8 or 1).
// Launch: grid (ceil(num_rows / ROWS), ceil(row_size / (WIDTH * 128))), block 128, no shared memory.
// Moves num_rows * row_size * 2 * sizeof T bytes, with GATED 3 * sizeof T.
// Accuracy: fp32, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 2e-6 (fp32).
// Test: tests/cuda/kernels/test_act_and_mul.py
#include "common/activation.cuh"
#include "common/pack.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS)
act_and_mul_kernel(const T* x, const T* up, T* out, i64 x_stride, int num_rows, int row_size) {
    start_dependents();
    int column = (blockIdx.y * THREADS + threadIdx.x) * WIDTH;
    i64 row = (i64)blockIdx.x * ROWS, up_stride = up ? row_size : x_stride;
    const T* factors = up ? up : x + row_size;
    bool inside = column < row_size;
    Pack<T, WIDTH> gate[ROWS], factor[ROWS];
    wait_for_upstream();
    if (!inside) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (row + r >= num_rows) continue;
        gate[r] = load<WIDTH>(x + (row + r) * x_stride + column);
        if (GATED) factor[r] = load<WIDTH>(factors + (row + r) * up_stride + column);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (row + r >= num_rows) continue;
        float values[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            values[i] = activate<ACTIVATION>(gate[r][i]);
            if (GATED) values[i] *= factor[r][i];
        }
        Pack<T, WIDTH> result;
        result = values;
        store(out + (row + r) * row_size + column, result);
    }
}
