// What decode steps of mixers with a state share: the slots of a row, and its causal convolution.
#pragma once
#include "common/common.cuh"

constexpr int MAX_TAPS = 4;

// Where a row's state is read and written; below 0: it is zero, or the row is unused. `slots` int32
// [2, slots_stride] are exchanged by every step: `step` int64 [1] counts them, null is step 0. The two
// slots of a row differ, so blocks may read what others have replaced.
//
// A row `continues` the one before it if its state is the one that row writes: both are tokens of one
// sequence. Only kernels with CHAINED take such rows: the block of the first one keeps the state, and
// computes the others too. None of them writes the slot that the first one reads.
struct Slots {
    const int *reads, *writes, *positions;
    int row, before, after;
    bool continues;

    __device__ __forceinline__ Slots(const int* slots, int slots_stride, const i64* step,
                                     const int* positions, int row)
        : positions(positions), row(row) {
        int odd = step ? int(*step & 1) : 0;
        reads = slots + odd * slots_stride;
        writes = slots + (1 - odd) * slots_stride;
        load();
    }
    // The next row; behind the last row of the grid, one that continues nothing.
    __device__ __forceinline__ Slots next() const {
        Slots found = *this;
        if (++found.row < gridDim.y) found.load();
        else found.continues = false;
        return found;
    }
    __device__ __forceinline__ void load() {
        before = positions[row] ? reads[row] : -1;
        after = writes[row];
        continues = row && before >= 0 && before == writes[row - 1];
    }
};

// One channel of a causal depthwise convolution over `taps` tokens, with the inputs before the new one.
struct Channel {
    float weight[MAX_TAPS - 1], last_weight, shift, before[MAX_TAPS - 1];

    // `state` fp32 [channels, taps - 1] of the row, the oldest token first; null: zeros.
    __device__ __forceinline__ void load(const T* weights, const T* bias, const float* state, int channel,
                                         int taps) {
#pragma unroll
        for (int t = 0; t < MAX_TAPS - 1; t++) {
            bool is_used = t < taps - 1;
            weight[t] = is_used ? to_float(weights[(i64)channel * taps + t]) : 0.f;
            before[t] = is_used && state ? state[(i64)channel * (taps - 1) + t] : 0.f;
        }
        last_weight = to_float(weights[(i64)channel * taps + taps - 1]);
        shift = bias ? to_float(bias[channel]) : 0.f;
    }

    // Returns the convolution at the new token x; writes the inputs after it to `state` unless null.
    __device__ __forceinline__ float step(float x, float* state, int channel, int taps) {
        float out = shift;
#pragma unroll
        for (int t = 0; t < MAX_TAPS - 1; t++) {
            out += weight[t] * before[t];
            if (t >= taps - 1) continue;
            bool is_last = t == taps - 2 || t + 1 == MAX_TAPS - 1;
            before[t] = is_last ? x : before[(t + 1) % (MAX_TAPS - 1)];
            if (state) state[(i64)channel * (taps - 1) + t] = before[t];
        }
        return out + last_weight * x;
    }
};

__device__ __forceinline__ float sigmoid(float x) { return 1 / (1 + __expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }
