// penalties: lowers the logits of tokens that a sequence has already.
//
//   logits     fp32 [n, vocab_size], in place
//   counts     int32 [>= n, vocab_size]: bit 30 is set if the id occurs in prompt or answer, the bits
//              below count how often it was generated (`count_tokens` keeps them)
//   repeat     fp32 [n]: divides positive and multiplies negative logits, once for each id that
//              occurs; 1 is off                                             (Keskar et al., 2019)
//   presence   fp32 [n]: subtracted once for each generated id; 0 is off
//   frequency  fp32 [n]: subtracted as often as the id was generated; 0 is off
//
// Grid (ceil(vocab_size / 2048), n), block 256, no shared memory. Moves n * vocab_size * 4 bytes and what it
// changes; a row with all penalties off moves nothing. Any vocab_size. Every operation is rounded by
// itself, as on the CPU: no fused mma-add.
// Test: tests/cuda/kernels/test_penalties.py: equal to the CPU's sampler.
#include "common/common.cuh"

constexpr int THREADS = 256, PER_THREAD = 8;
constexpr int SEEN = 1 << 30;

extern "C" __global__ void __launch_bounds__(THREADS)
penalties_kernel(float* logits, const int* counts, const float* repeat, const float* presence,
                 const float* frequency, int vocab_size) {
    start_dependents();
    wait_for_upstream();
    int row = blockIdx.y;
    float factor = repeat[row], once = presence[row], each = frequency[row];
    if (factor == 1 && once == 0 && each == 0) return;
    logits += (i64)row * vocab_size;
    counts += (i64)row * vocab_size;
    int first = blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
    int loaded[PER_THREAD];
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        int id = first + j * THREADS;
        loaded[j] = id < vocab_size ? counts[id] : 0;
    }
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        if (!loaded[j]) continue;
        int id = first + j * THREADS;
        float logit = logits[id];
        logit = logit > 0 ? __fdiv_rn(logit, factor) : __fmul_rn(logit, factor);
        int times = loaded[j] & (SEEN - 1);
        if (times) logit = __fsub_rn(logit, __fadd_rn(once, __fmul_rn(each, (float)times)));
        logits[id] = logit;
    }
}
