// How linear's weights come: what a block has to do, and the ring that one warp keeps full.
#pragma once
#include "mbarrier.cuh"

#define STORE 0
#define RESIDUAL 1
#define GATED 2
#define ROTATE 3
#define SEND 4

constexpr int TILE = 8;              // rows of weight
constexpr int CHUNK_BYTES = 2048;    // of a row, at most, in a slot
constexpr int ROW_STRIDE = CHUNK_BYTES + 64;  // 64: rows g and g + 1 lie in different banks
constexpr int SLOT_BYTES = TILE * ROW_STRIDE;
constexpr int CHUNK = CHUNK_BYTES / sizeof(T);
constexpr int PIECE = 16 / sizeof(T);  // elements a thread takes of a row at a time
constexpr int STEP = 4 * PIECE;        // columns a warp takes at a time
constexpr int CONSUMERS = 8, EPILOGUES = 2, MAX_SLOTS = 16;
constexpr int CONSUMER_THREADS = CONSUMERS * WARP;
constexpr int STEPS = CHUNK / STEP / CONSUMERS;  // of a warp in a whole slot
constexpr int THREADS = (CONSUMERS + 1 + EPILOGUES) * WARP;
constexpr bool IS_HALF = Same<T, half>::value;

struct Arguments {
    const T* weight;
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
};

struct Shared {
    u64 full[MAX_SLOTS], empty[MAX_SLOTS], sums_full[EPILOGUES], sums_empty[EPILOGUES];
    float squares[CONSUMERS][VECTORS];
    float sums[EPILOGUES][CONSUMERS][VECTORS][TILE];
#if EPILOGUE == ROTATE
    float angles[VECTORS][256];  // rows of cos_sin; head_dim is at most 256
#endif
};

// This block's share: the split it works on, and its tiles first, first + step, …
struct Share {
    int split, first, step, tiles, begin, end;  // columns begin … end

    __device__ Share(const Arguments& a) {
        int part = ((a.k + a.splits - 1) / a.splits + CHUNK - 1) / CHUNK * CHUNK;
        split = blockIdx.x % a.splits;
        first = blockIdx.x / a.splits;
        step = gridDim.x / a.splits;
        tiles = (a.rows + TILE - 1) / TILE;
        begin = min(split * part, a.k);
        end = min(begin + part, a.k);
    }
};

__device__ __forceinline__ int row_of(const Arguments& a, int tile, int r) {
    int tiles_a_span = a.span / TILE;
    int group = tile / tiles_a_span, within = tile % tiles_a_span;
    return group * a.span + within * 4 + (r & 3) + (r >> 2) * (a.span / 2);
}

// Bytes from one vector in shared memory to the next: rows g and g + 1 in different banks.
__device__ __forceinline__ int x_stride(const Share& share) {
    int part = (share.end - share.begin) * (int)sizeof(T);
    return (part + 127) / 128 * 128 + 64;
}

__device__ void produce(const Arguments& a, const Share& share, Shared& shared, u8* ring) {
    int slot = 0;
    u32 parity = 1;  // a fresh barrier passes a wait for the phase before its first
    for (int tile = share.first; tile < share.tiles; tile += share.step) {
        int row = min(row_of(a, tile, threadIdx.x % TILE), a.rows - 1);  // this lane's of the tile
        const T* from = a.weight + (i64)row * a.k;
        for (int column = share.begin; column < share.end; column += CHUNK) {
            u32 bytes = min(CHUNK, share.end - column) * (int)sizeof(T);
            barrier_wait(&shared.empty[slot], parity);
            copy_rows<TILE>(ring + slot * SLOT_BYTES, ROW_STRIDE, from + column, bytes,
                            &shared.full[slot]);
            if (++slot == a.slots) slot = 0, parity ^= 1;
        }
    }
}
