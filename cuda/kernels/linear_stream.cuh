// How linear's weights come: what a block has to do, and the ring that one warp keeps full.
#pragma once
#include "mbarrier.cuh"
#include "packed.cuh"

#define STORE 0
#define RESIDUAL 1
#define GATED 2
#define ROTATE 3
#define SEND 4

constexpr int TILE = 16;             // rows of weight
constexpr int CHUNK_BYTES = 1024;    // of a row's numbers, at most, in a slot
constexpr int BITS = FORM == PLAIN ? 8 * sizeof(T) : FORM == INT4 ? 4 : 8;
constexpr int CHUNK = CHUNK_BYTES * 8 / BITS;
constexpr int PIECE = 16 * 8 / BITS;  // weights a thread takes of a row at a time
constexpr int STEP = 4 * PIECE;       // columns a warp takes at a time
constexpr int STEP_BYTES = 64;        // of a row
constexpr bool GROUPED = GROUP > 0;   // INT4, and INT8 where not whole rows have a factor
// Columns of which splits are multiples.
constexpr int PART = GROUPED ? CHUNK : 512;
// A factor and a zero for each GROUP columns, after a row's numbers.
constexpr int TABLE_BYTES = GROUPED ? CHUNK / (GROUPED ? GROUP : 1) * 4 : 0;
// Half of 128 bytes more than some whole ones: rows g and g + 1 lie in different banks.
constexpr int ROW_STRIDE = (CHUNK_BYTES + TABLE_BYTES) / 128 * 128 + 64;
static_assert(CHUNK_BYTES + TABLE_BYTES <= ROW_STRIDE);
constexpr int SLOT_BYTES = TILE * ROW_STRIDE;
constexpr int SUMS_STRIDE = TILE + 4;  // floats; 4: vectors 2t and 2t + 2 lie in different banks
constexpr int CONSUMERS = 8, EPILOGUES = 2, MAX_SLOTS = 16;
constexpr int CONSUMER_THREADS = CONSUMERS * WARP;
constexpr int STEPS = CHUNK / STEP / CONSUMERS;  // of a warp in a whole slot
constexpr int THREADS = (CONSUMERS + 1 + EPILOGUES) * WARP;
constexpr bool IS_HALF = Same<T, half>::value;

using Code = Choose<FORM == PLAIN, T, u8>::type;

struct Arguments {
    const Code* weight;
    const T* bias;
    const void* x;
    const T* norm_weight;
    void* y;
    float eps, offset;
    int n, rows, k, span, splits, slots;
    float* partial;  // [splits, n, rows] and a zeroed counter a tile, with splits > 1
    u32* counters;
    const float* cos_sin;  // ROTATE: [positions, head_dim], cosines first
    const int* positions;  // [n]
    const int* slots_of;   // [n]; below 0: the token is not stored
    T* cache;              // [blocks, 2 * kv_heads, block_size, head_dim]
    int heads, kv_heads, head_dim, block_bits;
    int world;  // SEND: how many addresses y has
    const float* row_scale;  // all but PLAIN: [rows]
    const float* x_scale;    // all but PLAIN: [n] or null
};

struct Shared {
    u64 full[MAX_SLOTS], empty[MAX_SLOTS], sums_full[EPILOGUES], sums_empty[EPILOGUES];
    float squares[CONSUMERS][VECTORS];
    float sums[EPILOGUES][CONSUMERS][VECTORS][SUMS_STRIDE];
#if EPILOGUE == ROTATE
    float angles[VECTORS][256];  // rows of cos_sin; head_dim is at most 256
#endif
};

// How many columns a row of so many has in memory: those in groups are filled up to whole steps, by
// numbers and factors that mean 0.
__device__ __forceinline__ int filled(int columns) {
    return GROUPED ? (columns + STEP - 1) / STEP * STEP : columns;
}

// This block's share: the split it works on, and its tiles first, first + step, …
struct Share {
    int split, first, step, tiles, begin, end;  // columns begin … end

    __device__ Share(const Arguments& a) {
        int columns = filled(a.k);
        int part = ((columns + a.splits - 1) / a.splits + PART - 1) / PART * PART;
        split = blockIdx.x % a.splits;
        first = blockIdx.x / a.splits;
        step = gridDim.x / a.splits;
        tiles = (a.rows + TILE - 1) / TILE;
        begin = min(split * part, columns);
        end = min(begin + part, columns);
    }
};

// Row r of a tile: of pairs (row, row + span / 2), those of its first half and then their partners.
__device__ __forceinline__ int row_of(const Arguments& a, int tile, int r) {
    constexpr int PAIRS = TILE / 2;
    int half_span = a.span / 2, pair = tile * PAIRS + r % PAIRS;
    return pair / half_span * a.span + pair % half_span + r / PAIRS * half_span;
}

// Bytes from one vector in shared memory to the next: rows g and g + 1 in different banks, where the
// four threads of a row read 16 bytes side by side, or (8 bits without groups) 16 of every 32.
__device__ __forceinline__ int x_stride(const Share& share) {
    int part = (share.end - share.begin) * (int)sizeof(T);
    return (part + 127) / 128 * 128 + (BITS == 8 && !GROUPED ? 16 : 64);
}

// How many Codes so many columns of a row are; in groups whole chunks, or the last.
__device__ __forceinline__ int num_codes(int columns) {
#if GROUP > 0
    return columns * BITS / 8 + (columns / GROUP + 3) / 4 * 16;
#else
    return columns;
#endif
}

__device__ void produce(const Arguments& a, const Share& share, Shared& shared, u8* ring) {
    int slot = 0;
    u32 parity = 1;  // a fresh barrier passes a wait for the phase before its first
    for (int tile = share.first; tile < share.tiles; tile += share.step) {
        int row = min(row_of(a, tile, threadIdx.x % TILE), a.rows - 1);  // this lane's of the tile
        const Code* from = a.weight + (i64)row * num_codes(filled(a.k));
        for (int column = share.begin; column < share.end; column += CHUNK) {
            int width = min(CHUNK, share.end - column);
            u32 bytes = num_codes(width) * (int)sizeof(Code);
            barrier_wait(&shared.empty[slot], parity);
            copy_rows<TILE>(ring + slot * SLOT_BYTES, ROW_STRIDE, from + num_codes(column), bytes,
                            &shared.full[slot]);
            if (++slot == a.slots) slot = 0, parity ^= 1;
        }
    }
}
