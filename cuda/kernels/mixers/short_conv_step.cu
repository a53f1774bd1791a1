// short_conv_step: a decode step of LFM2's gated short convolution, out = c · conv(b · x).
//
//   projected    T [n, 3 * width]: b, c, x
//   conv         T [width, taps], conv_bias T [width] or null
//   conv_states  fp32 [num_slots, width, taps - 1], written: b · x of the last tokens
//   slots        int32 [2, slots_stride], step int64 [1] or null, positions int32 [n]: see step.cuh
//   out          T [n, width]; 0 in unused rows
//   early_reads  everything but `projected` was written before the current chain of dependent launches
//
// Algorithm: a thread for each channel. Requires: taps <= 4.
// Launch: grid (ceil(width / 128), n), block 128, no shared memory.
// Moves n * width * (4 * sizeof T + 8 * (taps - 1)) bytes.
// Accuracy: fp32, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 2e-6 (fp32).
// Test: tests/cuda/kernels/test_short_conv_step.py
#include "mixers/step.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS)
short_conv_step_kernel(const T* projected, const T* conv, const T* conv_bias, float* conv_states,
                       const int* slots, const i64* step, const int* positions, T* out, int width,
                       int taps, int slots_stride, int early_reads) {
    start_dependents();
    int channel = blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
    if (!early_reads) wait_for_upstream();
    Slots slot(slots, slots_stride, step, positions, row);
    i64 conv_size = (i64)width * (taps - 1);
    Channel own;
    if (channel < width)
        own.load(conv, conv_bias, slot.before < 0 ? nullptr : conv_states + slot.before * conv_size,
                 channel, taps);
    if (early_reads) wait_for_upstream();
    if (channel >= width) return;
    float result = 0;
    if (slot.after >= 0) {
        const T* inputs = projected + (i64)row * 3 * width + channel;
        float b = to_float(inputs[0]), c = to_float(inputs[width]), x = to_float(inputs[2 * width]);
        result = c * own.step(b * x, conv_states + slot.after * conv_size, channel, taps);
    }
    out[(i64)row * width + channel] = from_float<T>(result);
}
