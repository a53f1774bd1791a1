// Rows of an expert's matrix by one vector: what the two products of a mixture share.
#pragma once
#include "common/reduce.cuh"

constexpr int WARPS = 8, THREADS = WARPS * WARP;
constexpr int PIECE = 16 / sizeof(T);  // elements of one load
constexpr int UNROLL = 4;              // loads of a row under way at once

union Piece {
    uint4 bits;
    T at[PIECE];
};

// Adds to sums[r] this lane's part of row r times the vector, both `columns` long, of pieces
// first + lane, first + lane + step, …; row r begins at rows + r * stride. Rows past `count` are
// computed like the last.
template <int ROWS>
__device__ __forceinline__ void add_products(float (&sums)[ROWS], const T* rows, i64 stride,
                                             int count, const T* vector, int columns, int first,
                                             int step) {
    int pieces = columns / PIECE;
    for (int i = first; i < pieces; i += UNROLL * step) {
        Piece w[UNROLL][ROWS];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                w[u][r].bits = {};
                if (i + u * step < pieces)
                    w[u][r].bits = __ldcs((const uint4*)(rows + min(r, count - 1) * stride) + i + u * step);
            }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (i + u * step >= pieces) continue;
            Piece v;
            v.bits = ((const uint4*)vector)[i + u * step];
#pragma unroll
            for (int j = 0; j < PIECE; j++)
#pragma unroll
                for (int r = 0; r < ROWS; r++) sums[r] += to_float(w[u][r].at[j]) * to_float(v.at[j]);
        }
    }
}

// A vector into shared memory; whole pieces.
__device__ __forceinline__ void fetch(T* to, const T* from, int elements) {
    for (int i = threadIdx.x; i < elements / PIECE; i += THREADS)
        ((uint4*)to)[i] = __ldcg((const uint4*)from + i);
}
