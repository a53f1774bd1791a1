// The tiles of decode_attention in shared memory, and the matmuls of 16 tokens.
#pragma once
#include "attention/kv_schemes.cuh"
#include "common/mbarrier.cuh"
#include "common/mma.cuh"

constexpr int THREADS = NUM_WARPS * WARP;
constexpr int HEAD_TILES = ROWS / 8;               // of 8 query heads
// LOG_STEP: log2 of the tokens that a warp takes at a time; more with a quantized cache, because a step's overhead
// exceeds its mma time. The distance of dimensions in a tile of 16 of the sums: LANE_STEP between neighboring lanes,
// SUM_STEP between a lane's own two elements, TILE_STEP from tile to tile; with PACKED_KV a lane's are adjacent.
#ifdef PACKED_KV
constexpr int LOG_STEP = 6;
using Stored = u8;
#elif defined(KV_SCHEME)
constexpr int LOG_STEP = 5;
using Stored = u8;
#else
constexpr int LOG_STEP = 4;
using Stored = T;
#endif
#ifdef PACKED_KV
constexpr int LANE_STEP = HEAD_DIM / 8;
#elif defined(KV_SCHEME)
constexpr int LANE_STEP = 2, SUM_STEP = 1, TILE_STEP = 16;
#else
constexpr int LANE_STEP = 1, SUM_STEP = 8, TILE_STEP = 16;
#endif
constexpr int STEP = 1 << LOG_STEP, TOKEN_TILES = STEP / 16;  // token tiles of 16
constexpr int TOKEN_TILE_CHUNKS = 16 * 8;           // from one token tile to the next
constexpr int PER_CHUNK = 16 / sizeof(Stored);  // elements of a chunk, 16 bytes
constexpr int CHUNKS = HEAD_DIM / PER_CHUNK;  // of a row
constexpr int PANEL = STEP * 8;               // chunks: 128 bytes of each row
constexpr int PANELS = (CHUNKS + 7) / 8;
#ifdef PACKED_KV
constexpr int TILE_CHUNKS = STEP * HEAD_DIM * 3 / 64;  // of a tile of keys; those of values are smaller
#else
constexpr int TILE_CHUNKS = PANELS * PANEL;          // chunks of a tile
#endif
constexpr int RING_CHUNKS = NUM_STAGES * TILE_CHUNKS;        // chunks of a warp
#ifdef PACKED_KV
constexpr int BUSY_WARPS = NUM_WARPS < 4 ? NUM_WARPS : 4;  // more of them hide latency in long contexts only
#else
constexpr int BUSY_WARPS = NUM_WARPS;
#endif
constexpr int DIRECT_STEPS = 48 * (NUM_WARPS < 8 ? NUM_WARPS : 8) / STEP;  // fewer are not worth splitting

extern __shared__ __align__(1024) uint4 shared[];

// The position of a row's chunk in a tile: panel by panel; within a panel with the copy engine's 128-byte
// swizzle, so that the chunks of eight rows in one column are in different banks.
__device__ __forceinline__ int chunk_at(int row, int column) {
    return column / 8 * PANEL + row * 8 + ((column ^ row) & 7);
}

// chunk_at(row, column + step) of a tile that begins at chunk `tile`, for a constant even `step`. `first` is
// chunk_at(row, column), a column of 0 or 1. Most of it is constant.
__device__ __forceinline__ int columns_on(int tile, int first, int step) {
    return ((tile + first) ^ (step & 7)) + step / 8 * PANEL;
}

__device__ __forceinline__ int lane() { return threadIdx.x % WARP; }
__device__ __forceinline__ int warp() { return threadIdx.x / WARP; }

// Converts the attention weights of 16 tokens to the right operand of the matmul with their values.
template <typename A>
__device__ __forceinline__ void transpose_weights(const float (&weight)[HEAD_TILES][4],
                                                  u32 (&b)[HEAD_TILES][2]) {
#pragma unroll
    for (int i = 0; i < HEAD_TILES * 2; i++)
        b[i / 2][i % 2] =
            transpose(pair_bits(weight[i / 2][i % 2 * 2], weight[i / 2][i % 2 * 2 + 1], A()));
}

// Stands for `StageScales` if the cache is not quantized.
struct NoScales {
    static constexpr float SUM_SCALE = 1;
    __device__ static constexpr u32 bytes() { return 0; }
    __device__ void request(int stage, int row, int log_rows, u64* barrier) const {}
    __device__ void apply(int stage, float (&c)[TOKEN_TILES][HEAD_TILES][4]) const {}
    // Sets the values of invisible tokens to 0, because they may be anything, even NaN.
    template <typename TokenRange>
    __device__ void clear_unseen(int stage, int token, const TokenRange& range) const {
        for (int chunk = lane(); chunk < TILE_CHUNKS; chunk += WARP)
            if (!range.sees(token + chunk / 8 % STEP))
                shared[warp() * RING_CHUNKS + stage * TILE_CHUNKS + chunk] = uint4{};
    }
};

