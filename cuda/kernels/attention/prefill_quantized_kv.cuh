// Tiles of keys and values of prefill_attention's MMA_PATH from a quantized cache (quantized_kv.cuh). Two
// stages of quantized values are loaded; a stage is converted to one tile of T before use. The scales of
// keys multiply scores, and those of values attention weights: the columns of the accumulators.
#pragma once
#include "attention/quantized_kv.cuh"

constexpr int VALUE_CHUNKS = DIM / 16;               // of 16 values in a row
constexpr int STAGE_BYTES = 2 * KEYS * DIM;         // keys, then values

struct QuantizedTiles {
    u32 tile, stages;        // shared addresses of the tile of T and of both stages
    float (*scales)[2][KEYS];  // of a stage's keys and values; 0 if invisible

    // Starts to load the keys and values of `key_rows`, cache rows counted from the head's first.
    __device__ __forceinline__ void load(const Arguments& a, const QueryTile& w, const int* key_rows,
                                         int stage) const {
        u32 to = stages + stage * STAGE_BYTES;
#pragma unroll 1
        for (int e = threadIdx.x; e < KEYS * VALUE_CHUNKS; e += THREADS) {
            int row = e / VALUE_CHUNKS, chunk = e % VALUE_CHUNKS;
            bool valid = key_rows[row] >= 0 && chunk * 16 < a.head_dim;
            const Stored* from = w.keys + (valid ? (i64)key_rows[row] * a.head_dim + chunk * 16 : 0);
            copy_chunk(to + e * 16, from, valid);
            copy_chunk(to + STAGE_BYTES / 2 + e * 16, from + (valid ? w.values : 0), valid);
        }
#pragma unroll 1
        for (int e = threadIdx.x; e < 2 * KEYS; e += THREADS) {
            int key_row = key_rows[e % KEYS];
            const float* from = w.scales + (key_row >= 0 ? key_row + e / KEYS * w.value_rows : 0);
            copy_word(shared_address(&scales[stage][e / KEYS][e % KEYS]), from, key_row >= 0);
        }
    }

    // Converts a loaded stage to the tile of T.
    __device__ __forceinline__ void convert(int stage) const {
        u32 from = stages + stage * STAGE_BYTES;
#pragma unroll 1
        for (int e = threadIdx.x; e < 2 * KEYS * VALUE_CHUNKS; e += THREADS) {
            int row = e / VALUE_CHUNKS, chunk = e % VALUE_CHUNKS * 2;
            u32 bytes4[4], low[4], high[4];
            load_words(bytes4, from + e * 16);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 even, odd, *to = i < 2 ? low + i * 2 : high + i * 2 - 4;
                unpack_four(bytes4[i], even, odd);
                to[0] = __byte_perm(even, odd, 0x5410);
                to[1] = __byte_perm(even, odd, 0x7632);
            }
            u32 at = tile + row / KEYS * TILE_BYTES;
            store_words(at + chunk_offset<KEYS>(row % KEYS, chunk), low);
            store_words(at + chunk_offset<KEYS>(row % KEYS, chunk + 1), high);
        }
    }

    __device__ __forceinline__ static void load_words(u32 (&v)[4], u32 from) {
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(from)
                     : "memory");
    }
    __device__ __forceinline__ static void store_words(u32 to, const u32 (&v)[4]) {
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
                     "r"(v[2]), "r"(v[3])
                     : "memory");
    }
    // Copies 4 bytes asynchronously; writes zero if not `valid`.
    __device__ __forceinline__ static void copy_word(u32 to, const float* from, bool valid) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                     "r"(valid ? 4 : 0)
                     : "memory");
    }
};
