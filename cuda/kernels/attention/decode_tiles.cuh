// What decode_attention keeps in shared memory, and the products of 16 tokens.
#pragma once
#include "common/mbarrier.cuh"
#include "common/mma.cuh"

constexpr int THREADS = NUM_WARPS * WARP;
constexpr int TILES = ROWS / 8;               // query heads in eights
// Tokens a warp takes at a time, log2: of codes twice as many, for what a step costs besides its
// products is more than they do. What the cache has of an element; and how far apart in a sum's 16
// dimensions neighboring lanes' are, and a lane's own two.
#ifdef KV_SCHEME
constexpr int LOG_STEP = 5;
using Stored = u8;
constexpr int LANE_STEP = 2, SUM_STEP = 1;
#else
constexpr int LOG_STEP = 4;
using Stored = T;
constexpr int LANE_STEP = 1, SUM_STEP = 8;
#endif
constexpr int STEP = 1 << LOG_STEP, MMA_TILES = STEP / 16;  // sixteen tokens are a part
constexpr int MMA_TILE_CHUNKS = 16 * 8;           // from one part to the next
constexpr int PER_CHUNK = 16 / sizeof(Stored);  // elements in 16 bytes
constexpr int CHUNKS = HEAD_DIM / PER_CHUNK;  // a row in 16 bytes
constexpr int PANEL = STEP * 8;               // chunks of all rows' next 128 bytes
constexpr int PANELS = (CHUNKS + 7) / 8;
constexpr int STAGE = PANELS * PANEL;          // chunks of a tile
constexpr int RING = NUM_STAGES * STAGE;        // chunks of a warp
constexpr int DIRECT_STEPS = 48 * NUM_WARPS / STEP;  // so few are not worth a combination

extern __shared__ __align__(1024) uint4 shared[];

// The chunk at which a tile keeps a row's chunk: panel by panel, within one as the copy engine's
// 128-byte swizzle has it, so that eight rows of one column never range a bank.
__device__ __forceinline__ int chunk_at(int row, int column) {
    return column / 8 * PANEL + row * 8 + ((column ^ row) & 7);
}

// chunk_at(row, column + step) of a tile that begins at chunk `tile`, for a constant even `step`:
// `first` is chunk_at(row, column), a column of 0 or 1. Most constants become part of instructions.
__device__ __forceinline__ int columns_on(int tile, int first, int step) {
    return ((tile + first) ^ (step & 7)) + step / 8 * PANEL;
}

__device__ __forceinline__ int lane() { return threadIdx.x % WARP; }
__device__ __forceinline__ int warp() { return threadIdx.x / WARP; }

// An 8 × 8 matrix of which each lane holds (g, 2t..2t+1), transposed.
__device__ __forceinline__ u32 transpose(u32 pair) {
    u32 result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
}

// Weights of 16 tokens become the right operand of the product with their values.
template <typename A>
__device__ __forceinline__ void transpose_weights(const float (&weight)[TILES][4],
                                                  u32 (&b)[TILES][2]) {
#pragma unroll
    for (int i = 0; i < TILES * 2; i++)
        b[i / 2][i % 2] =
            transpose(pair_bits(weight[i / 2][i % 2 * 2], weight[i / 2][i % 2 * 2 + 1], A()));
}

// What a plain cache has in place of scales.
struct NoScales {
    static constexpr float SUM_SCALE = 1;
    __device__ static constexpr u32 bytes() { return 0; }
    __device__ void request(int stage, int row, int log_rows, u64* barrier) const {}
    __device__ void apply(int stage, float (&c)[MMA_TILES][TILES][4]) const {}
    // Zeros for the values of tokens that are not visible, which may be anything: even NaN.
    template <typename TokenRange>
    __device__ void clear_unseen(int stage, int token, const TokenRange& range) const {
        for (int chunk = lane(); chunk < STAGE; chunk += WARP)
            if (!range.sees(token + chunk / 8 % STEP))
                shared[warp() * RING + stage * STAGE + chunk] = uint4{};
    }
};