// The two matmuls of 16 tokens. Of scores and weights, lane 4 g + t holds, for each eight heads, the tokens
// g, g, g + 8, g + 8 of the heads 2t, 2t + 1, 2t, 2t + 1; of sums likewise, with dimensions for tokens.
template <typename A> struct TileMma {
    u32 query[HEAD_DIM / 16][HEAD_TILES][2];

    __device__ TileMma(const A* q, int num_rows, int head_dim) {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16 * HEAD_TILES * 2; i++) {
            int row = i / 2 % HEAD_TILES * 8 + lane() / 4;
            int dim = i / (2 * HEAD_TILES) * 16 + i % 2 * 8 + lane() % 4 * 2;
            bool valid = row < num_rows && dim < head_dim;
            query[i / (2 * HEAD_TILES)][i / 2 % HEAD_TILES][i % 2] =
                valid ? *reinterpret_cast<const u32*>(q + row * head_dim + dim) : 0;
        }
    }

    __device__ __forceinline__ void scores(int tile, int work, float (&score)[HEAD_TILES][4]) const {
        int keys = tile + work * TOKEN_TILE_CHUNKS;
        int first = chunk_at(lane() % 16, lane() / 16);
        float odd[HEAD_TILES][4] = {};  // two chains of mma halve the latency
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
            u32 a[4];
            ldmatrix<false>(a, shared_address(shared + columns_on(keys, first, 2 * i)));
#pragma unroll
            for (int n = 0; n < HEAD_TILES; n++)
                mma<A>(i % 2 ? odd[n] : score[n], a, query[i][n][0], query[i][n][1]);
        }
#pragma unroll
        for (int i = 0; i < HEAD_TILES * 4; i++) score[i / 4][i % 4] += odd[i / 4][i % 4];
    }

    __device__ __forceinline__ void add_values(int tile, int work, const float (&weight)[HEAD_TILES][4],
                                               float (&sum)[HEAD_DIM / 16][HEAD_TILES][4]) const {
        int values = tile + work * TOKEN_TILE_CHUNKS;
        int first = chunk_at(lane() % 8 + lane() / 16 * 8, lane() / 8 % 2);
        u32 b[HEAD_TILES][2];
        transpose_weights<A>(weight, b);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
            u32 a[4];
            ldmatrix<true>(a, shared_address(shared + columns_on(values, first, 2 * i)));
#pragma unroll
            for (int n = 0; n < HEAD_TILES; n++)
                mma<A>(sum[i][n], a, b[n][0], b[n][1]);
        }
    }
};

template <> struct TileMma<float> {
    const float* q;
    int num_rows, head_dim;

    __device__ TileMma(const float* q, int num_rows, int head_dim)
        : q(q), num_rows(num_rows), head_dim(head_dim) {}

    __device__ __forceinline__ void scores(int first, int work, float (&score)[HEAD_TILES][4]) const {
        int keys = first + work * TOKEN_TILE_CHUNKS;
        const float4* tile = reinterpret_cast<const float4*>(shared + keys);
#pragma unroll 1
        for (int column = 0; column < head_dim / 4; column++) {
            float4 low = tile[chunk_at(lane() / 4, column)];
            float4 high = tile[chunk_at(lane() / 4 + 8, column)];
#pragma unroll
            for (int i = 0; i < HEAD_TILES * 2; i++) {
                int row = min(i / 2 * 8 + lane() % 4 * 2 + i % 2, num_rows - 1);
                float4 part = *reinterpret_cast<const float4*>(q + row * head_dim + column * 4);
                score[i / 2][i % 2] +=
                    low.x * part.x + low.y * part.y + low.z * part.z + low.w * part.w;
                score[i / 2][i % 2 + 2] +=
                    high.x * part.x + high.y * part.y + high.z * part.z + high.w * part.w;
            }
        }
    }

    __device__ __forceinline__ void add_values(int first, int work, const float (&weight)[HEAD_TILES][4],
                                               float (&sum)[HEAD_DIM / 16][HEAD_TILES][4]) const {
        int values = first + work * TOKEN_TILE_CHUNKS;
        const float* tile = reinterpret_cast<const float*>(shared + values);
#pragma unroll
        for (int high = 0; high < 2; high++)  // unrolled: registers need constant indices
#pragma unroll 1
            for (int token = 0; token < 8; token++) {
                float w[HEAD_TILES][2];
#pragma unroll
                for (int i = 0; i < HEAD_TILES * 2; i++)
                    w[i / 2][i % 2] = __shfl_sync(ALL, weight[i / 2][high * 2 + i % 2],
                                                  token * 4 + lane() % 4);
#pragma unroll
                for (int i = 0; i < HEAD_DIM / 8; i++) {
                    int dim = i * 8 + lane() / 4;
                    float value = tile[chunk_at(high * 8 + token, dim / 4) * 4 + dim % 4];
#pragma unroll
                    for (int n = 0; n < HEAD_TILES; n++) {
                        sum[i / 2][n][i % 2 * 2] += value * w[n][0];
                        sum[i / 2][n][i % 2 * 2 + 1] += value * w[n][1];
                    }
                }
            }
    }
};

