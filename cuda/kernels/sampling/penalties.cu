// penalties: repetition, presence and frequency penalties on the logits.
//
//   logits             fp32 [n, vocab_size], in place
//   counts             int32 [at least n, vocab_size]: bit 30 is set if the id occurs in the prompt or the
//                      answer; the bits below count its occurrences in the answer
//   repeat_penalty     fp32 [n]: divides positive and multiplies negative logits of ids that occur; 1 is
//                      off                                                     (Keskar et al., 2019)
//   presence_penalty   fp32 [n]: subtracted once for ids of the answer; 0 is off
//   frequency_penalty  fp32 [n]: subtracted for each occurrence in the answer; 0 is off
//
// Algorithm: a row with all penalties off is skipped.
// Launch: grid (ceil(vocab_size / 2048), n), block 256, no shared memory.
// Moves n * vocab_size * 4 bytes and the changed logits.
// Accuracy: every operation is rounded separately (no FMA): equal to the CPU's sampler.
// Test: tests/cuda/kernels/test_penalties.py
#include "common/common.cuh"

constexpr int THREADS = 256, PER_THREAD = 8;
constexpr int SEEN = 1 << 30;

extern "C" __global__ void __launch_bounds__(THREADS)
penalties_kernel(float* logits, const int* counts, const float* repeat_penalty,
                 const float* presence_penalty, const float* frequency_penalty, int vocab_size) {
    start_dependents();
    wait_for_upstream();
    int row = blockIdx.y;
    float repeat = repeat_penalty[row], presence = presence_penalty[row];
    float frequency = frequency_penalty[row];
    if (repeat == 1 && presence == 0 && frequency == 0) return;
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
        logit = logit > 0 ? __fdiv_rn(logit, repeat) : __fmul_rn(logit, repeat);
        int times = loaded[j] & (SEEN - 1);
        if (times)
            logit = __fsub_rn(logit, __fadd_rn(presence, __fmul_rn(frequency, (float)times)));
        logits[id] = logit;
    }
}
