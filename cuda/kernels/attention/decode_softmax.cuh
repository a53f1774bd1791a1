// The online softmax of decode_attention.
#pragma once
#include "attention/decode_loader.cuh"

// Online softmax in powers of two. A lane keeps the maxima of its heads 2t and 2t + 1, and the totals over
// its own tokens.
struct Softmax {
    float factor, log2_softcap;
    bool has_alibi;
    float slope[HEAD_TILES][2], row_max[HEAD_TILES][2], total[HEAD_TILES][2];

    __device__ Softmax(float scale, float softcap, const float* alibi_slopes, const Heads& heads) {
        log2_softcap = softcap * LOG2_E;
        has_alibi = alibi_slopes;
        factor = LOG2_E * (softcap > 0 ? 2 * scale / softcap : scale);
#pragma unroll
        for (int i = 0; i < HEAD_TILES * 2; i++) {
            int row = i / 2 * 8 + lane() % 4 * 2 + i % 2;
            slope[i / 2][i % 2] =
                alibi_slopes && row < heads.count ? alibi_slopes[heads.first + row] * LOG2_E : 0.f;
            row_max[i / 2][i % 2] = -infinity();
            total[i / 2][i % 2] = 0;
        }
    }

    __device__ float logit(float product, float slope, int token, const TokenRange& range) const {
        float value = SCALED_QUERY ? product : product * factor;
        // tanh(x) = 1 - 2 / (exp(2x) + 1), with an absolute error like fp32's
        if (log2_softcap > 0) value = log2_softcap * (1 - __fdividef(2.f, exp2f(value) + 1));
        value += slope * (token - (range.end - 1));
        return range.sees(token) ? value : -infinity();
    }

    // Converts the products of step `index` to logits, in place.
    __device__ __forceinline__ void adjust(float (&c)[TOKEN_TILES][HEAD_TILES][4], int index,
                                           const TokenRange& range) const {
        float(&all)[TOKEN_TILES * HEAD_TILES][4] = reinterpret_cast<float(&)[TOKEN_TILES * HEAD_TILES][4]>(c);
        if (range.sees_all(index) && log2_softcap == 0 && !has_alibi) {
#pragma unroll
            for (int i = 0; i < TOKEN_TILES * HEAD_TILES * 4 && !SCALED_QUERY; i++) all[i / 4][i % 4] *= factor;
            return;
        }
#pragma unroll
        for (int i = 0; i < TOKEN_TILES * HEAD_TILES * 4; i++) {
            int token = range.token(index) + i / 4 / HEAD_TILES * 16 + lane() / 4 + i % 4 / 2 * 8;
            all[i / 4][i % 4] = logit(all[i / 4][i % 4], slope[i / 4 % HEAD_TILES][i % 2], token, range);
        }
    }

    // Converts logits to attention weights, in place. Older sums must be multiplied by `rescale`; returns true if
    // that is not 1 everywhere. Every step has a visible token, so the new maximum is finite.
    __device__ __forceinline__ bool softmax_weights(float (&c)[TOKEN_TILES][HEAD_TILES][4], float (&rescale)[HEAD_TILES][2]) {
        bool grows = false;
#pragma unroll
        for (int i = 0; i < HEAD_TILES * 2; i++) {
            int n = i / 2, h = i % 2;
            float largest = row_max[n][h];
#pragma unroll
            for (int work = 0; work < TOKEN_TILES; work++)
                largest = fmaxf(largest, fmaxf(c[work][n][h], c[work][n][h + 2]));
#pragma unroll
            for (int lanes = 4; lanes < WARP; lanes *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, lanes));
            rescale[n][h] = exp2_fast(row_max[n][h] - largest);
            grows |= largest > row_max[n][h];
            row_max[n][h] = largest;
            total[n][h] *= rescale[n][h];
#pragma unroll
            for (int work = 0; work < TOKEN_TILES; work++) {
                c[work][n][h] = exp2_fast(c[work][n][h] - largest);
                c[work][n][h + 2] = exp2_fast(c[work][n][h + 2] - largest);
                total[n][h] += c[work][n][h] + c[work][n][h + 2];
            }
        }
        return __any_sync(ALL, grows);
    }
};
