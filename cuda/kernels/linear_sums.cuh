// linear's products: the partial sums of one warp over its columns. Thread (g, t) = (lane / 4,
// lane % 4) has 16 bytes of rows g and g + 8 at a time, and x's columns that belong to them:
//
//   PLAIN       columns 8t … 8t + 7 of 32 (fp32: 4t … 4t + 3 of 16)
//   INT8, FP8   16t … 16t + 15 of 64
//   INT4        32p + 8t … 32p + 8t + 7 of 128, in word p of the four (p = 0 … 3): groups of columns
//               are whole pairs of instructions, whose sums then get the group's factor
//   INT8 with a GROUP  likewise of 64, in the words 2p and 2p + 1 (p = 0, 1)
#pragma once
#include "linear_stream.cuh"
#include "mma.cuh"

constexpr bool MMA = !Same<T, float>::value;
constexpr int PAIRS = FORM == INT4 ? 4 : FORM == PLAIN ? 1 : 2;  // of instructions for a PIECE
constexpr int X_PIECE = GROUPED ? 8 : PIECE;   // columns of x that lie together, of a thread
constexpr int PAIR_STRIDE = GROUPED ? 32 : 8;  // columns of x from one pair to the next
// What an int4 number in an instruction is more than the number that it means.
constexpr float ZERO = FORM == INT4 && MMA ? int4_offset(T()) : 0;

// A row's operands of a pair of instructions, out of a thread's PIECE.
template <typename A>
__device__ __forceinline__ void decode(const u32 (&words)[4], int pair, u32 (&a)[4]) {
#if FORM == PLAIN
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = words[i];
#elif FORM == INT4
    decode_int4(words[pair], a, A());
#else
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 two[2];
#if FORM == INT8
        decode_int8(words[2 * pair + i], two, A());
#else
        decode_fp8(words[2 * pair + i], two, A());
#endif
        a[2 * i] = two[0];
        a[2 * i + 1] = two[1];
    }
#endif
}

// Weight i of a thread's PIECE in fp32, without its factors.
__device__ __forceinline__ float weight_at(const u32 (&words)[4], int i) {
#if FORM == PLAIN
    return __uint_as_float(words[i % 4]);
#elif FORM == INT8
    return int8_at(words[i / 4], i % 4);
#elif FORM == FP8
    return fp8_at(words[i / 4], i % 4);
#else
    return int4_at(words[i / 8], i % 8);
#endif
}

constexpr int GROUPS = GROUPED ? STEP / (GROUPED ? GROUP : 1) : 1;  // in a step

// Where the groups of a step lie in shared memory.
struct Group {
    const u8* table;    // of row g, ROW_STRIDE from one to the next
    const float* sums;  // of vector 0
    int stride;         // floats from a vector's sums to the next one's
};

#if GROUP > 0

// Sums of x over each group, in fp32, after the vectors; 4: other banks for the next vector.
__device__ __forceinline__ int sums_stride(const Share& share) {
    return ((share.end - share.begin) / GROUP + 3) / 4 * 4 + 4;
}

// Leaves the sum of x over a group behind the vectors. Every lane of the warp has COLUMNS neighbours
// of vector b from `column` on, or none, and calls it.
template <int COLUMNS>
__device__ __forceinline__ void keep_sum(const Vec<T, COLUMNS>& x, int b, int column, bool valid,
                                         const Share& share, u8* vectors, int stride, int n) {
    if constexpr (MMA) {  // fp32 multiplies by whole weights
        float sum = 0;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) sum += valid ? to_float(x.at[i]) : 0;
#pragma unroll
        for (int i = GROUP / COLUMNS / 2; i; i /= 2) sum += __shfl_xor_sync(ALL, sum, i);
        if (valid && column % GROUP == 0)
            ((float*)(vectors + n * stride))[b * sums_stride(share) + column / GROUP] = sum;
    }
}
#else
template <int COLUMNS>
__device__ __forceinline__ void keep_sum(const Vec<T, COLUMNS>&, int, int, bool, const Share&, u8*,
                                         int, int) {}
#endif

// Sums by instructions: of vectors 2t, 2t + 1 with row g, then with row g + 8; vectors from 8 on in
// the second half. Two in turn, as an instruction waits for the sums of the one before.
constexpr int HALVES = VECTORS > 8 ? 2 : 1;

template <typename A> struct Accumulator {
    float sum[HALVES][2][4] = {};

    // Adds the products of a step. Vectors past the last are computed like the last and never stored.
    __device__ __forceinline__ void add(const uint4 (&rows)[2], const u8* x, int stride, int n,
                                        Group group) {
        const u32 low[4] = {rows[0].x, rows[0].y, rows[0].z, rows[0].w};
        const u32 high[4] = {rows[1].x, rows[1].y, rows[1].z, rows[1].w};
#if GROUP > 0
        constexpr int EACH = PAIRS / GROUPS;  // pairs of instructions of a group
        using Row = Vec<__half2, GROUPS>;
        Row table[2] = {*(const Row*)group.table, *(const Row*)(group.table + 8 * ROW_STRIDE)};
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            float part[HALVES][2][4] = {};
#pragma unroll
            for (int p = i * EACH; p < (i + 1) * EACH; p++) add_pair(part, low, high, p, x, stride, n);
            // factor * (products + zero * sum of x)
            float2 f[2] = {__half22float2(table[0].at[i]), __half22float2(table[1].at[i])};
#pragma unroll
            for (int h = 0; h < HALVES; h++)
#pragma unroll
                for (int v = 0; v < (VECTORS > 1 ? 2 : 1); v++) {
                    int vector = min(threadIdx.x % 4 * 2 + v + 8 * h, n - 1);
                    float sum_of_x = group.sums[vector * group.stride + i];
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        float products = part[h][0][2 * r + v] + part[h][1][2 * r + v];
                        sum[h][0][2 * r + v] += f[r].x * (products + (f[r].y - ZERO) * sum_of_x);
                    }
                }
        }
