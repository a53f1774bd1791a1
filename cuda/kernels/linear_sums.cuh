// linear's products: the partial sums of one warp over its columns. Thread (g, t) = (lane / 4,
// lane % 4) has 16 bytes of row g at a time, and x's columns that belong to them:
//
//   PLAIN       columns 8t … 8t + 7 of 32 (fp32: 4t … 4t + 3 of 16)
//   INT8, FP8   16t … 16t + 15 of 64
//   INT4        32p + 8t … 32p + 8t + 7 of 128, in word p of the four (p = 0 … 3): groups of columns
//               are whole pairs of instructions, whose sums then get the group's factor
#pragma once
#include "linear_stream.cuh"
#include "mma.cuh"

constexpr int PAIRS = FORM == INT4 ? 4 : 2;  // of instructions for 16 bytes of packed weights
constexpr int X_PIECE = FORM == INT4 ? 8 : PIECE;   // columns of x that lie together, of a thread
constexpr int PAIR_STRIDE = FORM == INT4 ? 32 : 8;  // columns of x from one pair to the next

#if FORM != PLAIN
// Operands of a pair of instructions out of a thread's 16 bytes.
template <typename A>
__device__ __forceinline__ void decode(const u32 (&words)[4], int pair, u32 (&b)[4]) {
#if FORM == INT4
    decode_int4(words[pair], b, A());
#else
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 two[2];
#if FORM == INT8
        decode_int8(words[2 * pair + i], two, A());
#else
        decode_fp8(words[2 * pair + i], two, A());
#endif
        b[2 * i] = two[0];
        b[2 * i + 1] = two[1];
    }
#endif
}

// Weight i of a thread's PIECE in fp32, without its factors.
__device__ __forceinline__ float weight_at(const u32 (&words)[4], int i) {
#if FORM == INT8
    return int8_at(words[i / 4], i % 4);
#elif FORM == FP8
    return fp8_at(words[i / 4], i % 4);
#else
    return int4_at(words[i / 8], i % 8);
#endif
}
#endif

#if FORM == INT4
constexpr int GROUPS = STEP / GROUP;  // in a step

// Where the groups of a step lie in shared memory.
struct Group {
    const u8* table;    // of row 0
    const float* sums;  // of vector 0
    int stride;         // floats from a vector's sums to the next one's
};

// Sums of x over each group, in fp32, after the vectors; 4: other banks for the next vector.
__device__ __forceinline__ int sums_stride(const Share& share) {
    return ((share.end - share.begin) / GROUP + 3) / 4 * 4 + 4;
}

// Reads the vectors in shared memory, and leaves the sums of their groups behind them.
__device__ void sum_groups(const Arguments& a, const Share& share, u8* vectors, int stride) {
    if constexpr (!Same<T, float>::value) {  // which multiplies by whole weights
        constexpr int LANES = GROUP / 8;
        int lane = threadIdx.x % WARP, pieces = (share.end - share.begin) / 8;
        float* sums = (float*)(vectors + a.n * stride);
        for (int b = 0; b < a.n; b++)
            for (int first = threadIdx.x - lane; first < pieces; first += CONSUMER_THREADS) {
                float sum = 0;
                if (first + lane < pieces) {
                    Vec<T, 8> x = *(const Vec<T, 8>*)(vectors + b * stride + (first + lane) * 16);
#pragma unroll
                    for (int i = 0; i < 8; i++) sum += to_float(x.at[i]);
                }
#pragma unroll
                for (int i = LANES / 2; i; i /= 2) sum += __shfl_xor_sync(ALL, sum, i);
                if (lane % LANES == 0 && first + lane < pieces)
                    sums[b * sums_stride(share) + (first + lane) / LANES] = sum;
            }
        named_barrier<1, CONSUMER_THREADS>();
    }
}
#else
__device__ __forceinline__ void sum_groups(const Arguments&, const Share&, u8*, int) {}
#endif

// Sums by instructions: vectors g and g + 8, rows 2t and 2t + 1; two in turn.
constexpr bool BOTH_HALVES = FORM == PLAIN || VECTORS > 8;  // see add_pair
struct MmaSums {
    float sum[2][4] = {};

