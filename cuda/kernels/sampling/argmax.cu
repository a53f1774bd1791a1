// argmax: each row's largest logit and the lowest id that has it.
//
//   logits     fp32 [n, vocab_size]
//   values     fp32 [n]: the maximum; NaN where a logit is NaN or infinite
//   ids        int32 [n]: the lowest id of the maximum; -1 where a logit is NaN or infinite
//   workspace  u64 [n, 2]: the best key so far, and how many blocks have come; zero before the
//              first call, and again after every call
//
// Grid (ceil(vocab_size / 2048), n), block 256, no dynamic shared memory. Moves n * vocab_size * 4 bytes.
// Any vocab_size. Many blocks a row, because one multiprocessor takes 5 µs to read 512 KiB from L2; an
// atomic maximum of 64-bit keys joins them, so that the order in which they come is all one, and
// the row's last block writes the result.
// Test: tests/cuda/kernels/test_argmax.py: equal.
#include "sampling/sort_key.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 256, PER_THREAD = 8;
constexpr u64 INVALID = ~0ull;  // above the key of any finite logit
constexpr float LARGEST = 3.402823466e38f;

extern "C" __global__ void __launch_bounds__(THREADS)
argmax_kernel(const float* logits, float* values, int* ids, u64* workspace, int vocab_size) {
    __shared__ u64 scratch[THREADS / WARP];
    start_dependents();
    wait_for_upstream();
    int row = blockIdx.y;
    int first = blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
    logits += (i64)row * vocab_size;
    float loaded[PER_THREAD];
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        int id = first + j * THREADS;
        if (id < vocab_size) loaded[j] = logits[id];
    }
    u64 best = 0;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        int id = first + j * THREADS;
        if (id >= vocab_size) continue;
        u64 key = fabsf(loaded[j]) <= LARGEST ? rank_key(loaded[j], id) : INVALID;
        best = Max()(best, key);
    }
    best = block_reduce<THREADS>(best, Max(), scratch);
    if (threadIdx.x) return;
    u64 *joined = workspace + 2 * row, *arrived = joined + 1;
    atomicMax(joined, best);
    if (count_arrival(arrived) + 1 != gridDim.x) return;
    best = atomicExch(joined, 0ull);
    *arrived = 0;
    values[row] = best == INVALID ? __uint_as_float(0x7fc00000u) : key_logit(best);
    ids[row] = best == INVALID ? -1 : key_id(best);
}
