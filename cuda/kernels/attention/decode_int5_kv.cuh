// The parts of decode_attention that differ for the int5 cache (int5_kv.cuh): its tiles and matmuls.
#pragma once
#include "attention/int5_kv.cuh"
#include "attention/decode_tiles.cuh"

constexpr float SUM_UPSCALE = 1;
constexpr int LANE_WORDS = HEAD_DIM / 64;  // of 32 bits: a lane's part of a row with 2 bits an element
// Of a row, of a key's upper bits, and of a value's.
constexpr int ROW_BYTES = HEAD_DIM / 2, KEY_BITS_BYTES = HEAD_DIM / 4, VALUE_BITS_BYTES = HEAD_DIM / 8;

using LaneWords = Vec<u32, LANE_WORDS>;
using LaneBits = Choose<HEAD_DIM == 128, unsigned short, u8>::type;  // a lane's part of a value's upper bits

__device__ __forceinline__ LaneWords load_words(const u8* from) {
    return *reinterpret_cast<const LaneWords*>(from);
}

// The tile of a step: a row of ROW_BYTES for each token, then the rows of upper bits.
__device__ __forceinline__ u8* tile_bytes(int tile) { return reinterpret_cast<u8*>(shared + tile); }

// The two matmuls of 16 tokens. Dimensions are in the order in which words have them. Of a key, lane 4 g + t
// takes the words t * LANE_WORDS … of the upper bits of token g, and the words of lower bits that belong to
// them. Of values, it takes the words g * LANE_WORDS … of four tokens.
struct PackedTileMma {
    u32 query[HEAD_DIM / 16][HEAD_TILES][2];
    float bias[HEAD_TILES][4];  // -KEY_BASE times the sum of a query

    __device__ PackedTileMma(const T* q, int num_rows, int head_dim) {
        int first = lane() % 4 * LANE_WORDS * 4;
#pragma unroll
        for (int i = 0; i < LANE_WORDS * 2 * HEAD_TILES; i++) {
            int word = i / HEAD_TILES, n = i % HEAD_TILES, row = n * 8 + lane() / 4;
            int dim = first + word / 2 * 4 + word % 2 * (HEAD_DIM / 4);
            Vec<u32, 2> low{}, high{};
            if (row < num_rows) {
                low = *reinterpret_cast<const Vec<u32, 2>*>(q + row * HEAD_DIM + dim);
                high = *reinterpret_cast<const Vec<u32, 2>*>(q + row * HEAD_DIM + dim + HEAD_DIM / 2);
            }
#pragma unroll
            for (int s = 0; s < 2; s++) {
                u32 which = s ? 0x7632 : 0x5410;
                query[2 * word + s][n][0] = __byte_perm(low.at[0], low.at[1], which);
                query[2 * word + s][n][1] = __byte_perm(high.at[0], high.at[1], which);
            }
        }
        constexpr u32 NEGATIVE = KEY_BASE ^ 0x80008000u;
#pragma unroll
        for (int n = 0; n < HEAD_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) bias[n][i] = 0;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 16; i++)
                mma<T>(bias[n], NEGATIVE, NEGATIVE, NEGATIVE, NEGATIVE, query[i][n][0], query[i][n][1]);
        }
    }

    // The products of words J of a row's lower bits with WHICH half of their upper bits.
    template <int WHICH>
    __device__ __forceinline__ void word_scores(u32 low, u32 high, u32 low_bits_above, u32 high_bits_above,
                                                int i, float (&score)[HEAD_TILES][4],
                                                float (&odd)[HEAD_TILES][4]) const {
        u32 a[2][4] = {
            {key_pair<0, WHICH>(low, low_bits_above), key_pair<0, WHICH>(high, high_bits_above),
             key_pair<1, 2 + WHICH>(low, low_bits_above), key_pair<1, 2 + WHICH>(high, high_bits_above)},
            {key_pair<2, 4 + WHICH>(low, low_bits_above), key_pair<2, 4 + WHICH>(high, high_bits_above),
             key_pair<3, 6 + WHICH>(low, low_bits_above), key_pair<3, 6 + WHICH>(high, high_bits_above)}};
#pragma unroll
        for (int n = 0; n < HEAD_TILES; n++) {
            mma<T>(score[n], a[0], query[i][n][0], query[i][n][1]);
            mma<T>(odd[n], a[1], query[i + 1][n][0], query[i + 1][n][1]);
        }
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
        float odd[HEAD_TILES][4] = {};  // two chains of mma halve the latency
#pragma unroll
        for (int i = 0; i < HEAD_TILES * 4; i++) score[i / 4][i % 4] = bias[i / 4][i % 4];
#pragma unroll
        for (int j = 0; j < LANE_WORDS; j++) {
            word_scores<0>(words[0][0].at[j], words[1][0].at[j], bits[0].at[j], bits[1].at[j], 4 * j, score,
                           odd);
            word_scores<1>(words[0][1].at[j], words[1][1].at[j], bits[0].at[j], bits[1].at[j], 4 * j + 2,
                           score, odd);
        }
#pragma unroll
        for (int i = 0; i < HEAD_TILES * 4; i++) score[i / 4][i % 4] += odd[i / 4][i % 4];
    }

    __device__ __forceinline__ void add_values(int tile, int work, const float (&weight)[HEAD_TILES][4],
                                               float (&sum)[HEAD_DIM / 16][HEAD_TILES][4]) const {
        int token = work * 16 + lane() % 4 * 2;
        const u8* rows = tile_bytes(tile) + token * ROW_BYTES + lane() / 4 * LANE_WORDS * 4;
        const u8* above = tile_bytes(tile) + STEP * ROW_BYTES + token * VALUE_BITS_BYTES +
                          lane() / 4 * sizeof(LaneBits);
        LaneWords words[4];  // of the tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9
        u32 one[4];          // their upper bits
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = i / 2 * 8 + i % 2;
            words[i] = load_words(rows + row * ROW_BYTES);
            one[i] = *reinterpret_cast<const LaneBits*>(above + row * VALUE_BITS_BYTES);
        }
        u32 bits[2] = {__byte_perm(one[0], one[1], 0x5410), __byte_perm(one[2], one[3], 0x5410)};
        u32 b[HEAD_TILES][2];
        transpose_weights<T>(weight, b);
#pragma unroll
        for (int half = 0; half < LANE_WORDS * 2; half++) {
            u32 above_x = bits[0] >> 4 * half, above_y = bits[1] >> 4 * half;
            u32 which = half % 2 ? 0x7632 : 0x5410;
            u32 x = __byte_perm(words[0].at[half / 2], words[1].at[half / 2], which);
            u32 y = __byte_perm(words[2].at[half / 2], words[3].at[half / 2], which);
            u32 a[2][4] = {{value_pair<0, 0>(x, above_x), value_pair<1, 1>(x, above_x),
                            value_pair<0, 0>(y, above_y), value_pair<1, 1>(y, above_y)},
                           {value_pair<2, 2>(x, above_x), value_pair<3, 3>(x, above_x),
                            value_pair<2, 2>(y, above_y), value_pair<3, 3>(y, above_y)}};
#pragma unroll
            for (int i = 0; i < 2 * HEAD_TILES; i++)
                mma<T>(sum[2 * half + i / HEAD_TILES][i % HEAD_TILES], a[i / HEAD_TILES],
                       b[i % HEAD_TILES][0], b[i % HEAD_TILES][1]);
        }
    }
};
