// The scales of a quantized cache in prefill_attention, as columns of the accumulators.
#pragma once

// Multiplies the columns of an accumulator by the scales `by`.
template <int N>
__device__ __forceinline__ void scale_columns(float (&s)[N], const float* by) {
    const float* own = by + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
        float2 pair = *reinterpret_cast<const float2*>(own + j * 8);
        float low = pair.x / VALUE_SCALE, high = pair.y / VALUE_SCALE;
        s[4 * j] *= low;
        s[4 * j + 1] *= high;
        s[4 * j + 2] *= low;
        s[4 * j + 3] *= high;
    }
}
