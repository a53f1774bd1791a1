// The matrices of a grouped GEMM in shared memory, and as operands of mma; see grouped.cuh.
//
// SCHEME is PLAIN (elements of T), INT8, FP8, INT4 (linear/packed_layout.cuh) or MXFP4 (mxfp4.cuh). A slot of the
// ring has TILE_COLUMNS rows of the matrix by DEPTH elements, of INT4 by two times as many.
#pragma once
#define MXFP4 4
#include "common/async_copy.cuh"
#include "common/mma.cuh"
#include "common/pack.cuh"
#include "linear/packed_layout.cuh"
#if SCHEME == MXFP4
#include "moe/mxfp4.cuh"
#endif

constexpr int THREADS = 256, TILE_COLUMNS = 128;
constexpr int ROW_BYTES = 128, DEPTH = ROW_BYTES / sizeof(T), CHUNK = 16 / sizeof(T);
constexpr bool PACKED = SCHEME == INT8 || SCHEME == FP8 || SCHEME == INT4;
constexpr bool SPREAD = !PACKED || GROUPED;  // the two octets of a thread are 32 columns apart, not side by side
// Hopper's matmul, for 128 rows of 16 bits (grouped_wgmma.cuh). TRANSPOSED: a thread's sums are those of matrix rows, for
// two activation rows at a time.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && BLOCK_ROWS == 128
constexpr bool WGMMA = sizeof(T) == 2;
#define TRANSPOSED (SCHEME != PLAIN)
#else
constexpr bool WGMMA = false;
#define TRANSPOSED 0
#endif
constexpr int DEPTHS = SCHEME == INT4 ? 2 : 1;  // of activations for a slot
constexpr int SLOTS = DEPTHS == 1 ? STAGES : STAGES / 2 + 1;

union Chunk {
    uint4 bits;
    u32 at[4];
    float floats[4];
};

// The chunk of an activation row that belongs to octet `group` of thread t of an mma; and where it is in a tile.
// Threads that read together use different banks.
__device__ __forceinline__ int chunk_of_thread(int group, int t) { return SPREAD ? group * 4 + t : 2 * t + group; }
__device__ __forceinline__ u32 chunk_at(int row, int chunk) {
    return row * ROW_BYTES + ((chunk ^ (WGMMA ? row & 7 : (row & 1) * (SPREAD ? 4 : 1))) << 4);
}

// The part of NUM_ROWS rows of T that a thread copies to each tile: a chunk of every 32nd row.
template <int NUM_ROWS> struct RowCopies {
    static constexpr int ROWS = NUM_ROWS * 8 / THREADS;
    static constexpr u32 MISSING = ~0u;
    const uint4* from;
    u32 at[ROWS];  // in chunks; MISSING: the row does not exist
    int columns;

    // `row_of(i)` is the row in memory for row i of the tiles, below 0: it does not exist.
    template <typename RowOf>
    __device__ __forceinline__ RowCopies(const T* from, RowOf row_of, int columns)
        : from((const uint4*)from), columns(columns) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int row = row_of(threadIdx.x / 8 + i * THREADS / 8);
            at[i] = row < 0 ? MISSING : (u32)row * (columns / CHUNK) + threadIdx.x % 8;
        }
    }
    // Requests the elements depth * DEPTH … of the rows for a tile; past the end these are zeros.
    __device__ __forceinline__ void load(u8* tile, int depth) const {
        u32 to = shared_address(tile);
        int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
        bool inside = depth * DEPTH + chunk * CHUNK < columns;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            bool valid = inside && at[i] != MISSING;
            copy_chunk(to + chunk_at(row + i * THREADS / 8, chunk), from + (valid ? at[i] + depth * 8 : 0), valid);
        }
    }
};
using Activations = RowCopies<BLOCK_ROWS>;

#if SCHEME == PLAIN
struct Matrix {
    static constexpr int BYTES = TILE_COLUMNS * ROW_BYTES;
    RowCopies<TILE_COLUMNS> rows;

