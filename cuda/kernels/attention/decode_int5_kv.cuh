// The parts of decode_attention that differ for the int5 cache (int5_kv.cuh): its tiles and matmuls.
#pragma once
#include "attention/int5_kv.cuh"
#include "attention/decode_tiles.cuh"

constexpr float SUM_UPSCALE = 1;
constexpr bool SCALED_QUERY = true;  // scores are logits but for softcap and ALiBi
constexpr int LANE_WORDS = HEAD_DIM / 64;  // of 32 bits: a lane's part of a row with 2 bits an element
// Of a row, of a key's upper bits, and of a value's.
constexpr int ROW_BYTES = HEAD_DIM / 2, KEY_BITS_BYTES = HEAD_DIM / 4, VALUE_BITS_BYTES = HEAD_DIM / 8;

constexpr float MAX_QUERY = 127 * 256;  // of the integers of a query

using LaneWords = Vec<u32, LANE_WORDS>;
using LaneBits = Choose<HEAD_DIM == 128, unsigned short, u8>::type;  // a lane's part of a value's upper bits

__device__ __forceinline__ LaneWords load_words(const u8* from) {
    return *reinterpret_cast<const LaneWords*>(from);
}

// The tile of a step: a row of ROW_BYTES for each token, then the rows of upper bits.
__device__ __forceinline__ u8* tile_bytes(int tile) { return reinterpret_cast<u8*>(shared + tile); }

// Four keys' elements as bytes: the lower or UPPER nibbles of `x`, with the field FIELD of `bits` above them.
template <bool UPPER, int FIELD> __device__ __forceinline__ u32 key_bytes(u32 x, u32 bits) {
    u32 low = UPPER ? x >> 4 : x, high = FIELD < 2 ? bits << (4 - 2 * FIELD) : bits >> (2 * FIELD - 4);
    return (high & 0x30303030u) | (low & 0x0f0f0f0fu);
}

// The query heads of a block, rounded to 16 bits: two planes of int8, of which the first counts 256 times.
struct IntegerQuery {
    static constexpr int WORDS = HEAD_DIM / 4, PITCH = WORDS + 8;  // so that eight rows are in different banks
    u32 planes[2][ROWS][PITCH];
    float scale[ROWS];
    int bias[ROWS];  // -KEY_LEVELS times the sum of a row

    // Stores a row of q; the whole warp calls it. A row that is not valid is 0.
    __device__ void store(const T* q, int row, bool valid) {
        Vec<T, 4> four{};
        if (valid && lane() < WORDS) four = *reinterpret_cast<const Vec<T, 4>*>(q + row * HEAD_DIM + lane() * 4);
        float largest = 1e-30f, invalid = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            largest = fmaxf(largest, fabsf(to_float(four.at[i])));
            invalid += to_float(four.at[i]) * 0;  // NaN if it is not finite
        }
#pragma unroll
        for (int lanes = 1; lanes < WARP; lanes *= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, lanes));
            invalid += __shfl_xor_sync(ALL, invalid, lanes);
        }
        u32 upper = 0, lower = 0;
        int sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int value = __float2int_rn(to_float(four.at[i]) * (MAX_QUERY / largest));
            sum += value;
            lower |= (value & 255) << 8 * i;
            upper |= ((value + 128) >> 8 & 255) << 8 * i;
        }
#pragma unroll
        for (int lanes = 1; lanes < WARP; lanes *= 2) sum += __shfl_xor_sync(ALL, sum, lanes);
        if (lane() < WORDS) planes[0][row][lane()] = upper, planes[1][row][lane()] = lower;
        if (lane() == 0) scale[row] = largest * (1.f / MAX_QUERY) + invalid, bias[row] = sum * -(int)KEY_LEVELS;
    }
};

// The two matmuls of 16 tokens. Scores are computed in integers. Dimensions are in the order in which words have
// them. Of a key, lane 4 g + t takes the words t * LANE_WORDS … of the upper bits of token g, and the words of
// lower bits that belong to them. Of values, it takes the words g * LANE_WORDS … of four tokens: eight dimensions
// each.
struct PackedTileMma {
    u32 query[2][2 * LANE_WORDS][HEAD_TILES][2];
    int bias[HEAD_TILES][4];
    float query_scale[HEAD_TILES][2];

