// linear's products: the partial sums of one warp over its columns. Thread (g, t) = (lane / 4,
// lane % 4) has 16 bytes of rows g and g + 8 at a time, and x's columns that belong to them: columns
// 8t … 8t + 7 of 32 of PLAIN weights (fp32: 4t … 4t + 3 of 16), those of packed ones are in records.cuh.
#pragma once
#include "linear/linear_digits.cuh"

constexpr int PAIRS = SCHEME == INT4 ? 4 : SCHEME == PLAIN ? 1 : 2;  // of instructions for a PIECE
// Columns of x from one eight of a thread's to the next: those in groups take turns with other threads.
constexpr int EIGHT_STRIDE = GROUPED ? 32 : 8;
// Whether of eight columns of x the numbers 0 2 1 3 4 6 5 7 lie side by side (decode_int4).
constexpr bool CROSSED = MMA && !INTEGERS && SCHEME == INT4;

// A row's operands of a pair of instructions, out of a thread's PIECE.
template <typename A>
__device__ __forceinline__ void decode(const u32 (&words)[4], int pair, u32 (&a)[4]) {
#if SCHEME == PLAIN
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = words[i];
#elif SCHEME == INT4
    decode_int4(words[pair], a, A());
#else
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 two[2];
#if SCHEME == INT8
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
#if SCHEME == PLAIN
    return __uint_as_float(words[i % 4]);
#elif SCHEME == INT8
    return int8_at(words[i / 4], i % 4);
#elif SCHEME == FP8
    return fp8_at(words[i / 4], i % 4);
#else
    return int4_at(words[i / 8], i % 8);
#endif
}

// What a thread has of a step: 16 bytes each of the rows g and g + 8, and where their columns are in
// vector 0. `low` and `high` are the step's of the rows 0 … 7 and 8 … 15, `column` its first of this
// block's. Of a plain row's last step some threads may have none; an older slot's numbers are there.
struct Piece {
    uint4 rows[2] = {};
    const u8* x;

    __device__ __forceinline__ Piece(const u8* low, const u8* high, const u8* vectors, int column,
                                     int end) {
        int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        int at = SCHEME == PLAIN ? g * RUN_BYTES + t * 16 : lane * 16;
        column += t * (GROUPED ? 8 : PIECE);
        bool inside = SCHEME != PLAIN || column < end;
        x = vectors + (inside ? column : 0) * (int)sizeof(T);
        if (!inside) return;
        rows[0] = *(const uint4*)(low + at);
        rows[1] = *(const uint4*)(high + at);
    }
};

// Sums by instructions: of vectors 2t, 2t + 1 with row g, then with row g + 8; vectors from 8 on in
// the second half. Two in turn, as an instruction waits for the sums of the one before.
constexpr int HALVES = MAX_N > 8 ? 2 : 1;

template <typename A> struct Accumulator {
    float sum[HALVES][2][4] = {};

    // Adds the products of a step. Vectors past the last are computed like the last and never stored.
    __device__ __forceinline__ void add(const u8* low, const u8* high, u8* vectors, int stride, int n,
                                        const Share& share, int column, int end) {
        Piece piece(low, high, vectors, column, end);
        const u32(&words)[2][4] = (const u32(&)[2][4])piece.rows;
#if GROUP_SIZE > 0
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            float part[HALVES][2][4] = {};
            add_pairs<PAIRS / GROUPS>(part, words, piece.x, i * (PAIRS / GROUPS), stride, n);
            const float* sums = sums_of(vectors, stride, n) + column / GROUP_SIZE + i;
            int g = threadIdx.x % WARP / 4, entry = i * BLOCK_ROWS + g;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const __half2* table = (const __half2*)((r ? high : low) + BLOCK_ROWS * STEP_BYTES);
                float2 f = __half22float2(table[entry]);
                float offset = f.y - (SCHEME == INT4 ? int4_more(A()) : 0);
#pragma unroll
                for (int j = 0; j < HALVES * 2; j++) {  // vectors 2t, 2t + 1
                    int vector = min(threadIdx.x % 4 * 2 + j % 2 + j / 2 * 8, n - 1), at = 2 * r + j % 2;
                    float products = part[j / 2][0][at] + part[j / 2][1][at];
                    sum[j / 2][0][at] += f.x * (products + offset * sums[vector * sums_stride(share)]);
                }
            }
        }
#else
        add_pairs<PAIRS>(sum, words, piece.x, 0, stride, n);
