// Activation functions in fp32; the macro ACTIVATION selects one.
#pragma once

#define NONE 0
#define RELU 1
#define SILU 2
#define GELU 3
#define GELU_TANH 4
#define RELU2 5
#define GELU_SIGMOID 6
#define SIGMOID 7  // of gates

template <int KIND> __device__ __forceinline__ float activate(float x) {
    if constexpr (KIND == RELU) return x > 0 ? x : 0;
    if constexpr (KIND == RELU2) return x > 0 ? x * x : 0;
    if constexpr (KIND == SILU) return x / (1 + __expf(-x));
    if constexpr (KIND == GELU) return 0.5f * x * (1 + erff(x * 0.70710678f));
    if constexpr (KIND == GELU_TANH)
        return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    if constexpr (KIND == SIGMOID) return 1 / (1 + __expf(-x));
    if constexpr (KIND == GELU_SIGMOID) return x / (1 + __expf(-1.702f * x));
    return x;
}
