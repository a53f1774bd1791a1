// penalties: bias, repetition, presence and frequency penalties, bans, and masks of grammars, on the logits.
//
//   logits             fp32 [n, vocab_size]: in place
//   bias               fp32 [max_rows, vocab_size]: added to the logit; -infinity bans the id
//   has_bias           int32 [n]: 0 is off; the row of `bias` is not read
//   counts             int32 [max_rows, vocab_size]: bit 30 is set if the id occurs in the prompt or the
//                      answer, bit 29 if it ends an answer; the bits below count its occurrences in the
//                      answer
//   repeat_penalty     fp32 [n]: divides positive and multiplies negative logits of ids that occur; 1 is
//                      off                                                     (Keskar et al., 2019)
//   presence_penalty   fp32 [n]: subtracted once for ids of the answer; 0 is off
//   frequency_penalty  fp32 [n]: subtracted for each occurrence in the answer; 0 is off
//   context_lens       int32 [n]: the number of tokens of prompt and answer
//   min_context_lens   int32 [n]: ids that end an answer are banned while context_lens is below; 0 is off
//   masks              int32 [max_rows, (vocab_size + 31) / 32]: bit id % 32 of word id / 32 is set if a grammar
//                      allows the id; others are banned
//   has_mask           int32 [n]: 0 is off; the row of `masks` is not read
//
// Algorithm: a row with everything off is skipped. The logit of a banned id becomes -1e30, which is finite,
// because argmax reports infinite logits, and never sampled while any other id is left.
// Launch: grid (ceil(vocab_size / 2048), n), block 256, no shared memory.
// Moves n * vocab_size * 4 bytes for counts, the same for the bias if it is on, a 32nd of it for the mask, and
// the changed logits.
// Accuracy: every operation is rounded separately (no FMA): equal to the CPU's sampler.
// Test: tests/cuda/kernels/test_penalties.py
#include "common/common.cuh"

constexpr int THREADS = 256, PER_THREAD = 8;
constexpr int SEEN = 1 << 30, ENDS = 1 << 29;
constexpr float BANNED = -1e30f;

extern "C" __global__ void __launch_bounds__(THREADS)
penalties_kernel(float* logits, const float* bias, const int* has_bias, const int* counts,
                 const float* repeat_penalty, const float* presence_penalty,
                 const float* frequency_penalty, const int* context_lens,
                 const int* min_context_lens, const unsigned* masks, const int* has_mask,
                 int vocab_size) {
    start_dependents();
    wait_for_upstream();
    int row = blockIdx.y;
    float repeat = repeat_penalty[row], presence = presence_penalty[row];
    float frequency = frequency_penalty[row];
    bool is_penalized = repeat != 1 || presence != 0 || frequency != 0;
    bool is_short = context_lens[row] < min_context_lens[row], is_biased = has_bias[row];
    bool is_masked = has_mask[row];
    if (!is_penalized && !is_short && !is_biased && !is_masked) return;
    logits += (i64)row * vocab_size;
    counts += (i64)row * vocab_size;
    bias += (i64)row * vocab_size;
    masks += (i64)row * ((vocab_size + 31) / 32);
    int first = blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
    int loaded[PER_THREAD];
    float added[PER_THREAD];
    unsigned words[PER_THREAD];
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        int id = first + j * THREADS;
        loaded[j] = id < vocab_size && (is_penalized || is_short) ? counts[id] : 0;
        added[j] = id < vocab_size && is_biased ? bias[id] : 0;
        words[j] = id < vocab_size && is_masked ? masks[id / 32] : ~0u;
    }
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        int seen = is_penalized ? loaded[j] & ~ENDS : 0;
        int id = first + j * THREADS;
        bool is_banned = isinf(added[j]) || (is_short && (loaded[j] & ENDS)) || !(words[j] >> id % 32 & 1);
        if (!seen && added[j] == 0 && !is_banned) continue;
        float logit = logits[id];
        if (is_banned && isfinite(logit)) {
            logits[id] = BANNED;
            continue;
        }
        if (added[j] != 0) logit = __fadd_rn(logit, added[j]);
        if (seen) {
            logit = logit > 0 ? __fdiv_rn(logit, repeat) : __fmul_rn(logit, repeat);
            int times = seen & (SEEN - 1);
            if (times)
                logit = __fsub_rn(logit, __fadd_rn(presence, __fmul_rn(frequency, (float)times)));
        }
        logits[id] = logit;
    }
}
