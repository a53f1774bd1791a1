// embed: the rows of the embedding table for the tokens of a step, as the residual stream.
//
//   ids             int32 [n]
//   table           T [rows, hidden], or by SCHEME and GROUP_SIZE packed (records.cuh): of the ids
//                   from first_id on; others give zeros
//   row_scale       fp32 [rows], of a packed table; else null
//   positions       int32 [n]; null without a position table
//   position_table  T [max_positions, hidden] or null: learned positions, added
//   out             fp32 [n, hidden] = table[ids] * scale (+ position_table[positions])
//
// Grid (n, ceil(hidden / (WIDTH * 512))), block 128, no shared memory. Moves
// n * hidden * (sizeof T + 4) bytes, with positions sizeof T more. WIDTH elements are one
// access: 8 where hidden allows it, as in a packed table always, else 1. A thread has 4 accesses of
// a row under way at once.
// One rounding in fp32 for each product, one for the sum; numbers of a packed table are not rounded
// to T before.
// Test: tests/cuda/kernels/test_embed.py: equal without a scale, relative 1e-6 with one or packed.
#include "linear/packed.cuh"
#include "common/vectors.cuh"
#if SCHEME != PLAIN
#include "linear/packed_row.cuh"
#endif

constexpr int THREADS = 128, UNROLL = 4;

#if SCHEME == PLAIN
using Words = Pack<T, WIDTH>;
__device__ __forceinline__ Words words_of(const void* table, i64 row, int column, int hidden) {
    return load<WIDTH>((const T*)table + row * hidden + column);
}
#else
using Words = Eight;
__device__ __forceinline__ Words words_of(const void* table, i64 row, int column, int hidden) {
    i64 record = row / BLOCK_ROWS * (filled(hidden) / STEP) + column / STEP;
    return Eight((const u8*)table + record * RECORD, row % BLOCK_ROWS, place_of(column % STEP));
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
embed_kernel(const int* ids, const void* table, const float* row_scale, const int* positions,
             const T* position_table, float* out, int hidden, int first_id, int rows, float scale) {
    start_dependents();
    i64 row = blockIdx.x;
    int first = (blockIdx.y * UNROLL * THREADS + threadIdx.x) * WIDTH;
    wait_for_upstream();
    int id = ids[row] - first_id;
    bool known = 0 <= id && id < rows;
    float row_factor = known && row_scale ? row_scale[id] : 1;
    const T* place = position_table ? position_table + (i64)positions[row] * hidden : nullptr;
    Words words[UNROLL];
    Pack<T, WIDTH> places[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int column = first + u * THREADS * WIDTH;
        places[u] = {};
        if (column >= hidden) continue;
        words[u] = {};
        if (known) words[u] = words_of(table, id, column, hidden);
        if (place) places[u] = load<WIDTH>(place + column);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int column = first + u * THREADS * WIDTH;
        if (column >= hidden) continue;
        float values[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) values[i] = words[u][i] * row_factor * scale + places[u][i];
        Pack<float, WIDTH> sums;
        sums = values;
        store(out + row * hidden + column, sums);
    }
}
