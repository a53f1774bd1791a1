// softmax: each row's probabilities.
//
//   logits  fp32 [n, vocab]
//   out     fp32 [n, vocab]: exp(logit - max) / sum of exp(logit - max)
//
// Grid n, block 1024, no dynamic shared memory. Moves n * vocab * 8 bytes and reads the logits once
// more, from L2. Any vocab. Maximum and sum are found in one pass: a thread's sums shrink when its
// maximum grows (Milakov and Gimelshein, 2018). Four fp32 sums a thread, so that none has more than
// some dozen terms and their rounding stays below 1e-6.
// Test: tests/cuda/kernels/test_softmax.py, relative 1e-6: fp32 roundings of the difference, the
// exponential, the sum and the product.
#include "common/reduce.cuh"

constexpr int THREADS = 1024, UNROLL = 4;
constexpr float LOWEST = -3.402823466e38f;

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_kernel(const float* logits, float* out, int vocab) {
    __shared__ float scratch[THREADS / WARP];
    start_dependents();
    wait_for_upstream();
    logits += (i64)blockIdx.x * vocab;
    out += (i64)blockIdx.x * vocab;
    float top = LOWEST, sums[UNROLL] = {};  // not -inf, whose difference to -inf is NaN
    for (int start = threadIdx.x; start < vocab; start += UNROLL * THREADS) {
        float held[UNROLL], new_top = top;
#pragma unroll
        for (int j = 0; j < UNROLL; j++) {
            int id = start + j * THREADS;
            held[j] = id < vocab ? logits[id] : -infinity();  // adds nothing
        }
#pragma unroll
        for (int j = 0; j < UNROLL; j++) new_top = fmaxf(new_top, held[j]);
        float shrink = new_top > top ? expf(top - new_top) : 1.f;
        top = new_top;
#pragma unroll
        for (int j = 0; j < UNROLL; j++) sums[j] = sums[j] * shrink + expf(held[j] - top);
    }
    float max = block_reduce<THREADS>(top, Max(), scratch);
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    sum = block_reduce<THREADS>(sum * expf(top - max), Sum(), scratch);
    float scale = 1.f / sum;
    for (int start = threadIdx.x; start < vocab; start += UNROLL * THREADS) {
        float held[UNROLL];
#pragma unroll
        for (int j = 0; j < UNROLL; j++) {
            int id = start + j * THREADS;
            if (id < vocab) held[j] = logits[id];
        }
#pragma unroll
        for (int j = 0; j < UNROLL; j++) {
            int id = start + j * THREADS;
            if (id < vocab) out[id] = expf(held[j] - max) * scale;
        }
    }
}
