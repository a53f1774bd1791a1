// How prefill_attention divides the keys of a tile of queries among blocks; combine_splits joins their results.
//
// Workspace `partials`: fp32 [num_splits, num_tokens, num_heads, head_dim] weighted sums of values, then fp32 × 2
// [num_splits, num_tokens, num_heads]: the greatest score in units of log2, and the sum of the weights. A sum of
// 0 means that the split has no visible key; then its values are not written.
#pragma once
#include "attention/prefill_tile.cuh"

constexpr int MIN_SPLIT_KEYS = 256;  // fewer take less time than combining the results

// Narrows the keys begin … end - 1 of a tile to those of this block's split.
template <int KEYS>
__device__ __forceinline__ void take_split(const Arguments& a, const QueryTile& w, int& begin, int& end) {
    int first = begin / KEYS, count = (end + KEYS - 1) / KEYS - first;
    int own = max((count + a.num_splits - 1) / a.num_splits, MIN_SPLIT_KEYS / KEYS);
    int from = first + w.split * own;
    begin = max(begin, from * KEYS);
    end = min(end, (from + own) * KEYS);
}

// Stores 16 rows from `row` on of accumulators `o`, the columns from `column` on. `factor` converts scores to units of log2.
template <int N>
__device__ __forceinline__ void store_split(const Arguments& a, const QueryTile& w, const float (&o)[N], int row,
                                            int column, const float (&row_max)[2], const float (&sum)[2],
                                            float factor) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float total = sum[r];
        total += __shfl_xor_sync(ALL, total, 1);
        total += __shfl_xor_sync(ALL, total, 2);
        int own = row + lane / 4 + 8 * r;
        if (own >= w.num_rows) continue;
        i64 token = (i64)w.split * a.num_tokens + w.first_token + w.token(own);
        i64 at = token * a.num_heads + w.head + (w.first + own) % w.group_size;
        if (total > 0) {
            float* to = a.partials + at * a.head_dim + column + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < N / 4; j++)
                if (column + 8 * j < a.head_dim) *(float2*)(to + 8 * j) = {o[4 * j + 2 * r], o[4 * j + 2 * r + 1]};
        }
        i64 rows = (i64)a.num_splits * a.num_tokens * a.num_heads;
        float2* statistics = (float2*)(a.partials + rows * a.head_dim);
        if (column == 0 && lane % 4 == 0) statistics[at] = {row_max[r] * factor, total};
    }
}
