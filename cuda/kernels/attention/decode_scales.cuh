// The scales of a quantized cache in decode_attention.
#pragma once
#include "attention/decode_tiles.cuh"

// The scales of a step's tokens, beside their tile in the ring.
struct StageScales {
    const float* all;             // scales of all rows of the cache
    float (*stage_scales)[STEP];  // for each stage

    static constexpr float SUM_SCALE = SUM_UPSCALE;  // the sums are smaller by this factor
    __device__ static constexpr u32 bytes() { return STEP * 4; }  // of a step

    // Starts the copy of a step's scales: 1 << log_rows rows from lane i's `row` on. All lanes call it.
    __device__ __forceinline__ void request(int stage, int row, int log_rows, u64* barrier) const {
#if __CUDA_ARCH__ >= 900
        if (lane() < STEP >> log_rows)
            copy_bytes(stage_scales[stage] + (lane() << log_rows), all + row, 4 << log_rows, barrier);
#else
        int r = lane() % (STEP / 4) * 4;
        int from = __shfl_sync(ALL, row, r >> log_rows) + (r & ((1 << log_rows) - 1));
        if (lane() < STEP / 4) copy_16_async(stage_scales[stage] + r, all + from);
#endif
    }

    // Applies the scales: of K to scores, or of V to attention weights.
    __device__ __forceinline__ void apply(int stage, float (&c)[TOKEN_TILES][HEAD_TILES][4]) const {
#pragma unroll
        for (int i = 0; i < TOKEN_TILES * 2; i++) {
            float by = stage_scales[stage][lane() / 4 + 8 * i] * (SUM_UPSCALE / VALUE_SCALE);
#pragma unroll
            for (int j = 0; j < HEAD_TILES * 2; j++) c[i / 2][j / 2][i % 2 * 2 + j % 2] *= by;
        }
    }

    // Sets the scales of invisible tokens to 0, because they may be invalid.
    template <typename TokenRange>
    __device__ __forceinline__ void clear_unseen(int stage, int token, const TokenRange& range) const {
#pragma unroll
        for (int i = lane(); i < STEP; i += WARP)
            if (!range.sees(token + i)) stage_scales[stage][i] = 0;
    }
};
