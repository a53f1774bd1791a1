// The partial sums of one consumer warp of `linear`. Thread (g, t) = (lane / 4, lane % 4) loads 16 bytes
// of the weight rows g and g + 8 at a time, and the columns of x that belong to them: of PLAIN weights
// columns 8t … 8t + 7 of 32 (fp32: 4t … 4t + 3 of 16), of packed weights those in packed_layout.cuh.
#pragma once
#include "linear/int8_planes.cuh"

constexpr int MMA_PAIRS = PACKED ? 16 / BITS : 1;  // for a FRAGMENT
// Columns from one octet of a thread to its next one.
constexpr int OCTET_STRIDE = GROUPED ? 32 : 8;
// Whether the eight elements of an octet of x are stored in the order 0 2 1 3 4 6 5 7 of unpacked 4-bit values.
constexpr bool FOUR_BIT_ORDER = MMA && !INT8_PLANES && BITS == 4;

// A thread's operands of a step: 16 bytes each of the weight rows g and g + 8, and the place of their
// columns in x. `low` and `high` are the step's data of the rows 0 … 7 and 8 … 15, `column` is its first
// column in this split. In the last step of a plain row some threads have no columns: the stage still holds
// older data there, so they use zeros. With STREAM_X `activations` is the warp's panel, `column` the number of
// the step in it, and all columns past the end are zeros.
struct Fragment {
    uint4 rows[2] = {};
    const u8* x;
    int chunk;  // STREAM_X: of 16 bytes in the panel

    __device__ __forceinline__ Fragment(const u8* low, const u8* high, const u8* activations,
                                        int column, int end) {
        int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        int at = PACKED ? lane * 16 : g * BOX_BYTES + t * 16;
#if STREAM_X
        x = activations;
        chunk = column * 4 + t;
#else
        column += t * (GROUPED ? 8 : FRAGMENT);
        bool inside = PACKED || column < end;
        x = activations + (inside ? column : 0) * (int)sizeof(T);
        if (!inside) return;
#endif
        rows[0] = *(const uint4*)(low + at);
        rows[1] = *(const uint4*)(high + at);
    }

    // The eight elements of an activation row for a pair of mma instructions.
    template <typename A> __device__ __forceinline__ uint4 load(int row, int pair, int stride) const {
#if STREAM_X
        return *(const uint4*)(x + row * PANEL_BYTES + (chunk ^ row % 8) * 16);
#else
        return *(const uint4*)(x + pair * OCTET_STRIDE * (int)sizeof(A) + row * stride);
#endif
    }
};

// Sums by mma: of the activation rows 2t, 2t + 1 with weight row g, then with row g + 8; activation rows
// from 8 on are the second half. Two accumulators take turns, because an mma waits for the accumulator
// of the one before.
constexpr int HALVES = MAX_N > 8 ? 2 : 1;