    // All warps of a block call it together.
    __device__ PackedTileMma(const T* q, int num_rows, int head_dim) {
        __shared__ IntegerQuery all;
        for (int row = warp(); row < ROWS; row += NUM_WARPS) all.store(q, row, row < num_rows);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8 * LANE_WORDS * HEAD_TILES; i++) {
            int j = i / 8 % LANE_WORDS, quarter = i / 2 % 4, plane = i % 2, n = i / 8 / LANE_WORDS;
            int word = lane() % 4 * LANE_WORDS + j + quarter * (HEAD_DIM / 16);
            query[plane][2 * j + quarter / 2][n][quarter % 2] = all.planes[plane][n * 8 + lane() / 4][word];
        }
#pragma unroll
        for (int i = 0; i < HEAD_TILES * 4; i++) {
            int row = i / 4 * 8 + lane() % 4 * 2 + i % 2;
            bias[i / 4][i % 4] = all.bias[row];
            query_scale[i / 4][i % 2] = all.scale[row];
        }
    }

    __device__ void multiply_by(float factor) {
#pragma unroll
        for (int i = 0; i < HEAD_TILES * 2; i++) query_scale[i / 2][i % 2] *= factor;
    }

    __device__ __forceinline__ void scores(int tile, int work, float (&score)[HEAD_TILES][4]) const {
        int token = work * 16 + lane() / 4, t = lane() % 4;
        const u8* rows = tile_bytes(tile) + token * ROW_BYTES + t * LANE_WORDS * 4;
        const u8* above = tile_bytes(tile) + STEP * ROW_BYTES + token * KEY_BITS_BYTES + t * LANE_WORDS * 4;
        LaneWords bits[2] = {load_words(above), load_words(above + 8 * KEY_BITS_BYTES)};
        LaneWords words[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[i / 2][i % 2] = load_words(rows + i / 2 * 8 * ROW_BYTES + i % 2 * (HEAD_DIM / 4));
        int sums[2][HEAD_TILES][4] = {};
#pragma unroll
        for (int i = 0; i < HEAD_TILES * 4; i++) sums[1][i / 4][i % 4] = bias[i / 4][i % 4];
#pragma unroll
        for (int j = 0; j < LANE_WORDS; j++) {
            u32 low = bits[0].at[j], high = bits[1].at[j];
            u32 a[2][4] = {{key_bytes<false, 0>(words[0][0].at[j], low), key_bytes<false, 0>(words[1][0].at[j], high),
                            key_bytes<false, 1>(words[0][1].at[j], low), key_bytes<false, 1>(words[1][1].at[j], high)},
                           {key_bytes<true, 2>(words[0][0].at[j], low), key_bytes<true, 2>(words[1][0].at[j], high),
                            key_bytes<true, 3>(words[0][1].at[j], low), key_bytes<true, 3>(words[1][1].at[j], high)}};
#pragma unroll
            for (int i = 0; i < 4 * HEAD_TILES; i++) {
                int half = i / 2 / HEAD_TILES, n = i / 2 % HEAD_TILES, plane = i % 2;
                const u32(&b)[2] = query[plane][2 * j + half][n];
                mma_int8(sums[plane][n], a[half], b[0], b[1]);
            }
        }
#pragma unroll
        for (int i = 0; i < HEAD_TILES * 4; i++) {
            int n = i / 4, at = i % 4;
            score[n][at] = (float)(sums[0][n][at] * 256 + sums[1][n][at]) * query_scale[n][at % 2];
        }
    }

    __device__ __forceinline__ void add_values(int tile, int work, const float (&weight)[HEAD_TILES][4],
                                               float (&sum)[HEAD_DIM / 16][HEAD_TILES][4]) const {
        int token = work * 16 + lane() % 4 * 2;
        const u8* rows = tile_bytes(tile) + token * ROW_BYTES + lane() / 4 * LANE_WORDS * 4;
        const u8* above = tile_bytes(tile) + STEP * ROW_BYTES + token * VALUE_BITS_BYTES +
                          lane() / 4 * sizeof(LaneBits);
        LaneWords words[4];  // of the tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9
        u32 one[4];          // their further bits
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = i / 2 * 8 + i % 2;
            words[i] = load_words(rows + row * ROW_BYTES);
            one[i] = *reinterpret_cast<const LaneBits*>(above + row * VALUE_BITS_BYTES);
        }
        u32 bits[2] = {__byte_perm(one[0], one[1], 0x5410), __byte_perm(one[2], one[3], 0x5410)};
        u32 b[HEAD_TILES][2];
        transpose_weights<T>(weight, b);
        add_group<0>(words, bits, b, sum);
        if constexpr (LANE_WORDS == 2) add_group<1>(words, bits, b, sum);
    }

    // Adds the GROUP-th eight dimensions of the lanes, four tiles, then subtracts what is added to all values.
    template <int GROUP>
    __device__ __forceinline__ static void add_group(const LaneWords (&words)[4], const u32 (&bits)[2],
                                                     const u32 (&b)[HEAD_TILES][2],
                                                     float (&sum)[HEAD_DIM / 16][HEAD_TILES][4]) {
        constexpr u32 NEGATIVE = VALUE_BASE ^ 0x80008000u;
        u32 a[4][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {  // the tokens of a register pair
            u32 low = words[2 * i].at[GROUP], high = words[2 * i + 1].at[GROUP];
            u32 first = __byte_perm(low, high, 0x5410), second = __byte_perm(low, high, 0x7632);
            a[0][2 * i] = value_pair<0>(first);
            a[0][2 * i + 1] = value_pair<1>(first);
            a[1][2 * i] = value_pair<2>(first);
            a[1][2 * i + 1] = value_pair<0>(second);
            a[2][2 * i] = value_pair<1>(second);
            a[2][2 * i + 1] = value_pair<2>(second);
            a[3][2 * i] = and_or<0x001f001fu, BASE>(bits[i] >> 8 * GROUP);
            a[3][2 * i + 1] = eighth_pair<8 * GROUP + 5>(bits[i], first, second);
        }
#pragma unroll
        for (int i = 0; i < 4 * HEAD_TILES; i++) {
            const u32(&w)[2] = b[i % HEAD_TILES];
            mma<T>(sum[4 * GROUP + i / HEAD_TILES][i % HEAD_TILES], a[i / HEAD_TILES], w[0], w[1]);
        }
#pragma unroll
        for (int i = 0; i < 4 * HEAD_TILES; i++) {
            const u32(&w)[2] = b[i % HEAD_TILES];
            mma<T>(sum[4 * GROUP + i / HEAD_TILES][i % HEAD_TILES], NEGATIVE, NEGATIVE, NEGATIVE, NEGATIVE, w[0],
                   w[1]);
        }
    }
};
