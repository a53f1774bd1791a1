// How linear's weights come: what a block has to do, and the ring that one warp keeps full.
#pragma once
#include "common/mbarrier.cuh"
#include "linear/records.cuh"

#define STORE 0
#define RESIDUAL 1
#define ACT_AND_MUL 2
#define ROPE_CACHE 3
#define SEND 4

constexpr int TILE = 16;           // rows of weight
constexpr int CHUNK_BYTES = 1024;  // of a row's numbers, at most, in a slot
constexpr int CHUNK = CHUNK_BYTES * 8 / BITS;
constexpr int PIECE = 16 * 8 / BITS;  // weights a thread takes of a row at a time
constexpr int PART = 512;             // columns of which splits are multiples
// What lies together of a tile in memory comes by one copy: rows, or of packed weights two blocks.
constexpr int RUNS = SCHEME == PLAIN ? TILE : TILE / BLOCK_ROWS;
// From one run to the next in a slot. Plain: half of 128 bytes more than some whole ones, so that rows g
// and g + 1 lie in different banks.
constexpr int RUN_BYTES = SCHEME == PLAIN ? CHUNK_BYTES + 64 : CHUNK_BYTES / STEP_BYTES * RECORD;
constexpr int SLOT_BYTES = RUNS * RUN_BYTES;
constexpr int SUMS_STRIDE = TILE + 4;  // floats; 4: other vectors lie in other banks
constexpr int CONSUMERS = 8, EPILOGUES = 2, MAX_SLOTS = 16;
constexpr int CONSUMER_THREADS = CONSUMERS * WARP;
constexpr int STEPS = CHUNK / STEP / CONSUMERS;  // of a warp in a whole slot
constexpr int THREADS = (CONSUMERS + 1 + EPILOGUES) * WARP;
constexpr bool IS_HALF = Same<T, half>::value;

using Code = Choose<SCHEME == PLAIN, T, u8>::type;

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
    const float* cos_sin;  // ROPE_CACHE: [positions, head_dim], cosines first
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
    float squares[CONSUMERS][MAX_N];
    float sums[EPILOGUES][CONSUMERS][MAX_N][SUMS_STRIDE];
#if EPILOGUE == ROPE_CACHE
    float angles[MAX_N][256];  // rows of cos_sin; head_dim is at most 256
#endif
};

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

__device__ void produce(const Arguments& a, const Share& share, Shared& shared, u8* ring) {
    constexpr int RUN_ROWS = TILE / RUNS;
    int slot = 0, runs = (a.rows + RUN_ROWS - 1) / RUN_ROWS;
    i64 run_codes = SCHEME == PLAIN ? a.k : (i64)filled(a.k) / STEP * RECORD;
    u32 parity = 1;  // a fresh barrier passes a wait for the phase before its first
    for (int tile = share.first; tile < share.tiles; tile += share.step) {
        int run = row_of(a, tile, threadIdx.x % RUNS * RUN_ROWS) / RUN_ROWS;  // this lane's
        const Code* from = a.weight + min(run, runs - 1) * run_codes;
        for (int column = share.begin; column < share.end; column += CHUNK) {
            int width = min(CHUNK, share.end - column);
            u32 at = SCHEME == PLAIN ? column : column / STEP * RECORD;
            u32 bytes = SCHEME == PLAIN ? width * (int)sizeof(Code) : width / STEP * RECORD;
            barrier_wait(&shared.empty[slot], parity);
            copy_rows<RUNS>(ring + slot * SLOT_BYTES, RUN_BYTES, from + at, bytes,
                            &shared.full[slot]);
            if (++slot == a.slots) slot = 0, parity ^= 1;
        }
    }
}