template <typename A> struct Accumulator {
    float sum[HALVES][2][4] = {};

    // Adds the products of a step. Activation rows past n repeat the last one and are not stored.
    __device__ __forceinline__ void add(const u8* low, const u8* high, u8* activations, int stride, int n,
                                        const Work& work, int column, int end) {
        Fragment fragment(low, high, activations, column, end);
        const u32(&words)[2][4] = (const u32(&)[2][4])fragment.rows;
        u32 scales[2] = {};
#if GROUP_SIZE > 0
        if constexpr (!SCALED_SUMS) {
            int at = TILE_ROWS * STEP_BYTES + thread_entries();
            scales[0] = *(const u32*)(low + at);
            scales[1] = *(const u32*)(high + at);
            add_pairs<MMA_PAIRS>(sum, words, scales, fragment, 0, stride, n);
            return;
        }
#pragma unroll
        for (int i = 0; i < TILE_GROUPS; i++) {
            float partial[HALVES][2][4] = {};
            add_pairs<MMA_PAIRS / TILE_GROUPS>(partial, words, scales, fragment, i * (MMA_PAIRS / TILE_GROUPS), stride, n);
            const float* sums = group_sums(activations, stride, n) + column / GROUP_SIZE + i;
            int g = threadIdx.x % WARP / 4, entry = i * TILE_ROWS + g;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const Entry* table = (const Entry*)((r ? high : low) + TILE_ROWS * STEP_BYTES);
                float2 f = Scheme::group_of(table[entry]);
                float minus_zero = f.y - Scheme::SUM_BIAS<A>;
#pragma unroll
                for (int j = 0; j < HALVES * 2; j++) {  // activation rows 2t, 2t + 1
                    int row = min(threadIdx.x % 4 * 2 + j % 2 + j / 2 * 8, n - 1), at = 2 * r + j % 2;
                    float products = partial[j / 2][0][at] + partial[j / 2][1][at];
                    float from_zero = ZERO_POINTS ? minus_zero * sums[row * group_sums_stride(work)] : 0;
                    sum[j / 2][0][at] += f.x * (ZERO_POINTS ? products + from_zero : products);
                }
            }
        }
#else
        add_pairs<MMA_PAIRS>(sum, words, scales, fragment, 0, stride, n);
#endif
    }

    // Adds the products of COUNT pairs of mma instructions from `first` on.
    template <int COUNT>
    __device__ __forceinline__ static void add_pairs(float (&to)[HALVES][2][4],
                                                     const u32 (&words)[2][4], const u32 (&scales)[2],
                                                     const Fragment& fragment, int first, int stride, int n) {
        int g = threadIdx.x % WARP / 4;
#pragma unroll
        for (int p = first; p < first + COUNT; p++) {
            u32 a[4], b[4];
            Scheme::unpack(words[0], scales[0], p, a, A());
            Scheme::unpack(words[1], scales[1], p, b, A());
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                uint4 v = {};  // for one activation row only lanes 0 … 3 load, to save bandwidth
                if (MAX_N > 1 || g == 0) v = fragment.load<A>(min(g + 8 * h, n - 1), p, stride);
                mma<A>(to[h][0], a[0], b[0], a[1], b[1], v.x, v.y);
                mma<A>(to[h][1], a[2], b[2], a[3], b[3], v.z, v.w);
            }
        }
    }

    template <typename Put> __device__ __forceinline__ void store(Put put, int n) {
        int g = threadIdx.x % WARP / 4;
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int row = threadIdx.x % 4 * 2 + j % 2 + 8 * h;
                if (row < n) put(row, g + j / 2 * 8, sum[h][0][j] + sum[h][1][j]);
                sum[h][0][j] = sum[h][1][j] = 0;
            }
    }
};

template <> struct Accumulator<float> {
    float sum[2][MAX_N] = {};  // of the weight rows g and g + 8, over this thread's columns

    __device__ __forceinline__ void add(const u8* low, const u8* high, u8* activations, int stride, int n,
                                        const Work&, int column, int end) {
        Fragment fragment(low, high, activations, column, end);
        const u32(&words)[2][4] = (const u32(&)[2][4])fragment.rows;
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int i = 0; i < FRAGMENT; i += 4) {
                int at = GROUPED ? i / 8 * OCTET_STRIDE + i % 8 : i;
                float w[4];
#pragma unroll
                for (int j = 0; j < 4; j++) w[j] = Scheme::value_at(words[r], i + j);
#if GROUP_SIZE > 0
                int lane = threadIdx.x % WARP, entry = entry_of(lane / 4, group_of_octet(i / 8, lane % 4));
                const u8* table = (r ? high : low) + TILE_ROWS * STEP_BYTES;
                float2 f = Scheme::group_of(((const Entry*)table)[entry]);
#pragma unroll
                for (int j = 0; j < 4; j++) w[j] = f.x * (ZERO_POINTS ? w[j] + f.y : w[j]);
#endif
#pragma unroll
                for (int b = 0; b < MAX_N; b++)
                    if (b < n) {
                        float4 v = *(const float4*)(fragment.x + b * stride + at * 4);
                        // explicit, so that the rounding is the same in every variant
                        sum[r][b] = fmaf(w[3], v.w, fmaf(w[2], v.z, fmaf(w[1], v.y, fmaf(w[0], v.x, sum[r][b]))));
                    }
            }
        }
    }

    template <typename Put> __device__ __forceinline__ void store(Put put, int n) {
        int lane = threadIdx.x % WARP;
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int b = 0; b < MAX_N; b++) {
                float v = sum[r][b] + __shfl_xor_sync(ALL, sum[r][b], 1);
                v += __shfl_xor_sync(ALL, v, 2);
                if (b < n && lane % 4 == 0) put(b, lane / 4 + 8 * r, v);
                sum[r][b] = 0;
            }
    }
};

