// Dot products of an expert's matrix rows with an activation row.
#pragma once
#include "common/reduce.cuh"

constexpr int WARPS = 8, THREADS = WARPS * WARP;
constexpr int FRAGMENT = 16 / sizeof(T);  // elements of one load
constexpr int UNROLL = 4;              // loads of a row in flight

union Fragment {
    uint4 bits;
    T at[FRAGMENT];
};

// Adds to sums[r] this lane's part of the dot product of row r and the activation, both `columns`
// long: fragments first, first + step, … Row r begins at rows + r * stride. Rows past `count` repeat
// the last row.
template <int ROWS>
__device__ __forceinline__ void add_dots(float (&sums)[ROWS], const T* rows, i64 stride,
                                             int count, const T* activation, int columns, int first,
                                             int step) {
    int fragments = columns / FRAGMENT;
    for (int i = first; i < fragments; i += UNROLL * step) {
        Fragment w[UNROLL][ROWS];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                w[u][r].bits = {};
                if (i + u * step < fragments)
                    w[u][r].bits = __ldcs((const uint4*)(rows + min(r, count - 1) * stride) + i + u * step);
            }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (i + u * step >= fragments) continue;
            Fragment v;
            v.bits = ((const uint4*)activation)[i + u * step];
#pragma unroll
            for (int j = 0; j < FRAGMENT; j++)
#pragma unroll
                for (int r = 0; r < ROWS; r++) sums[r] += to_float(w[u][r].at[j]) * to_float(v.at[j]);
        }
    }
}

// Copies whole fragments of an activation row to shared memory.
__device__ __forceinline__ void copy_to_shared(T* to, const T* from, int elements) {
    for (int i = threadIdx.x; i < elements / FRAGMENT; i += THREADS)
        ((uint4*)to)[i] = __ldcg((const uint4*)from + i);
}
