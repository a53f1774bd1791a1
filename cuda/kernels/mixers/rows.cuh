// The tokens of prompts, for kernels that compute whole rows of them; and tiles of their vectors.
#pragma once
#include "common/pack.cuh"
#include "common/reduce.cuh"
#include "mixers/step.cuh"

// Sequence s has the tokens starts[s] … starts[s + 1] - 1 of the batch. Its state is read from slots[s],
// or is zero if its first token is at position 0, and is written to slots[slots_stride + s]. Without
// tokens nothing is written.
struct Row {
    int start, num_tokens, before, after;

    __device__ __forceinline__ Row(const int* starts, const int* slots, int slots_stride,
                                   const int* positions, int s) {
        start = starts[s];
        num_tokens = starts[s + 1] - start;
        before = positions[start] ? slots[s] : -1;
        after = slots[slots_stride + s];
    }
};

// A scan takes SCAN_TOKENS tokens at a time to shared memory. Its 4 warps have 8 rows of the state each,
// a lane two of them, and of each row the elements 4 * (lane / 4) … + 3 of every 32.
constexpr int SCAN_TOKENS = 16, SCAN_THREADS = 128, SCAN_ROWS = 32;

// A tile [SCAN_TOKENS, 128 * V] of vectors in registers on its way from global to shared memory: thread
// element i of vector v is 4 columns of token 4 * i + warp, so a warp has whole vectors of 128.
template <int V> struct Tile {
    Pack<float, 4> at[SCAN_TOKENS / 4][V];

    __device__ __forceinline__ void load(const float* from, i64 stride, int num_tokens, int size) {
        int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
        for (int i = 0; i < SCAN_TOKENS / 4; i++)
#pragma unroll
            for (int v = 0; v < V; v++) {
                int token = 4 * i + warp, column = 4 * (v * WARP + lane);
                at[i][v] = {};
                if (token < num_tokens && column < size)
                    at[i][v] = ::load<4>(from + token * stride + column);
            }
    }
    __device__ __forceinline__ void store(float* to) const {
        int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
        for (int i = 0; i < SCAN_TOKENS / 4; i++)
#pragma unroll
            for (int v = 0; v < V; v++)
                ::store(to + (4 * i + warp) * 128 * V + 4 * (v * WARP + lane), at[i][v]);
    }
};

// Sums a value over the lanes that have parts of the same row of the state.
__device__ __forceinline__ float row_sum(float value) {
#pragma unroll
    for (int offset = 4; offset < WARP; offset *= 2) value += __shfl_xor_sync(ALL, value, offset);
    return value;
}
