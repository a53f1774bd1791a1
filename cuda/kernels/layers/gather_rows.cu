// gather_rows: copy the rows of the residual stream for which logits are computed.
//
//   x     fp32 [n, hidden_size]
//   rows  int32 [m], 0 <= row < n
//   out   fp32 [m, hidden_size] = x[rows]
//
// Algorithm: a thread has 4 accesses of WIDTH elements of one row in flight.
// Requires: hidden_size a multiple of WIDTH (4 or 1).
// Launch: grid (m, ceil(hidden_size / (WIDTH * 512))), block 128, no shared memory.
// Moves m * hidden_size * 8 bytes. Accuracy: exact. Test: tests/cuda/kernels/test_gather_rows.py
#include "common/pack.cuh"

constexpr int THREADS = 128, UNROLL = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
gather_rows_kernel(const float* x, const int* rows, float* out, int hidden_size) {
    start_dependents();
    wait_for_upstream();
    const float* from = x + (i64)rows[blockIdx.x] * hidden_size;
    float* to = out + (i64)blockIdx.x * hidden_size;
    int first = (blockIdx.y * UNROLL * THREADS + threadIdx.x) * WIDTH;
    Pack<float, WIDTH> values[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int column = first + u * THREADS * WIDTH;
        if (column < hidden_size) values[u] = load<WIDTH>(from + column);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int column = first + u * THREADS * WIDTH;
        if (column < hidden_size) store(to + column, values[u]);
    }
}