    // i = 0, 1: vector g, rows 2t and 2t + 1; 2, 3: vector g + 8
    __device__ __forceinline__ float of(int i) const {
        return sum[0][i] + sum[1][BOTH_HALVES ? i : i + 2];
    }
    __device__ __forceinline__ void store(float (*sums)[TILE], int n) {
        int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
        if (g < n) *(float2*)&sums[g][2 * t] = {of(0), of(1)};
        if (VECTORS > 8 && g + 8 < n) *(float2*)&sums[g + 8][2 * t] = {of(2), of(3)};
#pragma unroll
        for (int i = 0; i < 4; i++) sum[0][i] = sum[1][i] = 0;
    }
};

#if FORM != PLAIN
// Adds to `sum` the products of one pair of instructions. Vectors past the last are computed like
// the last and never stored.
template <typename A>
__device__ __forceinline__ void add_pair(float (&sum)[2][4], const u32 (&words)[4], int pair,
                                         const u8* x, int stride, int n) {
    int g = threadIdx.x % WARP / 4, at = pair * PAIR_STRIDE * (int)sizeof(A);
    uint4 low = *(const uint4*)(x + min(g, n - 1) * stride + at), high = {};
    if (VECTORS > 8) high = *(const uint4*)(x + min(g + 8, n - 1) * stride + at);
    u32 b[4];
    decode<A>(words, pair, b);
    // An instruction wants its four registers of x side by side, as they are loaded: without vectors
    // g + 8 the first makes sums of x and z, the second of y and w, in the half of vectors g + 8.
    if (BOTH_HALVES) {
        multiply<A>(sum[0], low.x, high.x, low.z, high.z, b[0], b[2]);
        multiply<A>(sum[1], low.y, high.y, low.w, high.w, b[1], b[3]);
    } else {
        multiply<A>(sum[0], low.x, low.y, low.z, low.w, b[0], b[2]);
        multiply<A>(sum[1], low.x, low.y, low.z, low.w, b[1], b[3]);
    }
}
#endif

template <typename A> struct Accumulator : MmaSums {
#if FORM == PLAIN
    __device__ __forceinline__ void add(uint4 w, const u8* x, int stride, int n) {
        int g = threadIdx.x % WARP / 4;
        // Vectors past the last are computed like the last and never stored.
        uint4 low = *(const uint4*)(x + min(g, n - 1) * stride), high = {};
        if (VECTORS > 8) high = *(const uint4*)(x + min(g + 8, n - 1) * stride);
        multiply<A>(sum[0], low.x, high.x, low.y, high.y, w.x, w.y);
        multiply<A>(sum[1], low.z, high.z, low.w, high.w, w.z, w.w);
    }
#elif FORM != INT4
    __device__ __forceinline__ void add(uint4 w, const u8* x, int stride, int n) {
        const u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int p = 0; p < PAIRS; p++) add_pair<A>(sum, words, p, x, stride, n);
    }
#else
    // sum over groups of factor * (products + zero * sum of x)
    __device__ __forceinline__ void add(uint4 w, const u8* x, int stride, int n, Group group) {
        using Row = Vec<__half2, GROUPS>;
        using X = Vec<float, GROUPS>;
        const u32 words[4] = {w.x, w.y, w.z, w.w};
        int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
        Row rows[2] = {*(const Row*)(group.table + 2 * t * TABLE_STRIDE),
                       *(const Row*)(group.table + (2 * t + 1) * TABLE_STRIDE)};
        X low = *(const X*)(group.sums + min(g, n - 1) * group.stride), high = low;
        if (VECTORS > 8) high = *(const X*)(group.sums + min(g + 8, n - 1) * group.stride);
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            MmaSums part;
#pragma unroll
            for (int p = 0; p < PAIRS / GROUPS; p++)
                add_pair<A>(part.sum, words, i * (PAIRS / GROUPS) + p, x, stride, n);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float2 f = __half22float2(rows[j].at[i]);
                sum[0][j] += f.x * (part.of(j) + f.y * low.at[i]);
                if (VECTORS > 8) sum[0][j + 2] += f.x * (part.of(j + 2) + f.y * high.at[i]);
            }
        }
    }
#endif
};

