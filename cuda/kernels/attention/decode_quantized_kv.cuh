// The parts of decode_attention that differ for a quantized cache (quantized_kv.cuh).
#pragma once
#include "attention/quantized_kv.cuh"
#include "attention/decode_tiles.cuh"

// The two matmuls of 16 tokens with quantized values. A chunk has 16 dimensions: ldmatrix gives lane
// 4 g + t the dimensions 4 t … 4 t + 3 of token g; transposed, the dimensions 2 g, 2 g + 1 of the tokens 2 t
// and 2 t + 1. So a lane's query operands are the dimensions 4 t, 4 t + 2, 4 t + 1, 4 t + 3 of every 16, and
// its sums that the mma layout assigns to g and g + 8 are those of 2 g and 2 g + 1.
struct QuantizedTileMma {
    u32 query[HEAD_DIM / 16][HEAD_TILES][2];

    __device__ QuantizedTileMma(const T* q, int num_rows, int head_dim) {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16 * HEAD_TILES; i++) {
            int row = i % HEAD_TILES * 8 + lane() / 4, dim = i / HEAD_TILES * 16 + lane() % 4 * 4;
            Vec<u32, 2> four{};
            if (row < num_rows && dim < head_dim)
                four = *reinterpret_cast<const Vec<u32, 2>*>(q + row * head_dim + dim);
#pragma unroll
            for (int j = 0; j < 2; j++)
                if constexpr (UNSCALED) four.at[j] = multiply_pairs(four.at[j], 0x5d805d80, T());
            query[i / HEAD_TILES][i % HEAD_TILES][0] = __byte_perm(four.at[0], four.at[1], 0x5410);
            query[i / HEAD_TILES][i % HEAD_TILES][1] = __byte_perm(four.at[0], four.at[1], 0x7632);
        }
    }

    __device__ __forceinline__ void scores(int tile, int work, float (&score)[HEAD_TILES][4]) const {
        int keys = tile + work * TOKEN_TILE_CHUNKS;
        int first = chunk_at(lane() % 16, lane() / 16);
        float odd[HEAD_TILES][4] = {};  // two chains of mma halve the latency
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i += 2) {
            u32 bytes4[4];
            ldmatrix<false>(bytes4, shared_address(shared + columns_on(keys, first, i)));
#pragma unroll
            for (int chunk = 0; chunk < 2; chunk++) {
                u32 a[4];
                unpack_four_unscaled(bytes4[2 * chunk], a[0], a[2]);
                unpack_four_unscaled(bytes4[2 * chunk + 1], a[1], a[3]);
#pragma unroll
                for (int n = 0; n < HEAD_TILES; n++)
                    mma<T>(chunk ? odd[n] : score[n], a, query[i + chunk][n][0],
                                query[i + chunk][n][1]);
            }
        }
#pragma unroll
        for (int i = 0; i < HEAD_TILES * 4; i++) score[i / 4][i % 4] += odd[i / 4][i % 4];
    }

    __device__ __forceinline__ void add_values(int tile, int work, const float (&weight)[HEAD_TILES][4],
                                               float (&sum)[HEAD_DIM / 16][HEAD_TILES][4]) const {
        int values = tile + work * TOKEN_TILE_CHUNKS;
        int first = chunk_at(lane() % 16, lane() / 16);
        u32 b[HEAD_TILES][2];
        transpose_weights<T>(weight, b);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i += 2) {
            u32 bytes4[4];
            ldmatrix<true>(bytes4, shared_address(shared + columns_on(values, first, i)));
#pragma unroll
            for (int chunk = 0; chunk < 2; chunk++) {
                u32 a[4];
                unpack_four_unscaled(bytes4[2 * chunk], a[0], a[1]);
                unpack_four_unscaled(bytes4[2 * chunk + 1], a[2], a[3]);
#pragma unroll
                for (int n = 0; n < HEAD_TILES; n++)
                    mma<T>(sum[i + chunk][n], a, b[n][0], b[n][1]);
            }
        }
    }
};
