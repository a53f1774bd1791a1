// The activation of a gated MLP of an expert.
#pragma once
#include "common/activation.cuh"

// activation(gate) * up. With a limit > 0, gate is at most that, up is clamped to it, and 1 is added to up.
template <int KIND> __device__ __forceinline__ float gated(float gate, float up, float limit) {
    if (limit > 0) {
        gate = fminf(gate, limit);
        up = fminf(fmaxf(up, -limit), limit) + 1;
    }
    return activate<KIND>(gate) * up;
}
