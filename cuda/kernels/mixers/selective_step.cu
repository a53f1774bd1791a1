// selective_step: a decode step of Mamba's recurrence, or several ones of a sequence; reads the state once and
// writes it after each.
//
//   x          fp32 [n, width]: after the convolution
//   steps      fp32 [n, width]
//   b, c       fp32 [n, state_size], rows vectors_stride elements apart, unaligned
//   gates      T [n, width], rows gates_stride elements apart, unaligned
//   decay      fp32 [width, state_size]: constant
//   step_bias, skip  fp32 [width]: constant
//   states     fp32 [num_slots, width, state_size], written
//   slots      int32 [2, slots_stride]: see step.cuh
//   step       int64 [1] or null
//   positions  int32 [n]
//   out        T [n, width], selective.cuh has the formula; 0 in unused rows
//   early_reads  the states, slots and positions were written before the current chain of dependent launches
//
// Algorithm: a block has 32 channels of a row, four threads each.
//
// Defines: VECTORS: state_size <= 16 * VECTORS; CHAINED (step.cuh) 0 or 1. Requires: state_size % 4 == 0.
// Launch: grid (ceil(width / 32), n), block 128, no dynamic shared memory. Moves the state twice.
// Accuracy: fp32, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 1e-5 (fp32: exponentials).
// Test: tests/cuda/kernels/test_selective_step.py
#include "mixers/selective.cuh"

constexpr int THREADS = 128, CHANNELS = THREADS / SHARERS;

extern "C" __global__ void __launch_bounds__(THREADS)
selective_step_kernel(const float* x, const float* steps, const float* b, const float* c, const T* gates,
                      const float* decay, const float* step_bias, const float* skip, float* states,
                      const int* slots, const i64* step, const int* positions, T* out, i64 vectors_stride,
                      i64 gates_stride, int width, int state_size, int slots_stride, int early_reads) {
    __shared__ __align__(16) float vectors[2][MAX_STATE];
    start_dependents();
    int channel = blockIdx.x * CHANNELS + threadIdx.x / SHARERS;
    bool exists = channel < width, writes = exists && threadIdx.x % SHARERS == 0;
    if (!early_reads) wait_for_upstream();
    Slots slot(slots, slots_stride, step, positions, blockIdx.y);
    if (CHAINED && slot.continues) {
        wait_for_upstream();  // every block must
        return;
    }
    ChannelState state;
    i64 own = (i64)(exists ? channel : 0) * state_size, size = (i64)width * state_size;
    state.load(slot.before < 0 ? nullptr : states + slot.before * size + own, decay + own, state_size);
    if (early_reads) wait_for_upstream();
    if (slot.after < 0) {
        if (writes) out[(i64)slot.row * width + channel] = from_float<T>(0.f);
        return;
    }
    do {
        i64 at = (i64)slot.row * width + channel;
        for (int i = threadIdx.x; i < 2 * MAX_STATE; i += THREADS) {
            int element = i % MAX_STATE;
            const float* from = i < MAX_STATE ? b : c;
            vectors[i / MAX_STATE][element] =
                element < state_size ? from[slot.row * vectors_stride + element] : 0.f;
        }
        __syncthreads();
        float input = 0, delta = 0;
        if (exists) input = x[at], delta = softplus(steps[at] + step_bias[channel]);
        float sum = state.step(delta, input, vectors[0], vectors[1]);
        if (exists) state.store(states + slot.after * size + own, state_size);
        if (writes) {
            float gate = to_float(gates[slot.row * gates_stride + channel]);
            out[at] = from_float<T>((sum + skip[channel] * input) * gate * sigmoid(gate));
        }
        if (CHAINED) __syncthreads();  // the vectors have been read
    } while (CHAINED && (slot = slot.next()).continues);
}
