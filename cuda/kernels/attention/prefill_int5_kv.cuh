// Tiles of keys and values of prefill_attention's MMA_PATH from the int5 cache (int5_kv.cuh). Two stages of
// packed rows are loaded; a stage is converted to one tile of T before use. The scales of keys multiply
// scores, and those of values attention weights: the columns of the accumulators.
#pragma once
#include "attention/int5_kv.cuh"

constexpr int ROW_CHUNKS = DIM / 32;         // of 16 bytes in a row
constexpr int STAGE_BYTES = 2 * KEYS * DIM;  // keys, values, then the upper bits of both
constexpr int VALUES_AT = KEYS * DIM / 2, KEY_BITS_AT = KEYS * DIM, VALUE_BITS_AT = KEY_BITS_AT + KEYS * DIM / 4;

struct QuantizedTiles {
    u32 tile, stages;        // shared addresses of the tile of T and of both stages
    float (*scales)[2][KEYS];  // of a stage's keys and values; 0 if invisible

    // Starts to load the keys and values of `key_rows`, cache rows counted from the head's first.
    __device__ __forceinline__ void load(const Arguments& a, const QueryTile& w, const int* key_rows,
                                         int stage) const {
        u32 to = stages + stage * STAGE_BYTES;
#pragma unroll 1
        for (int e = threadIdx.x; e < KEYS * ROW_CHUNKS; e += THREADS) {
            int row = e / ROW_CHUNKS, chunk = e % ROW_CHUNKS;
            bool valid = key_rows[row] >= 0;
            const u8* from = w.keys + (valid ? (i64)key_rows[row] * (DIM / 2) + chunk * 16 : 0);
            copy_chunk(to + e * 16, from, valid);
            copy_chunk(to + VALUES_AT + e * 16, from + (valid ? w.values : 0), valid);
        }
        load_bits<DIM / 4>(to + KEY_BITS_AT, w.key_bits, key_rows, a.log2_block_size);
        load_bits<DIM / 8>(to + VALUE_BITS_AT, w.value_bits, key_rows, a.log2_block_size);
#pragma unroll 1
        for (int e = threadIdx.x; e < 2 * KEYS; e += THREADS) {
            int key_row = key_rows[e % KEYS];
            const float* from = w.scales + (key_row >= 0 ? key_row + e / KEYS * w.value_rows : 0);
            copy_word(shared_address(&scales[stage][e / KEYS][e % KEYS]), from, key_row >= 0);
        }
    }

    // Starts to load rows of upper bits, of which a block has half as many.
    template <int BYTES>
    __device__ __forceinline__ static void load_bits(u32 to, const u8* rows, const int* key_rows,
                                                     int log2_block_size) {
#pragma unroll 1
        for (int e = threadIdx.x; e < KEYS * BYTES / 4; e += THREADS) {
            int row = key_rows[e / (BYTES / 4)], within = row & ((1 << log2_block_size) - 1);
            const u8* from = rows + (row >= 0 ? (i64)((row + within) / 2) * BYTES + e % (BYTES / 4) * 4 : 0);
            copy_word(to + e * 4, from, row >= 0);
        }
    }

    // Converts a loaded stage to the tile of T: of each row 16 keys and 16 values at a time.
    __device__ __forceinline__ void convert(int stage) const {
        u32 from = stages + stage * STAGE_BYTES;
#pragma unroll 1
        for (int e = threadIdx.x; e < KEYS * (DIM / 16); e += THREADS) {
            int row = e / (DIM / 16), word = e % (DIM / 16);
            u32 at = from + row * (DIM / 2) + word * 4;
            u32 bits = load_word(from + KEY_BITS_AT + row * (DIM / 4) + word * 4);
            u32 low = load_word(at), high = load_word(at + DIM / 4);
            put(tile, row, word * 4, key<0, 0>(low, bits), key<2, 4>(low, bits));
            put(tile, row, word * 4 + DIM / 2, key<1, 2>(low, bits), key<3, 6>(low, bits));
            put(tile, row, word * 4 + DIM / 4, key<0, 1>(high, bits), key<2, 5>(high, bits));
            put(tile, row, word * 4 + DIM / 4 * 3, key<1, 3>(high, bits), key<3, 7>(high, bits));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int group = word + i * (DIM / 16);
                u32 words = load_word(at + VALUES_AT + i * (DIM / 4));
                put_values(tile + TILE_BYTES + chunk_offset<KEYS>(row, group), words,
                           load_byte(from + VALUE_BITS_AT + row * (DIM / 8) + group));
            }
        }
    }

    // Stores a row's eight values of `words` and `byte`, one chunk.
    __device__ __forceinline__ static void put_values(u32 to, u32 words, u32 byte) {
        u32 e03 = value<0>(words), e14 = value<1>(words), e25 = value<2>(words);
        u32 e67 = (byte & 31) | (byte << 11 & 0x00070000u) | (words << 4 & 0x00080000u) | (words >> 11 & 0x00100000u);
        e67 = subtract_pairs(e67 | BASE, VALUE_BASE, T());
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(__byte_perm(e03, e14, 0x5410)),
                     "r"(__byte_perm(e25, e03, 0x7610)), "r"(__byte_perm(e14, e25, 0x7632)), "r"(e67)
                     : "memory");
    }
    template <int I> __device__ __forceinline__ static u32 value(u32 words) {
        return subtract_pairs(value_pair<I>(words), VALUE_BASE, T());
    }
    template <int I, int FIELD> __device__ __forceinline__ static u32 key(u32 x, u32 bits) {
        return subtract_pairs(key_pair<I, FIELD>(x, bits), KEY_BASE, T());
    }
    // Stores four elements of a row from `dim` on: first and third, second and fourth.
    __device__ __forceinline__ static void put(u32 to, int row, int dim, u32 even, u32 odd) {
        u32 at = to + chunk_offset<KEYS>(row, dim / 8) + dim % 8 * 2;
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(__byte_perm(even, odd, 0x5410)),
                     "r"(__byte_perm(even, odd, 0x7632))
                     : "memory");
    }
    __device__ __forceinline__ static u32 load_word(u32 from) {
        u32 word;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
        return word;
    }
    __device__ __forceinline__ static u32 load_byte(u32 from) {
        u32 byte;
        asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(from) : "memory");
        return byte;
    }
    // Copies 4 bytes asynchronously; writes zero if not `valid`.
    __device__ __forceinline__ static void copy_word(u32 to, const void* from, bool valid) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                     "r"(valid ? 4 : 0)
                     : "memory");
    }
};