    template <typename RowOf>
    __device__ __forceinline__ Matrix(u64 values, u64, RowOf row_of, int columns)
        : rows((const T*)values, row_of, columns) {}
    __device__ __forceinline__ void load(u8* slot, int depth) { rows.load(slot, depth); }
    static __device__ __forceinline__ Chunk operand(const u8* slot, int, int column, int group) {
        Chunk result;
        result.bits = *(const uint4*)(slot + chunk_at(column, chunk_of_thread(group, threadIdx.x % 4)));
        return result;
    }
    static __device__ __forceinline__ float scale(u64, int) { return 1; }
};

#elif SCHEME == MXFP4
// Elements 2t and 2t + 1 of the eight in a word as a pair.
__device__ __forceinline__ u32 dequantize_pair(u32 word, int t, u32 scale) {
    u32 at = __byte_perm(word << 4, word, 0x4400 + 0x1111 * t), bits = (at & 0x80008000u) | ((at >> 6) & 0x01c001c0u);
    u32 pair;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(bits), "r"(scale), "r"(0x80008000u));
    return pair;
}
// Dequantizes eight elements to four pairs of neighbors; see mxfp4.cuh for the scale.
__device__ __forceinline__ void dequantize_neighbors(u32 word, u32 scale, u32 (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = dequantize_pair(word, i, scale);
}

// A thread copies a group of a row, of two in a slot. Its scale is stored, ready to use, with the next group.
struct Matrix {
    static constexpr int VALUE_BYTES = TILE_COLUMNS * 32, BYTES = VALUE_BYTES + TILE_COLUMNS * 8;
    const u8 *values, *scales;  // of the row
    u32 held = 0, *before = nullptr;  // the scale of the last group, and where it will be
    int groups;  // of the row, 0: it does not exist

    template <typename RowOf>
    __device__ __forceinline__ Matrix(u64 values, u64 scales, RowOf row_of, int columns) {
        int row = row_of(threadIdx.x / 2), all = columns / GROUP;
        groups = row < 0 ? 0 : all;
        this->values = (const u8*)values + (i64)max(row, 0) * all * 16;
        this->scales = (const u8*)scales + (i64)max(row, 0) * all;
    }
    __device__ __forceinline__ void load(u8* slot, int depth) {
        int row = threadIdx.x / 2, half = threadIdx.x % 2, group = depth * 2 + half;
        bool valid = group < groups;
        u32 to = shared_address(slot);
        copy_chunk(to + row * 32 + ((half ^ (row >> 2 & 1)) << 4), values + (valid ? group * 16 : 0), valid);
        if (before) *before = scale_pair(held);
        before = (u32*)(slot + VALUE_BYTES) + threadIdx.x;
        held = valid ? __ldg(scales + group) : 0;
    }
    static __device__ __forceinline__ Chunk operand(const u8* slot, int, int column, int group) {
        Chunk result;
        const u8* at = slot + column * 32 + ((group ^ (column >> 2 & 1)) << 4) + threadIdx.x % 4 * 4;
        dequantize_neighbors(*(const u32*)at, ((const u32*)(slot + VALUE_BYTES))[column * 2 + group], result.at);
        return result;
    }
    static __device__ __forceinline__ float scale(u64, int) { return WEIGHT_SCALE; }
};

#else
// Eight quantized values as four pairs of neighbors, without scales; FP8 in groups as shifted pairs.
__device__ __forceinline__ void unpack_octet(const u8* at, u32 (&pairs)[4]) {
#if SCHEME == INT4
    u32 word = *(const u32*)at;
    constexpr u32 BIAS = Same<T, bf16>::value ? 0x43004300 : 0x54005400;
#pragma unroll
    for (int i = 0; i < 2; i++) {  // values i * 2 and i * 2 + 1 are in the lower halves of two bytes
        u32 spread = __byte_perm(word, 0, i ? 0x4342 : 0x4140);
        if constexpr (Same<T, bf16>::value) {
            pairs[i] = and_or<0x000f000f, BIAS>(spread);
            pairs[i + 2] = and_or<0x000f000f, BIAS>(spread >> 4);
        } else {
            pairs[i] = and_or<0x00f000f0, BIAS>(spread << 4);
            pairs[i + 2] = and_or<0x00f000f0, BIAS>(spread);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = subtract_pairs(pairs[i], BIAS, T());
#else
    uint2 words = *(const uint2*)at;
    u32 halves[2][2];
#if SCHEME == INT8
    unpack_int8(words.x, halves[0], T());
    unpack_int8(words.y, halves[1], T());
#elif GROUP_SIZE > 0
    shift_fp8(words.x, halves[0], T());
    shift_fp8(words.y, halves[1], T());
#else
    unpack_fp8(words.x, halves[0], T());
    unpack_fp8(words.y, halves[1], T());
#endif
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = halves[i / 2][i % 2];
#endif
}

// Sixteen threads copy a packed tile of eight rows.
struct Matrix {
    static constexpr int BYTES = TILE_COLUMNS / TILE_ROWS * PACKED_TILE_BYTES, SHARERS = THREADS / 16;
    const u8* values;  // of the block of rows
    int tiles;         // of the block, 0: it does not exist

    template <typename RowOf>
    __device__ __forceinline__ Matrix(u64 values, u64, RowOf row_of, int columns) {
        int row = row_of(threadIdx.x / SHARERS * TILE_ROWS), all = padded_columns(columns) / STEP;
        tiles = row < 0 ? 0 : all;
        this->values = (const u8*)values + (i64)(max(row, 0) / TILE_ROWS) * all * PACKED_TILE_BYTES;
    }
    __device__ __forceinline__ void load(u8* slot, int depth) {
        int tile = depth / DEPTHS, own = threadIdx.x % SHARERS;
        bool valid = tile < tiles;
        const u8* from = values + (valid ? (i64)tile * PACKED_TILE_BYTES : 0);
        u32 to = shared_address(slot) + threadIdx.x / SHARERS * PACKED_TILE_BYTES;
#pragma unroll
        for (int i = 0; i * SHARERS * 16 < PACKED_TILE_BYTES; i++) {
            int at = (i * SHARERS + own) * 16;
            if (at < PACKED_TILE_BYTES) copy_chunk(to + at, from + (valid ? at : 0), valid);
        }
    }
    static __device__ __forceinline__ Chunk operand(const u8* slot, int depth, int column, int group) {
        const u8* tile = slot + column / TILE_ROWS * PACKED_TILE_BYTES;
        int row = column % TILE_ROWS, octet = depth % DEPTHS * 2 + group;
        Chunk result;
        unpack_octet(tile + row * STEP_BYTES + threadIdx.x % 4 * 16 + octet * BITS, result.at);
        if constexpr (GROUPED) {
            int entry = octet * 32 / (GROUPED ? GROUP_SIZE : 1) * TILE_ROWS + row;
            float2 pair = group_of(((const Entry*)(tile + TILE_ROWS * STEP_BYTES))[entry]);
#if SCHEME == FP8
            Fp8Scale<T> scale;
            scale.set(pair.x);
#pragma unroll
            for (int i = 0; i < 4; i++) result.at[i] = scale.apply(result.at[i]);
#else
            u32 by = pair_bits(pair.x, pair.x, T()), zero = pair_bits(-pair.y, -pair.y, T());
#pragma unroll
            for (int i = 0; i < 4; i++)  // whole zero points are subtracted exactly
                result.at[i] = multiply_pairs(subtract_pairs(result.at[i], zero, T()), by, T());
#endif
        }
        return result;
    }
    static __device__ __forceinline__ float scale(u64 scales, int row) { return __ldg((const float*)scales + row); }
};
#endif
