// gather_rows: the rows of the residual stream that go on to the logits.
//
//   x     fp32 [n, hidden]
//   rows  int32 [m], 0 <= row < n
//   out   fp32 [m, hidden] = x[rows]
//
// Grid (m, ceil(hidden / (WIDTH * 512))), block 128, no shared memory. Moves m * hidden * 8 bytes.
// WIDTH elements are one access: 4 where hidden allows it, else 1. A thread has 4 accesses of a row
// under way at once. Copies bits.
// Test: tests/cuda/kernels/test_gather_rows.py: equal.
#include "common/vectors.cuh"

constexpr int THREADS = 128, UNROLL = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
gather_rows_kernel(const float* x, const int* rows, float* out, int hidden) {
    start_dependents();
    wait_for_upstream();
    const float* from = x + (i64)rows[blockIdx.x] * hidden;
    float* to = out + (i64)blockIdx.x * hidden;
    int first = (blockIdx.y * UNROLL * THREADS + threadIdx.x) * WIDTH;
    Pack<float, WIDTH> values[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int column = first + u * THREADS * WIDTH;
        if (column < hidden) values[u] = load<WIDTH>(from + column);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int column = first + u * THREADS * WIDTH;
        if (column < hidden) store(to + column, values[u]);
    }
}
