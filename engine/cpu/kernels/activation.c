/* Activation functions, as ACTIVATIONS in engine/reference/ops.py. */
#include "activation.h"

#include "fast_math.h"

INLINE float silu(float x) { return x / (1.0f + fast_exp(-x)); }

/* x times the normal distribution function, which is erfc(-x / sqrt(2)) / 2. */
INLINE float gelu(float x) {
    float size = float_of_bits(bits_of_float(x) & 0x7fffffff);
    float tail = 0.5f * fast_erfc(size * 0x1.6a09e6p-1f);
    return x > 0.0f ? x * (1.0f - tail) : x * tail;
}

/* x (1 + tanh(u)) / 2 = x / (1 + e^(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). */
INLINE float gelu_tanh(float x) {
    float u = x * multiply_add_float(x * x, 0.044715f * 0x1.988454p-1f, 0x1.988454p-1f);
    return x / (1.0f + fast_exp(-2.0f * u));
}

void activate(int activation, float *x, int n) {
    switch (activation) {
        case ACT_SILU:
            for (int i = 0; i < n; i++) x[i] = silu(x[i]);
            break;
        case ACT_RELU:
            for (int i = 0; i < n; i++) x[i] = x[i] < 0.0f ? 0.0f : x[i];
            break;
        case ACT_GELU:
            for (int i = 0; i < n; i++) x[i] = gelu(x[i]);
            break;
        case ACT_GELU_TANH:
            for (int i = 0; i < n; i++) x[i] = gelu_tanh(x[i]);
            break;
        case ACT_GELU_SIGMOID:
            for (int i = 0; i < n; i++) x[i] = x[i] / (1.0f + fast_exp(-1.702f * x[i]));
            break;
        case ACT_RELU2:
            for (int i = 0; i < n; i++) x[i] = x[i] < 0.0f ? 0.0f : x[i] * x[i];
            break;
        default:
            break;
    }
}