// The two products of a part. Scores and weights: lane 4 g + t holds, for each eight heads, tokens
// g, g, g+8, g+8 of heads 2t, 2t+1, 2t, 2t+1; sums likewise, with dimensions for tokens.
template <typename A> struct TileMma {
    u32 query[HEAD_DIM / 16][TILES][2];

    __device__ TileMma(const A* q, int num_rows, int head_dim) {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16 * TILES * 2; i++) {
            int row = i / 2 % TILES * 8 + lane() / 4;
            int dim = i / (2 * TILES) * 16 + i % 2 * 8 + lane() % 4 * 2;
            bool valid = row < num_rows && dim < head_dim;
            query[i / (2 * TILES)][i / 2 % TILES][i % 2] =
                valid ? *reinterpret_cast<const u32*>(q + row * head_dim + dim) : 0;
        }
    }

    __device__ __forceinline__ void scores(int keys, float (&score)[TILES][4]) const {
        int first = chunk_at(lane() % 16, lane() / 16);
        float odd[TILES][4] = {};  // two chains of products: half the latency
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
            u32 a[4];
            ldmatrix<false>(a, shared_address(shared + columns_on(keys, first, 2 * i)));
#pragma unroll
            for (int n = 0; n < TILES; n++)
                mma<A>(i % 2 ? odd[n] : score[n], a, query[i][n][0], query[i][n][1]);
        }
#pragma unroll
        for (int i = 0; i < TILES * 4; i++) score[i / 4][i % 4] += odd[i / 4][i % 4];
    }

    __device__ __forceinline__ void add_values(int values, const float (&weight)[TILES][4],
                                               float (&sum)[HEAD_DIM / 16][TILES][4]) const {
        int first = chunk_at(lane() % 8 + lane() / 16 * 8, lane() / 8 % 2);
        u32 b[TILES][2];
        transpose_weights<A>(weight, b);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
            u32 a[4];
            ldmatrix<true>(a, shared_address(shared + columns_on(values, first, 2 * i)));
#pragma unroll
            for (int n = 0; n < TILES; n++)
                mma<A>(sum[i][n], a, b[n][0], b[n][1]);
        }
    }
};

template <> struct TileMma<float> {
    const float* q;
    int num_rows, head_dim;

    __device__ TileMma(const float* q, int num_rows, int head_dim)
        : q(q), num_rows(num_rows), head_dim(head_dim) {}

    __device__ __forceinline__ void scores(int keys, float (&score)[TILES][4]) const {
        const float4* tile = reinterpret_cast<const float4*>(shared + keys);
#pragma unroll 1
        for (int column = 0; column < head_dim / 4; column++) {
            float4 low = tile[chunk_at(lane() / 4, column)];
            float4 high = tile[chunk_at(lane() / 4 + 8, column)];
#pragma unroll
            for (int i = 0; i < TILES * 2; i++) {
                int row = min(i / 2 * 8 + lane() % 4 * 2 + i % 2, num_rows - 1);
                float4 part = *reinterpret_cast<const float4*>(q + row * head_dim + column * 4);
                score[i / 2][i % 2] +=
                    low.x * part.x + low.y * part.y + low.z * part.z + low.w * part.w;
                score[i / 2][i % 2 + 2] +=
                    high.x * part.x + high.y * part.y + high.z * part.z + high.w * part.w;
            }
        }
    }

    __device__ __forceinline__ void add_values(int values, const float (&weight)[TILES][4],
                                               float (&sum)[HEAD_DIM / 16][TILES][4]) const {
        const float* tile = reinterpret_cast<const float*>(shared + values);
#pragma unroll
        for (int high = 0; high < 2; high++)  // registers are indexed by constants only
#pragma unroll 1
            for (int token = 0; token < 8; token++) {
                float w[TILES][2];
#pragma unroll
                for (int i = 0; i < TILES * 2; i++)
                    w[i / 2][i % 2] = __shfl_sync(ALL, weight[i / 2][high * 2 + i % 2],
                                                  token * 4 + lane() % 4);
#pragma unroll
                for (int i = 0; i < HEAD_DIM / 8; i++) {
                    int dim = i * 8 + lane() / 4;
                    float value = tile[chunk_at(high * 8 + token, dim / 4) * 4 + dim % 4];
#pragma unroll
                    for (int n = 0; n < TILES; n++) {
                        sum[i / 2][n][i % 2 * 2] += value * w[n][0];
                        sum[i / 2][n][i % 2 * 2 + 1] += value * w[n][1];
                    }
                }
            }
    }
};

