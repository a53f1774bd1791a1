// causal_conv_step: a decode step of a causal depthwise convolution, or several ones of a sequence.
//
//   projected    T [n, row_size]: the inputs of the channels come first; with GATED, LFM2's b, c, x
//                [3 * num_channels]: the inputs are b · x
//   conv         T [num_channels, taps]
//   conv_bias    T [num_channels] or null
//   conv_states  fp32 [num_slots, num_channels, taps - 1], written: the inputs of the last tokens
//   slots        int32 [2, slots_stride]: see step.cuh
//   step         int64 [1] or null
//   positions    int32 [n]
//   out          T [n, num_channels] with GATED, else fp32 [n, num_channels]: ACTIVATION(convolution), with GATED
//                c · convolution; 0 in unused rows
//   early_reads  everything but `projected` was written before the current chain of dependent launches
//
// Algorithm: a thread for each channel.
//
// Defines: ACTIVATION (activation.cuh), GATED 0 or 1, CHAINED (step.cuh) 0 or 1.
// Requires: taps <= 4.
// Launch: grid (ceil(num_channels / 128), n), block 128, no shared memory.
// Moves n * num_channels * (sizeof T + 4 + 8 * (taps - 1)) bytes, with GATED 4 * sizeof T.
// Accuracy: fp32, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 1e-5 (fp32: exponentials).
// Test: tests/cuda/kernels/test_causal_conv_step.py
#include "common/activation.cuh"
#include "mixers/step.cuh"

constexpr int THREADS = 128;
#if GATED
using Out = T;
#else
using Out = float;
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
causal_conv_step_kernel(const T* projected, const T* conv, const T* conv_bias, float* conv_states,
                        const int* slots, const i64* step, const int* positions, Out* out, int num_channels,
                        int row_size, int taps, int slots_stride, int early_reads) {
    start_dependents();
    int channel = blockIdx.x * THREADS + threadIdx.x;
    if (!early_reads) wait_for_upstream();
    Slots slot(slots, slots_stride, step, positions, blockIdx.y);
    if (CHAINED && slot.continues) {
        wait_for_upstream();  // every block must
        return;
    }
    i64 conv_size = (i64)num_channels * (taps - 1);
    Channel own;
    if (channel < num_channels)
        own.load(conv, conv_bias, slot.before < 0 ? nullptr : conv_states + slot.before * conv_size,
                 channel, taps);
    if (early_reads) wait_for_upstream();
    if (channel >= num_channels) return;
    do {
        float result = 0;
        if (slot.after >= 0) {
            const T* inputs = projected + (i64)slot.row * row_size + channel;
            float x = to_float(inputs[0]);
            if (GATED) x *= to_float(inputs[2 * num_channels]);
            result = own.step(x, conv_states + slot.after * conv_size, channel, taps);
            result = GATED ? result * to_float(inputs[num_channels]) : activate<ACTIVATION>(result);
        }
        out[(i64)slot.row * num_channels + channel] = from_float<Out>(result);
    } while (CHAINED && (slot = slot.next()).continues);
}