using WarpAccumulator = Choose<INT8_PLANES, Int8PlanesAccumulator<Scheme>, Accumulator<T>>::type;

// Stores the sums of x over each group, for zero points, by mma with a matrix of ones: lane t of the first row gets
// those of the activation rows 2t, 2t + 1.
__device__ __forceinline__ void sum_groups(const Work& work, u8* activations, int stride, int n) {
#if GROUP_SIZE > 0
    if constexpr (ZERO_POINTS && MMA && !INT8_PLANES) {
        constexpr u32 ONES = IS_HALF ? 0x3c003c00 : 0x3f803f80;
        constexpr int GROUP_PAIRS = MMA_PAIRS / TILE_GROUPS;
        int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        int first = threadIdx.x / WARP * STEP, columns = work.columns;
#pragma unroll 2
        for (int column = first; column < columns; column += CONSUMERS * STEP) {
            const u8* x = activations + (column + t * 8) * (int)sizeof(T);
#pragma unroll
            for (int i = 0; i < TILE_GROUPS * HALVES; i++) {
                float partial[2][4] = {};
                int group = i / HALVES, half_of = i % HALVES;
#pragma unroll
                for (int p = group * GROUP_PAIRS; p < (group + 1) * GROUP_PAIRS; p++) {
                    uint4 v = *(const uint4*)(x + p * OCTET_STRIDE * (int)sizeof(T) +
                                              min(g + 8 * half_of, n - 1) * stride);
                    mma<T>(partial[0], ONES, ONES, ONES, ONES, v.x, v.y);
                    mma<T>(partial[1], ONES, ONES, ONES, ONES, v.z, v.w);
                }
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    int row = 2 * t + j + 8 * half_of;
                    float* to = group_sums(activations, stride, n) + row * group_sums_stride(work);
                    if (g == 0 && row < n) to[column / GROUP_SIZE + group] = partial[0][j] + partial[1][j];
                }
            }
        }
        named_barrier<1, CONSUMER_THREADS>();
    }
#endif
}

// Adds the products of a stage, with this block's columns of the M tile from `own` on. The warps that share the tile
// have neighboring columns; `stage` is this warp's first step.
__device__ __forceinline__ void add_chunk(WarpAccumulator& accumulator, const u8* stage, u8* activations, int stride,
                                          int n, const Work& work, int own) {
    constexpr int STEP_STRIDE = PACKED ? PACKED_TILE_BYTES : STEP_BYTES;
    int column = own + threadIdx.x / WARP % SHARERS * (STEPS * STEP);
    auto add = [&](int j) {
        const u8* low = stage + j * STEP_STRIDE;
        accumulator.add(low, low + EIGHT_ROWS_BYTES, activations, stride, n, work, STREAM_X ? j : column + j * STEP,
                        work.columns);
    };
    if (own + OWN <= work.columns) {
        constexpr int TOGETHER = MMA ? STEPS : 1;
#pragma unroll TOGETHER
        for (int j = 0; j < STEPS; j++) add(j);
    } else {
        for (int j = 0; j < STEPS && column + j * STEP < work.columns; j++) add(j);
    }
}

// The bytes from a stage to this warp's first step in it.
__device__ __forceinline__ int first_step_bytes() {
    int warp = threadIdx.x / WARP, step = warp % SHARERS * STEPS, tile = warp / SHARERS;
    int within = PACKED ? step * PACKED_TILE_BYTES
                        : step * STEP_BYTES / BOX_BYTES * (TILE_ROWS * BOX_BYTES) + step * STEP_BYTES % BOX_BYTES;
    return tile * (M_TILE / TILE_ROWS) * EIGHT_ROWS_BYTES + within;
}
