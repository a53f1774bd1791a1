// Mamba's recurrence for one channel, whose state four threads share.
//
//   Δ = softplus(step + step_bias);  h ← exp(−exp(decay) Δ) h + Δ x b;  out = (h · c + skip · x) silu(z)
//   (Gu and Dao, 2023, arXiv:2312.00752, algorithm 2)
//
// Define: VECTORS: state_size <= 16 * VECTORS.
#pragma once
#include "common/pack.cuh"
#include "mixers/step.cuh"

constexpr int SHARERS = 4;  // threads of a channel: thread i has the elements 4i … 4i + 3 of every 16
constexpr int MAX_STATE = 16 * VECTORS;

struct ChannelState {
    Pack<float, 4> h[VECTORS];
    float rates[VECTORS][4];

    // `state` fp32 [state_size] of the channel, null: zeros; `decay` fp32 [state_size].
    __device__ __forceinline__ void load(const float* state, const float* decay, int state_size) {
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            int first = 16 * v + 4 * (threadIdx.x % SHARERS);
            h[v] = {};
            Pack<float, 4> logs = {};
            if (first < state_size) {
                if (state) h[v] = ::load<4>(state + first);
                logs = ::load<4>(decay + first);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) rates[v][j] = -expf(logs[j]) * LOG2_E;
        }
    }

    // Takes a token; returns h · c, of the elements of all threads. b and c: [MAX_STATE], with zeros at the end.
    __device__ __forceinline__ float step(float delta, float x, const float* b, const float* c) {
        float sum = 0;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            int first = 16 * v + 4 * (threadIdx.x % SHARERS);
            Pack<float, 4> b4 = ::load<4>(b + first), c4 = ::load<4>(c + first);
            float values[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                values[j] = exp2f(rates[v][j] * delta) * h[v][j] + delta * x * b4[j];
                sum += values[j] * c4[j];
            }
            h[v] = values;
        }
        sum += __shfl_xor_sync(ALL, sum, 1);
        return sum + __shfl_xor_sync(ALL, sum, 2);
    }

    __device__ __forceinline__ void store(float* state, int state_size) const {
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            int first = 16 * v + 4 * (threadIdx.x % SHARERS);
            if (first < state_size) ::store(state + first, h[v]);
        }
    }
};