template <> struct Accumulator<float> {
    float sum[VECTORS] = {};  // of row g, over this thread's columns

#if FORM == PLAIN
    __device__ __forceinline__ void add(uint4 w, const u8* x, int stride, int n) {
        const float* a = (const float*)&w;
#pragma unroll
        for (int b = 0; b < VECTORS; b++)
            if (b < n) {
                float4 v = *(const float4*)(x + b * stride);
                sum[b] += a[0] * v.x + a[1] * v.y + a[2] * v.z + a[3] * v.w;
            }
    }
#elif FORM != INT4
    __device__ __forceinline__ void add(uint4 w, const u8* x, int stride, int n) {
        add_columns(w, x, stride, n, 0, PIECE, 1, 0);
    }
#else
    __device__ __forceinline__ void add(uint4 w, const u8* x, int stride, int n, Group group) {
        const u8* row = group.table + threadIdx.x % WARP / 4 * TABLE_STRIDE;
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            float2 f = __half22float2(((const __half2*)row)[i]);
            add_columns(w, x, stride, n, i * PIECE / GROUPS, PIECE / GROUPS, f.x, f.y);
        }
    }
#endif
#if FORM != PLAIN
    // Columns first … first + count of this thread's, times factor * (weight + zero).
    __device__ __forceinline__ void add_columns(uint4 w, const u8* x, int stride, int n, int first,
                                                int count, float factor, float zero) {
        const u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = first; i < first + count; i += 4) {
            int column = FORM == INT4 ? i / 8 * PAIR_STRIDE + i % 8 : i;
            float a[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                a[j] = weight_at(words, i + j);
                if (FORM == INT4) a[j] = factor * (a[j] + zero);
            }
#pragma unroll
            for (int b = 0; b < VECTORS; b++)
                if (b < n) {
                    float4 v = *(const float4*)(x + b * stride + column * 4);
                    sum[b] += a[0] * v.x + a[1] * v.y + a[2] * v.z + a[3] * v.w;
                }
        }
    }
#endif
    __device__ __forceinline__ void store(float (*sums)[TILE], int n) {
        int lane = threadIdx.x % WARP;
#pragma unroll
        for (int b = 0; b < VECTORS; b++) {
            float v = sum[b] + __shfl_xor_sync(ALL, sum[b], 1);
            v += __shfl_xor_sync(ALL, v, 2);
            if (b < n && lane % 4 == 0) sums[b][lane / 4] = v;
            sum[b] = 0;
        }
    }
};

#if FORM != PLAIN
// The products of a slot: `width` columns of the tile, `column` the first.
__device__ __forceinline__ void add_chunk(Accumulator<T>& sums, const u8* slot, const u8* vectors,
                                          int stride, int n, const Share& share, int column,
                                          int width) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const u8* rows = slot + g * ROW_STRIDE + warp * STEP_BYTES + t * 16;
    const u8* x = vectors + (column - share.begin + warp * STEP + t * X_PIECE) * (int)sizeof(T);
    constexpr int X_BYTES = STEP * (int)sizeof(T);
#if FORM == INT4
    const float* sums_of_x = (const float*)(vectors + n * stride);
    Group group = {slot + TILE * ROW_STRIDE + warp * GROUPS * 4,
                   sums_of_x + (column - share.begin) / GROUP + warp * GROUPS, sums_stride(share)};
#endif
    auto add = [&](uint4 w, int j, const u8* x) {
#if FORM == INT4
        int first = j * CONSUMERS * GROUPS;
        sums.add(w, x, stride, n, {group.table + first * 4, group.sums + first, group.stride});
#else
        sums.add(w, x, stride, n);
#endif
    };
    if (width == CHUNK) {
        constexpr int TOGETHER = Same<T, float>::value ? 1 : STEPS;
#pragma unroll TOGETHER
        for (int j = 0; j < STEPS; j++)
            add(*(const uint4*)(rows + j * CONSUMERS * STEP_BYTES), j, x + j * CONSUMERS * X_BYTES);
    } else {  // what lies past the end of a row is an older slot's
        for (int j = 0; (j * CONSUMERS + warp) * STEP < width; j++) {
            // Whole steps of INT4; else a thread may be past the end.
            bool inside = FORM == INT4 || (j * CONSUMERS + warp) * STEP + t * PIECE < width;
            uint4 zero = {};
            add(inside ? *(const uint4*)(rows + j * CONSUMERS * STEP_BYTES) : zero, j,
                inside ? x + j * CONSUMERS * X_BYTES : vectors);
        }
    }
}
#endif
