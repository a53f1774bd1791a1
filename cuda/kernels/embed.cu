// embed: the rows of the embedding table for the tokens of a step, as the residual stream.
//
//   ids             int32 [n]
//   table           T [rows, hidden]: of the ids from first_id on; others give zeros
//   positions       int32 [n]; null without a position table
//   position_table  T [max_positions, hidden] or null: learned positions, added
//   out             fp32 [n, hidden] = table[ids] * scale (+ position_table[positions])
//
// Grid (n, ceil(hidden / (WIDTH * 512))), block 128, no shared memory. Moves
// n * hidden * (sizeof T + 4) bytes, with positions sizeof T more. WIDTH elements are one
// access: 8 where hidden allows it, else 1. A thread has 4 accesses of a row under way at once.
// One rounding in fp32 for the product, one for the sum.
// Test: tests/kernels/test_embed.py: equal without a scale, relative 1e-6 with one.
#include "vectors.cuh"

constexpr int THREADS = 128, UNROLL = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
embed_kernel(const int* ids, const T* table, const int* positions, const T* position_table,
             float* out, int hidden, int first_id, int rows, float scale) {
    start_dependents();
    i64 row = blockIdx.x;
    int first = (blockIdx.y * UNROLL * THREADS + threadIdx.x) * WIDTH;
    wait_for_upstream();
    int id = ids[row] - first_id;
    bool known = 0 <= id && id < rows;
    const T* word = table + (i64)id * hidden;
    const T* place = position_table ? position_table + (i64)positions[row] * hidden : nullptr;
    Pack<T, WIDTH> words[UNROLL], places[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int column = first + u * THREADS * WIDTH;
        places[u] = {};
        if (column >= hidden) continue;
        words[u] = {};
        if (known) words[u] = load<WIDTH>(word + column);
        if (place) places[u] = load<WIDTH>(place + column);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int column = first + u * THREADS * WIDTH;
        if (column >= hidden) continue;
        float values[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) values[i] = words[u][i] * scale + places[u][i];
        Pack<float, WIDTH> sums;
        sums = values;
        store(out + row * hidden + column, sums);
    }
}
