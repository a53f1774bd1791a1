// argmax: each row's largest logit, and the lowest id that has it.
//
//   logits      fp32 [n, vocab_size]
//   max_logits  fp32 [n]: the maximum, or NaN if a logit is NaN or infinite
//   ids         int32 [n]: the lowest id of the maximum, -1 if a logit is NaN or infinite, or -2 if every id
//               is banned: `penalties` makes the logit of a banned one -1e30
//   workspace   u64 [max_rows, 2]: the largest key so far and the number of finished blocks; zero before the
//               first call and after every call
//
// Algorithm: many blocks a row, because one multiprocessor takes 5 µs to read 512 KiB from L2. An atomic
// maximum of 64-bit sort keys combines them in any order; the row's last block writes the result.
// Launch: grid (ceil(vocab_size / 2048), n), block 256, no dynamic shared memory.
// Moves n * vocab_size * 4 bytes.
// Accuracy: exact. Test: tests/cuda/kernels/test_argmax.py
#include "common/sort_key.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 256, PER_THREAD = 8;
constexpr u64 INVALID = ~0ull;  // above the key of any finite logit
constexpr float LARGEST = 3.402823466e38f, BANNED = -1e30f;

extern "C" __global__ void __launch_bounds__(THREADS)
argmax_kernel(const float* logits, float* max_logits, int* ids, u64* workspace, int vocab_size) {
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
        u64 key = fabsf(loaded[j]) <= LARGEST ? sort_key(loaded[j], id) : INVALID;
        best = Max()(best, key);
    }
    best = block_reduce<THREADS>(best, Max(), scratch);
    if (threadIdx.x) return;
    u64 *row_best = workspace + 2 * row, *finished = row_best + 1;
    atomicMax(row_best, best);
    if (count_arrival(finished) + 1 != gridDim.x) return;
    best = atomicExch(row_best, 0ull);
    *finished = 0;
    max_logits[row] = best == INVALID ? __uint_as_float(0x7fc00000u) : key_logit(best);
    ids[row] = best == INVALID ? -1 : key_logit(best) <= BANNED ? -2 : key_id(best);
}
