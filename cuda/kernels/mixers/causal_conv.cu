// causal_conv: the causal depthwise convolution over the tokens of prompts, with its state.
//
//   projected    T [tokens, row_size]; the channels begin at first_column, and are multiplied by a scale:
//                x_scale before channel x_end, b_scale before b_end, then c_scale. With GATED, LFM2's
//                b, c, x [3 * num_channels]: the inputs are b · x
//   conv         T [num_channels, taps]
//   conv_bias    T [num_channels] or null
//   conv_states  fp32 [num_slots, num_channels, taps - 1], written: the inputs of the last tokens
//   starts       int32 [slots_stride + 1]: of the sequences, see rows.cuh
//   slots        int32 [2, slots_stride]
//   positions    int32 [tokens]
//   out          T [tokens, num_channels] with GATED, else fp32 [tokens, num_channels]: ACTIVATION(convolution),
//                with GATED c · convolution
//
// Algorithm: a thread has TILE tokens of a channel, all loads in flight. The thread of the first tile is the
// only one that reads the old state, and writes the new one.
//
// Requires: 2 <= taps <= 4. Launch: grid (ceil(num_channels / 128), ceil(most tokens / 16), sequences),
// block 128. Moves tokens * num_channels * (sizeof T + 4) bytes, with GATED 4 * sizeof T.
// Accuracy: fp32, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 1e-5 (fp32: exponentials).
// Test: tests/cuda/kernels/test_causal_conv.py
#include "common/activation.cuh"
#include "mixers/rows.cuh"

constexpr int THREADS = 128, TILE = 16, MAX_BEFORE = MAX_TAPS - 1;
#if GATED
using Out = T;
#else
using Out = float;
#endif

struct Inputs {
    const T* first;  // of the sequence's first token, at this channel
    i64 stride;
    float scale;
    int num_channels;

    __device__ __forceinline__ float operator()(int token) const {
        const T* at = first + token * stride;
        if (GATED) return to_float(at[0]) * to_float(at[2 * num_channels]);
        return scale * to_float(at[0]);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
causal_conv_kernel(const T* projected, const T* conv, const T* conv_bias, float* conv_states,
                   const int* starts, const int* slots, const int* positions, Out* out, int num_channels,
                   int row_size, int first_column, int taps, int slots_stride, int x_end, int b_end,
                   float x_scale, float b_scale, float c_scale) {
    start_dependents();
    wait_for_upstream();
    int channel = blockIdx.x * THREADS + threadIdx.x, first = blockIdx.y * TILE, before = taps - 1;
    Row row(starts, slots, slots_stride, positions, blockIdx.z);
    if (channel >= num_channels || first >= row.num_tokens) return;
    float scale = channel < x_end ? x_scale : channel < b_end ? b_scale : c_scale;
    Inputs inputs{projected + (i64)row.start * row_size + first_column + channel, row_size, scale,
                  num_channels};

    float old[MAX_BEFORE], window[MAX_BEFORE], weights[MAX_BEFORE], values[TILE];
    i64 size = (i64)num_channels * before, own = (i64)channel * before;
#pragma unroll
    for (int j = 0; j < MAX_BEFORE; j++) {
        bool is_used = j < before;
        old[j] = is_used && first == 0 && row.before >= 0 ? conv_states[row.before * size + own + j] : 0.f;
        weights[j] = is_used ? to_float(conv[(i64)channel * taps + j]) : 0.f;
    }
    float last_weight = to_float(conv[(i64)channel * taps + before]);
    float shift = conv_bias ? to_float(conv_bias[channel]) : 0.f;
#pragma unroll
    for (int t = 0; t < TILE; t++) values[t] = first + t < row.num_tokens ? inputs(first + t) : 0.f;
#pragma unroll
    for (int j = 0; j < MAX_BEFORE; j++)
        window[j] = j >= before ? 0.f : first == 0 ? old[j] : inputs(first - before + j);
    if (first == 0) {
        float* state = conv_states + row.after * size + own;
#pragma unroll
        for (int j = 0; j < MAX_BEFORE; j++) {
            if (j >= before) continue;
            int token = row.num_tokens - before + j;
            float value = token >= 0 ? inputs(token) : 0.f;
#pragma unroll
            for (int i = 0; i < MAX_BEFORE; i++)
                if (token < 0 && i == token + before) value = old[i];
            state[j] = value;
        }
    }
#pragma unroll
    for (int t = 0; t < TILE; t++) {
        if (first + t >= row.num_tokens) break;
        float result = shift + last_weight * values[t];
#pragma unroll
        for (int j = 0; j < MAX_BEFORE; j++) result += weights[j] * window[j];
#pragma unroll
        for (int j = 0; j < MAX_BEFORE; j++)
            window[j] = j >= before - 1 ? values[t] : window[(j + 1) % MAX_BEFORE];
        i64 token = row.start + first + t;
        if (GATED) result *= to_float(projected[token * row_size + num_channels + channel]);
        else result = activate<ACTIVATION>(result);
        out[token * num_channels + channel] = from_float<Out>(result);
    }
}