#else
#pragma unroll
        for (int p = 0; p < PAIRS; p++) add_pair(sum, low, high, p, x, stride, n);
#endif
    }

    __device__ __forceinline__ static void add_pair(float (&part)[HALVES][2][4], const u32 (&low)[4],
                                                    const u32 (&high)[4], int pair, const u8* x,
                                                    int stride, int n) {
        int g = threadIdx.x % WARP / 4;
        u32 a[4], b[4];
        decode<A>(low, pair, a);
        decode<A>(high, pair, b);
        x += pair * PAIR_STRIDE * (int)sizeof(A);
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            uint4 v = {};  // of one vector only lanes 0 … 3 load: shared memory is busy enough
            if (VECTORS > 1 || g == 0) v = *(const uint4*)(x + min(g + 8 * h, n - 1) * stride);
            multiply<A>(part[h][0], a[0], b[0], a[1], b[1], v.x, v.y);
            multiply<A>(part[h][1], a[2], b[2], a[3], b[3], v.z, v.w);
        }
    }

    __device__ __forceinline__ void store(float (*sums)[SUMS_STRIDE], int n) {
        int g = threadIdx.x % WARP / 4;
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int vector = threadIdx.x % 4 * 2 + j % 2 + 8 * h;
                if (vector < n) sums[vector][g + j / 2 * 8] = sum[h][0][j] + sum[h][1][j];
                sum[h][0][j] = sum[h][1][j] = 0;
            }
    }
};

template <> struct Accumulator<float> {
    float sum[2][VECTORS] = {};  // of rows g and g + 8, over this thread's columns

    __device__ __forceinline__ void add(const uint4 (&rows)[2], const u8* x, int stride, int n,
                                        Group group) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 words[4] = {rows[r].x, rows[r].y, rows[r].z, rows[r].w};
#pragma unroll
            for (int i = 0; i < PIECE; i += 4) {
                int column = GROUPED ? i / 8 * PAIR_STRIDE + i % 8 : i;
                float w[4];
#pragma unroll
                for (int j = 0; j < 4; j++) w[j] = weight_at(words, i + j);
#if GROUP > 0
                const __half2* row = (const __half2*)(group.table + 8 * r * ROW_STRIDE);
                float2 f = __half22float2(row[i / (PIECE / GROUPS)]);
#pragma unroll
                for (int j = 0; j < 4; j++) w[j] = f.x * (w[j] + f.y);
#endif
#pragma unroll
                for (int b = 0; b < VECTORS; b++)
                    if (b < n) {
                        float4 v = *(const float4*)(x + b * stride + column * 4);
                        sum[r][b] += w[0] * v.x + w[1] * v.y + w[2] * v.z + w[3] * v.w;
                    }
            }
        }
    }

    __device__ __forceinline__ void store(float (*sums)[SUMS_STRIDE], int n) {
        int lane = threadIdx.x % WARP;
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int b = 0; b < VECTORS; b++) {
                float v = sum[r][b] + __shfl_xor_sync(ALL, sum[r][b], 1);
                v += __shfl_xor_sync(ALL, v, 2);
                if (b < n && lane % 4 == 0) sums[b][lane / 4 + 8 * r] = v;
                sum[r][b] = 0;
            }
    }
};

// The products of a slot: `width` columns of the tile, `column` the first.
__device__ __forceinline__ void add_chunk(Accumulator<T>& sums, const u8* slot, const u8* vectors,
                                          int stride, int n, const Share& share, int column,
                                          int width) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const u8* rows = slot + g * ROW_STRIDE + warp * STEP_BYTES + t * 16;
    const u8* x = vectors + (column - share.begin + warp * STEP + t * X_PIECE) * (int)sizeof(T);
    constexpr int X_BYTES = STEP * (int)sizeof(T);
    Group group = {};
#if GROUP > 0
    const float* sums_of_x = (const float*)(vectors + n * stride);
    group = {slot + g * ROW_STRIDE + width * BITS / 8 + warp * GROUPS * 4,
             sums_of_x + (column - share.begin) / GROUP + warp * GROUPS, sums_stride(share)};
#endif
    auto add = [&](int j, bool inside) {
        const u8* from = rows + j * CONSUMERS * STEP_BYTES;
        uint4 both[2] = {};
        if (inside) {
            both[0] = *(const uint4*)from;
            both[1] = *(const uint4*)(from + 8 * ROW_STRIDE);
        }
        int first = j * CONSUMERS * GROUPS;
        sums.add(both, inside ? x + j * CONSUMERS * X_BYTES : vectors, stride, n,
                 {group.table + first * 4, group.sums + first, group.stride});
    };
    if (width == CHUNK) {
        constexpr int TOGETHER = MMA ? STEPS : 1;
#pragma unroll TOGETHER
        for (int j = 0; j < STEPS; j++) add(j, true);
    } else {  // what lies past the end of a row is an older slot's
        for (int j = 0; (j * CONSUMERS + warp) * STEP < width; j++)
            // Groups fill whole steps; else a thread may be past the end.
            add(j, GROUPED || (j * CONSUMERS + warp) * STEP + t * PIECE < width);
    }
}