#endif
    }

    // Adds COUNT pairs of instructions, from `first` on.
    template <int COUNT>
    __device__ __forceinline__ static void add_pairs(float (&to)[HALVES][2][4],
                                                     const u32 (&words)[2][4], const u8* x, int first,
                                                     int stride, int n) {
        int g = threadIdx.x % WARP / 4;
#pragma unroll
        for (int p = first; p < first + COUNT; p++) {
            u32 a[4], b[4];
            decode<A>(words[0], p, a);
            decode<A>(words[1], p, b);
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                uint4 v = {};  // of one vector only lanes 0 … 3 load: shared memory is busy enough
                if (MAX_N > 1 || g == 0)
                    v = *(const uint4*)(x + p * EIGHT_STRIDE * (int)sizeof(A) +
                                        min(g + 8 * h, n - 1) * stride);
                multiply<A>(to[h][0], a[0], b[0], a[1], b[1], v.x, v.y);
                multiply<A>(to[h][1], a[2], b[2], a[3], b[3], v.z, v.w);
            }
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
    float sum[2][MAX_N] = {};  // of rows g and g + 8, over this thread's columns

    __device__ __forceinline__ void add(const u8* low, const u8* high, u8* vectors, int stride, int n,
                                        const Share&, int column, int end) {
        Piece piece(low, high, vectors, column, end);
        const u32(&words)[2][4] = (const u32(&)[2][4])piece.rows;
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int i = 0; i < PIECE; i += 4) {
                int at = GROUPED ? i / 8 * EIGHT_STRIDE + i % 8 : i;
                float w[4];
#pragma unroll
                for (int j = 0; j < 4; j++) w[j] = weight_at(words[r], i + j);
#if GROUP_SIZE > 0
                int entry = i / (PIECE / GROUPS) * BLOCK_ROWS + threadIdx.x % WARP / 4;
                const u8* table = (r ? high : low) + BLOCK_ROWS * STEP_BYTES;
                float2 f = __half22float2(((const __half2*)table)[entry]);
#pragma unroll
                for (int j = 0; j < 4; j++) w[j] = f.x * (w[j] + f.y);
#endif
#pragma unroll
                for (int b = 0; b < MAX_N; b++)
                    if (b < n) {
                        float4 v = *(const float4*)(piece.x + b * stride + at * 4);
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
            for (int b = 0; b < MAX_N; b++) {
                float v = sum[r][b] + __shfl_xor_sync(ALL, sum[r][b], 1);
                v += __shfl_xor_sync(ALL, v, 2);
                if (b < n && lane % 4 == 0) sums[b][lane / 4 + 8 * r] = v;
                sum[r][b] = 0;
            }
    }
};

using Sums = Choose<INTEGERS, DigitSums, Accumulator<T>>::type;

// Leaves the sums of x over each group of the columns that this warp multiplies, by instructions with
// rows of ones: lane t of the first row has them of vectors 2t, 2t + 1.
__device__ __forceinline__ void sum_groups(const Share& share, u8* vectors, int stride, int n) {
#if GROUP_SIZE > 0
    if constexpr (MMA && !INTEGERS) {
        constexpr u32 ONES = IS_HALF ? 0x3c003c00 : 0x3f803f80;
        constexpr int EACH = PAIRS / GROUPS;
        int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        int first = threadIdx.x / WARP * STEP, columns = share.end - share.begin;
#pragma unroll 2
        for (int column = first; column < columns; column += CONSUMERS * STEP) {
            const u8* x = vectors + (column + t * 8) * (int)sizeof(T);
#pragma unroll
            for (int i = 0; i < GROUPS * HALVES; i++) {
                float part[2][4] = {};
                int group = i / HALVES, half_of = i % HALVES;
#pragma unroll
                for (int p = group * EACH; p < (group + 1) * EACH; p++) {
                    uint4 v = *(const uint4*)(x + p * EIGHT_STRIDE * (int)sizeof(T) +
                                              min(g + 8 * half_of, n - 1) * stride);
                    multiply<T>(part[0], ONES, ONES, ONES, ONES, v.x, v.y);
                    multiply<T>(part[1], ONES, ONES, ONES, ONES, v.z, v.w);
                }
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    int vector = 2 * t + j + 8 * half_of;
                    float* to = sums_of(vectors, stride, n) + vector * sums_stride(share);
                    if (g == 0 && vector < n) to[column / GROUP_SIZE + group] = part[0][j] + part[1][j];
                }
            }
        }
        __syncwarp();
    }
#endif
}

// The products of a slot: `width` columns of the tile, `column` the first of this block's.
__device__ __forceinline__ void add_chunk(Sums& sums, const u8* slot, u8* vectors, int stride, int n,
                                          const Share& share, int column, int width) {
    constexpr int STEP_STRIDE = SCHEME == PLAIN ? STEP_BYTES : RECORD;
    constexpr int HIGH = TILE / 2 * RUNS / TILE * RUN_BYTES;
    int warp = threadIdx.x / WARP;
    auto add = [&](int j) {
        int step = j * CONSUMERS + warp;
        const u8* low = slot + step * STEP_STRIDE;
        sums.add(low, low + HIGH, vectors, stride, n, share, column + step * STEP, column + width);
    };
    if (width == CHUNK) {
        constexpr int TOGETHER = MMA ? STEPS : 1;
#pragma unroll TOGETHER
        for (int j = 0; j < STEPS; j++) add(j);
    } else {
        for (int j = 0; (j * CONSUMERS + warp) * STEP < width; j++) add(j);
    }
}
