// rotate_heads: multiply heads by their Hadamard matrix, in place.
//
//   heads   T [num_tokens, num_heads, HEAD_DIM]: num_rows in all
//
// heads = heads · H / sqrt(head_dim), with Sylvester's matrix H. It is its own inverse: this undoes the rotation
// of the KV cache in 5 and 6 bits (int5_kv.cuh) in the output of prefill_attention.
//
// Algorithm: a quarter or an eighth of a warp computes a row, 8 or 16 elements a lane.
// Requires: head_dim 64 or 128.
// Launch: grid ceil(num_rows / 16), block 128, no shared memory.
// Moves the rows twice.
// Accuracy: fp32, one rounding to T. Test: tests/cuda/kernels/test_rotate_heads.py
#include "attention/hadamard.cuh"
#include "common/pack.cuh"

constexpr int THREADS = 128, LANES = 8, N = HEAD_DIM / LANES;

extern "C" __global__ void __launch_bounds__(THREADS) rotate_heads_kernel(T* heads, int num_rows) {
    start_dependents();
    wait_for_upstream();
    int row = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    T* at = heads + ((i64)row * LANES + threadIdx.x % LANES) * N;
    bool valid = row < num_rows;
    float x[N];
#pragma unroll
    for (int i = 0; i < N; i += 8) {
        Pack<T, 8> eight{};
        if (valid) eight = load<8>(at + i);
#pragma unroll
        for (int j = 0; j < 8; j++) x[i + j] = eight[j];
    }
    hadamard(x, LANES, ALL);
    if (!valid) return;
#pragma unroll
    for (int i = 0; i < N; i += 8) {
        float eight[8];
#pragma unroll
        for (int j = 0; j < 8; j++) eight[j] = x[i + j] * rsqrtf(HEAD_DIM);
        Pack<T, 8> packed;
        packed = eight;
        store(at + i, packed);
    }
}
