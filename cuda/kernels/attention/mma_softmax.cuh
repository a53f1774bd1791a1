// Attention on tensor cores: tiles of 16-bit rows in shared memory, their copies, and the softmax of a tile
// of scores in accumulators.
//
// Accumulators of 16 rows × N columns, as mma.m16n8k16 and wgmma define them: thread (g, t) = (lane / 4,
// lane % 4) holds at [4j], [4j + 1] row g and at [4j + 2], [4j + 3] row g + 8, columns 8j + 2t and 8j + 2t + 1.
// Arrays [2] hold values of row g and row g + 8.
#pragma once
#include "common/async_copy.cuh"
#include "common/mbarrier.cuh"
#include "common/mma.cuh"

// The offset of a 16-byte chunk in a tile of ROWS rows. A panel is 64 columns of all rows. The eight chunks of
// a row in a panel are permuted by the row, so that the chunks of eight rows in one column are in different
// banks. This is wgmma's 128-byte swizzle if the tile is aligned to 1024.
template <int ROWS> __device__ __forceinline__ u32 chunk_offset(int row, int chunk) {
    return ((chunk >> 3) * ROWS + row) * 128 + ((chunk ^ row) & 7) * 16;
}

// Packs the accumulators of the columns 16 step … 16 step + 15 as the left operand of the next mma.
template <typename A>
__device__ __forceinline__ void pack_operand(u32 (&a)[4], const float* s, int step) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = pair_bits(s[8 * step + 2 * i], s[8 * step + 2 * i + 1], A());
}

// cap * tanh(x / cap), with the absolute error of fp32 at the size of cap.
__device__ __forceinline__ float softcap_score(float x, float cap) {
    return cap - __fdividef(2 * cap, exp2_fast(x * (2 * LOG2_E / cap)) + 1);
}

// Converts products to scores in units of log2: scaled, capped if cap > 0, and with ALiBi's penalty for the
// distance between the key and the row's position. `key` is the key of the thread's first column.
template <int N>
__device__ __forceinline__ void bias_scores(float (&s)[N], int key, const int (&position)[2],
                                            float scale, float cap, float slope) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        float score = s[i] * scale;
        if (cap > 0) score = softcap_score(score, cap);
        int distance = key + i / 4 * 8 + i % 2 - position[i / 2 % 2];
        s[i] = (score + slope * distance) * LOG2_E;
    }
}

// Sets the scores to -infinity except for the `count` keys from `begin` on that a row sees.
template <int N>
__device__ __forceinline__ void mask_scores(float (&s)[N], int key, const int (&begin)[2],
                                            const int (&count)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        int half_row = i / 2 % 2;
        u32 place = key + i / 4 * 8 + i % 2 - begin[half_row];
        if (place >= (u32)count[half_row]) s[i] = -infinity();
    }
}

// Online softmax (Milakov and Gimelshein, 2018): converts scores s (in units of 1 / factor) to weights
// 2^(factor * (s - row_max)). `row_max` is a row's greatest score so far, `sum` this thread's part of the sum of
// the weights; the caller must multiply older sums by `rescale`.
template <int N>
__device__ __forceinline__ void online_softmax(float (&s)[N], float factor, float (&row_max)[2],
                                       float (&sum)[2], float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float greatest = row_max[r];
#pragma unroll
        for (int j = 0; j < N; j += 4)
            greatest = fmaxf(greatest, fmaxf(s[j + 2 * r], s[j + 2 * r + 1]));
        greatest = fmaxf(greatest, __shfl_xor_sync(ALL, greatest, 1));
        greatest = fmaxf(greatest, __shfl_xor_sync(ALL, greatest, 2));
        // A row that has not seen a key yet: -infinity - (-infinity) would be NaN.
        float base = greatest == -infinity() ? 0.f : greatest * factor;
        rescale[r] = exp2_fast(row_max[r] * factor - base);
        row_max[r] = greatest;
        sum[r] *= rescale[r];
#pragma unroll
        for (int j = 0; j < N; j += 4) {
            s[j + 2 * r] = exp2_fast(s[j + 2 * r] * factor - base);
            s[j + 2 * r + 1] = exp2_fast(s[j + 2 * r + 1] * factor - base);
            sum[r] += s[j + 2 * r] + s[j + 2 * r + 1];
        }
    }
}

// Like online_softmax, but `row_max` stays until it is too small by more than MAX_GROWTH, in units of log2: then
// most tiles leave the older sums as they are. Returns whether a row of the warp has to be rescaled.
constexpr float MAX_GROWTH = 8;
template <int N>
__device__ __forceinline__ bool lazy_softmax(float (&s)[N], float factor, float (&row_max)[2],
                                             float (&sum)[2], float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float even = s[2 * r], odd = s[2 * r + 1];
#pragma unroll
        for (int j = 4; j < N; j += 4) {
            even = fmaxf(even, s[j + 2 * r]);
            odd = fmaxf(odd, s[j + 2 * r + 1]);
        }
        float greatest = fmaxf(even, odd);
        greatest = fmaxf(greatest, __shfl_xor_sync(ALL, greatest, 1));
        greatest = fmaxf(greatest, __shfl_xor_sync(ALL, greatest, 2));
        bool stays = (greatest - row_max[r]) * factor <= MAX_GROWTH;  // false for two infinities
        greatest = stays ? row_max[r] : fmaxf(row_max[r], greatest);
        float base = greatest == -infinity() ? 0.f : greatest * factor;
        rescale[r] = stays ? 1.f : exp2_fast(row_max[r] * factor - base);
        row_max[r] = greatest;
        even = sum[r] * rescale[r], odd = 0;
#pragma unroll
        for (int j = 0; j < N; j += 4) {
            s[j + 2 * r] = exp2_fast(s[j + 2 * r] * factor - base);
            s[j + 2 * r + 1] = exp2_fast(s[j + 2 * r + 1] * factor - base);
            even += s[j + 2 * r];
            odd += s[j + 2 * r + 1];
        }
        sum[r] = even + odd;
    }
    // The caller branches on the result; this keeps the weights before the branch.
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(s[i]));
    return __any_sync(ALL, rescale[0] != 1.f || rescale[1] != 1.f);
}

template <int N> __device__ __forceinline__ void rescale_rows(float (&o)[N], const float (&by)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) o[i] *= by[i / 2 % 2];
}

// The factor of an output row: 1 / sum over the row's threads, or 0 if the row sees no key.
__device__ __forceinline__ float inverse_sum(float sum) {
    sum += __shfl_xor_sync(ALL, sum, 1);
    sum += __shfl_xor_sync(ALL, sum, 2);
    return sum > 0 ? 1 / sum : 0.f;
}
