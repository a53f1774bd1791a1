// The matrices of a grouped GEMM in shared memory, and as operands of mma; see grouped.cuh.
//
// SCHEME is PLAIN (elements of T) or one of schemes/. A slot of the ring has TILE_COLUMNS rows of the
// matrix by DEPTH elements, of 4 bits by two times as many.
#pragma once
#include "common/async_copy.cuh"
#include "common/mma.cuh"
#include "common/pack.cuh"
#include "linear/packed_layout.cuh"

constexpr int THREADS = 256, TILE_COLUMNS = 128;
constexpr int ROW_BYTES = 128, DEPTH = ROW_BYTES / sizeof(T), CHUNK = 16 / sizeof(T);
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
constexpr int DEPTHS = BITS == 4 ? 2 : 1;  // of activations for a slot
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

#else
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
        Scheme::neighbors(tile + row * STEP_BYTES + threadIdx.x % 4 * 16 + octet * BITS, result.at, T());
        if constexpr (GROUPED) {
            int entry = entry_of(row, group_of_octet(octet, threadIdx.x % 4));
            Scheme::scaled(((const Entry*)(tile + TILE_ROWS * STEP_BYTES))[entry], result.at, T());
        }
        return result;
    }
    static __device__ __forceinline__ float scale(u64 scales, int row) {
        return ROW_SCALES ? __ldg((const float*)scales + row) : 1;
    }
};
#endif
