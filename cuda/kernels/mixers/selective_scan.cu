// selective_scan: Mamba's recurrence over the tokens of prompts, one after the other.
//
//   x          fp32 [tokens, width]: after the convolution
//   steps      fp32 [tokens, width]
//   b, c       fp32 [tokens, state_size], rows vectors_stride elements apart, unaligned
//   gates      T [tokens, width], rows gates_stride elements apart, unaligned
//   decay      fp32 [width, state_size]
//   step_bias, skip  fp32 [width]
//   states     fp32 [num_slots, width, state_size], written
//   starts     int32 [slots_stride + 1]: of the sequences, see rows.cuh
//   slots      int32 [2, slots_stride]
//   positions  int32 [tokens]
//   out        T [tokens, width]; selective.cuh has the formula
//
// Algorithm: channels do not depend on each other. A block has 32 of them, four threads each, with the states in
// registers, and computes the tokens in order, 16 at a time from shared memory, while the next 16 are on their way.
//
// Defines: VECTORS: state_size <= 16 * VECTORS. Requires: state_size % 4 == 0.
// Launch: grid (ceil(width / 32), sequences), block 128. Moves b and c for each 32 channels.
// Accuracy: fp32, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 1e-5 (fp32: exponentials).
// Test: tests/cuda/kernels/test_selective_scan.py
#include "mixers/rows.cuh"
#include "mixers/selective.cuh"

constexpr int THREADS = SCAN_THREADS, CHANNELS = THREADS / SHARERS, OWN_TOKENS = SCAN_TOKENS * CHANNELS / THREADS;
constexpr int OWN_ELEMENTS = SCAN_TOKENS * MAX_STATE / THREADS;  // of b, and of c
static_assert(CHANNELS == WARP && SCAN_TOKENS * MAX_STATE % THREADS == 0);

struct Shared {
    float b[SCAN_TOKENS][MAX_STATE], c[SCAN_TOKENS][MAX_STATE];
    float x[SCAN_TOKENS][CHANNELS], delta[SCAN_TOKENS][CHANNELS], out[SCAN_TOKENS][CHANNELS];
};

extern "C" __global__ void __launch_bounds__(THREADS)
selective_scan_kernel(const float* x, const float* steps, const float* b, const float* c, const T* gates,
                      const float* decay, const float* step_bias, const float* skip, float* states,
                      const int* starts, const int* slots, const int* positions, T* out, i64 vectors_stride,
                      i64 gates_stride, int width, int state_size, int slots_stride) {
    __shared__ __align__(16) Shared sh;
    start_dependents();
    wait_for_upstream();
    Row row(starts, slots, slots_stride, positions, blockIdx.y);
    if (row.num_tokens == 0) return;
    int first = blockIdx.x * CHANNELS, local = threadIdx.x / SHARERS;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    ChannelState state;
    i64 own = (i64)min(first + local, width - 1) * state_size, size = (i64)width * state_size;
    state.load(row.before < 0 ? nullptr : states + row.before * size + own, decay + own, state_size);

    // For copies, a warp has whole tokens and a lane one channel.
    int column = first + lane;
    bool exists = column < width;
    float bias = exists ? step_bias[column] : 0.f, skip_weight = exists ? skip[column] : 0.f;
    float inputs[OWN_TOKENS], deltas[OWN_TOKENS], z[OWN_TOKENS], vectors[2][OWN_ELEMENTS];
    auto prefetch = [&](int from) {
        int num_tokens = row.num_tokens - from;
#pragma unroll
        for (int i = 0; i < OWN_TOKENS; i++) {
            i64 token = row.start + from + 4 * i + warp;
            bool is_used = 4 * i + warp < num_tokens && exists;
            inputs[i] = is_used ? x[token * width + column] : 0.f;
            deltas[i] = is_used ? steps[token * width + column] : 0.f;
            z[i] = is_used ? to_float(gates[token * gates_stride + column]) : 0.f;
        }
#pragma unroll
        for (int i = 0; i < OWN_ELEMENTS; i++) {
            int at = i * THREADS + threadIdx.x, token = at / MAX_STATE, element = at % MAX_STATE;
            bool is_used = token < num_tokens && element < state_size;
            i64 from_row = (i64)(row.start + from + token) * vectors_stride + element;
            vectors[0][i] = is_used ? b[from_row] : 0.f;
            vectors[1][i] = is_used ? c[from_row] : 0.f;
        }
    };
    prefetch(0);
    for (int from = 0; from < row.num_tokens; from += SCAN_TOKENS) {
        int num_tokens = min(SCAN_TOKENS, row.num_tokens - from);
        float shifts[OWN_TOKENS], factors[OWN_TOKENS];
#pragma unroll
        for (int i = 0; i < OWN_TOKENS; i++) {
            sh.x[4 * i + warp][lane] = inputs[i];
            sh.delta[4 * i + warp][lane] = softplus(deltas[i] + bias);
            shifts[i] = skip_weight * inputs[i];
            factors[i] = z[i] * sigmoid(z[i]);
        }
#pragma unroll
        for (int i = 0; i < OWN_ELEMENTS; i++) {
            int at = i * THREADS + threadIdx.x;
            (&sh.b[0][0])[at] = vectors[0][i];
            (&sh.c[0][0])[at] = vectors[1][i];
        }
        __syncthreads();
        if (from + SCAN_TOKENS < row.num_tokens) prefetch(from + SCAN_TOKENS);
        for (int t = 0; t < num_tokens; t++) {
            float sum = state.step(sh.delta[t][local], sh.x[t][local], sh.b[t], sh.c[t]);
            if (threadIdx.x % SHARERS == 0) sh.out[t][local] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OWN_TOKENS; i++) {
            int token = 4 * i + warp;
            if (token >= num_tokens || !exists) continue;
            float result = (sh.out[token][lane] + shifts[i]) * factors[i];
            out[(i64)(row.start + from + token) * width + column] = from_float<T>(result);
        }
    }
    if (first + local < width) state.store(states + row.after * size + own, state_size);
}
