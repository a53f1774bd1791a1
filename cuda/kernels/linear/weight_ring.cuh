// The ring of weights of `linear`: a block's work, and the producer warp that keeps the ring full.
#pragma once
#include "common/cluster.cuh"
#include "linear/packed_layout.cuh"

#if __CUDA_ARCH__ < 900
#undef CLUSTER
#define CLUSTER 1
#undef STREAM_X
#define STREAM_X 0
#endif

// Values of the macro EPILOGUE.
#define STORE 0
#define RESIDUAL 1
#define ACT_AND_MUL 2
#define ROPE_CACHE 3
#define SEND 4

constexpr int M_TILE = 16;         // weight rows
constexpr int CHUNK_BYTES = 1024;  // of a row's values, which the consumer warps divide among them
constexpr int CHUNK = CHUNK_BYTES * 8 / BITS;
// A block of a cluster has this part of the columns of each chunk, and this many M tiles at a time.
constexpr int OWN_BYTES = CHUNK_BYTES / CLUSTER;
constexpr int OWN = CHUNK / CLUSTER;
constexpr int FRAGMENT = 16 * 8 / BITS;  // weights of a row that a thread loads at a time
constexpr int SPLIT_COLUMNS = 512;       // splits of k are multiples of this
// A stage has OWN columns of CLUSTER M tiles. Plain weights come in boxes of eight rows by BOX_BYTES, packed
// weights in runs of neighboring packed tiles of eight rows.
constexpr int BOX_BYTES = 512;
constexpr int BOXES = OWN_BYTES / BOX_BYTES;  // of eight rows
constexpr int EIGHT_ROWS_BYTES = PACKED ? OWN_BYTES / STEP_BYTES * PACKED_TILE_BYTES : TILE_ROWS * OWN_BYTES;
constexpr int WEIGHT_BYTES = CLUSTER * M_TILE / TILE_ROWS * EIGHT_ROWS_BYTES;
// With STREAM_X a stage also has the columns of x: panels of 128 bytes of each row, with the 128-byte swizzle. A
// panel belongs to a warp.
constexpr int PANEL_BYTES = 128, PANELS = OWN_BYTES / PANEL_BYTES;
constexpr int STAGE_BYTES = WEIGHT_BYTES + STREAM_X * MAX_N * OWN_BYTES;
constexpr int SUMS_STRIDE = M_TILE + 4;  // floats; padded so that activation rows are in other banks
constexpr int CONSUMERS = 8, EPILOGUES = 2, MAX_STAGES = 16;
constexpr int CONSUMER_THREADS = CONSUMERS * WARP;
constexpr int SHARERS = CONSUMERS / CLUSTER;      // warps that divide the columns of an M tile
constexpr int STEPS = CHUNK / STEP / CONSUMERS;  // of a warp in a full stage
constexpr int THREADS = (CONSUMERS + 1 + EPILOGUES) * WARP;
constexpr bool IS_HALF = Same<T, half>::value;
// Whether this block leaves room for the next kernel's on its multiprocessor. The activations of several rows do not,
// unless they are streamed.
constexpr bool SHARES_MULTIPROCESSOR = MAX_N <= 8 && (CLUSTER == 1 || !PACKED);

// LOW_RANK: the most ranks of all activation rows together.
constexpr int NARROW_ELEMENTS = MAX_N > 8 ? 1536 : 768;

using WeightElement = Choose<PACKED, u8, T>::type;

struct Arguments {
    const WeightElement* weight;
    const T* bias;
    const void* x;
    const T* norm_weight;
    void* out;
    float eps, weight_offset;
    int n, m, k, pair_span, num_splits, num_stages;
    float* partial_sums;  // with num_splits > 1: [num_splits, n, m]
    u32* counters;        // and a counter for each M tile, 0 between launches
    const float* cos_sin;     // ROPE_CACHE: [max_positions, head_dim], cosines first
    const int* positions;     // [n]
    const int* slot_mapping;  // [n]; below 0: the row is not stored
    T* cache;                 // [num_blocks, 2 * num_kv_heads, block_size, head_dim]
    int num_heads, num_kv_heads, head_dim, log2_block_size;
    int world_size;          // SEND: number of addresses in `out`
    const float* row_scale;  // packed weights: [m]
    const float* x_scale;    // packed weights: [n] or null
    int bias_stride;         // ROW_BIAS: from one activation row's bias to the next
    int box_rows;            // plain weights: 8, or 4 if the pairs of eight rows are not neighbors
};

struct Maps {
    const TensorMap *weight = nullptr, *x = nullptr;
};

struct Shared {
    u64 full[MAX_STAGES], empty[MAX_STAGES], sums_full[EPILOGUES], sums_empty[EPILOGUES];
#if CLUSTER > 1
    u64 peer_empty[EPILOGUES];  // the other block's `sums` are empty
    u64 squares_full;
#endif
    float squares[CONSUMERS][MAX_N];
    float sums[EPILOGUES][CONSUMERS][MAX_N][SUMS_STRIDE];
#if LOW_RANK
    alignas(16) float narrow[NARROW_ELEMENTS];  // [n, max_rank]: A · x of the adapters
#endif
#if EPILOGUE == ROPE_CACHE
    float angles[MAX_N][256];  // rows of cos_sin; head_dim is at most 256
#endif
};

// This block's work: its split of k (columns begin … end), and its M tiles first, first + step, … The blocks of a
// cluster have the same split, and each has its part of the columns for the tiles of both: block `rank`
// finishes the tiles first + rank, ….
struct Work {
    int rank, split, first, step, tiles, begin, end, columns;  // `columns` are this block's

    __device__ Work(const Arguments& a) {
        int all = padded_columns(a.k), group = blockIdx.x / CLUSTER;
        int width = ((all + a.num_splits - 1) / a.num_splits + SPLIT_COLUMNS - 1) / SPLIT_COLUMNS * SPLIT_COLUMNS;
        rank = blockIdx.x % CLUSTER;
        split = group % a.num_splits;
        first = group / a.num_splits * CLUSTER;
        step = gridDim.x / CLUSTER / a.num_splits * CLUSTER;
        tiles = (a.m + M_TILE - 1) / M_TILE;
        begin = min(split * width, all);
        end = min(begin + width, all);
        columns = end - begin;
        if (CLUSTER > 1) columns = columns / CHUNK * OWN + max(min(OWN, columns % CHUNK - rank * OWN), 0);
    }

    // The number of columns that have a place in shared memory.
    __device__ __forceinline__ int places() const {
        return CLUSTER > 1 ? (end - begin + CHUNK - 1) / CHUNK * OWN : columns;
    }
    // The column of x of one of this block's columns.
    __device__ __forceinline__ int column_of(int own) const {
        return CLUSTER > 1 ? begin + own / OWN * CHUNK + rank * OWN + own % OWN : begin + own;
    }
};

// Weight row r of an M tile. The tile has eight pairs (row, row + pair_span / 2): first the first rows
// of the pairs, then the second rows.
__device__ __forceinline__ int row_of(const Arguments& a, int tile, int r) {
    constexpr int PAIRS = M_TILE / 2;
    int half_span = a.pair_span / 2, pair = tile * PAIRS + r % PAIRS;
    return pair / half_span * a.pair_span + pair % half_span + r / PAIRS * half_span;
}

// The weights of the M tiles from `tile` on: fills stages with some of their columns. Rows and columns past the
// end may be anything.
struct TileWeights {
    static constexpr int EIGHTS = CLUSTER * M_TILE / TILE_ROWS;
#if SCHEME == PLAIN && __CUDA_ARCH__ >= 900
    int rows[EIGHTS][2];  // the first and the fifth of each eight

    __device__ __forceinline__ TileWeights(const Arguments& a, int tile) {
#pragma unroll
        for (int e = 0; e < EIGHTS * 2; e++)
            rows[e / 2][e % 2] = row_of(a, tile + e / 4, e / 2 % 2 * TILE_ROWS + e % 2 * (TILE_ROWS / 2));
    }
    __device__ __forceinline__ void fill(const Arguments& a, const Maps& maps, int column, int width, u8* stage,
                                         u64* full) const {
        constexpr int EIGHT = TILE_ROWS * BOX_BYTES;
        if (!elected()) return;  // elect.sync: the compiler generates no loop over threads
        u64 policy = evict_first();
        int boxes = width * (int)sizeof(T) <= BOX_BYTES ? 1 : BOXES;
        barrier_expect(full, EIGHTS * boxes * EIGHT + STREAM_X * a.n * OWN_BYTES);
#pragma unroll
        for (int b = 0; b < BOXES; b++) {
            if (b >= boxes) break;
            int at = column + b * (BOX_BYTES / (int)sizeof(T));
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) {
                u8* to = stage + (e * BOXES + b) * EIGHT;
                copy_box(to, *maps.weight, at, rows[e][0], full, policy);
                if (a.box_rows < TILE_ROWS) copy_box(to + EIGHT / 2, *maps.weight, at, rows[e][1], full, policy);
            }
        }
    }
#elif SCHEME == PLAIN
    const T* row;  // this lane's

    __device__ __forceinline__ TileWeights(const Arguments& a, int tile) {
        row = a.weight + (i64)min(row_of(a, tile, threadIdx.x % M_TILE), a.m - 1) * a.k;
    }
    __device__ __forceinline__ void fill(const Arguments&, const Maps&, int column, int width, u8* stage,
                                         u64* full) const {
        int r = threadIdx.x % M_TILE, bytes = width * (int)sizeof(T);
        u8* to = stage + (r / TILE_ROWS * BOXES * TILE_ROWS + r % TILE_ROWS) * BOX_BYTES;
#pragma unroll 1
        for (int at = threadIdx.x % WARP / M_TILE * 16; at < bytes; at += WARP / M_TILE * 16)
            copy_16_async(to + at / BOX_BYTES * TILE_ROWS * BOX_BYTES + at % BOX_BYTES, (const u8*)(row + column) + at);
        arrive_after_copies(full);
    }
#else
    const u8* eight;  // this lane's

    __device__ __forceinline__ TileWeights(const Arguments& a, int tile) {
        int e = threadIdx.x % EIGHTS, last = (a.m - 1) / TILE_ROWS;
        int number = min(row_of(a, tile + e / 2, e % 2 * TILE_ROWS) / TILE_ROWS, last);
        eight = a.weight + (i64)number * padded_columns(a.k) / STEP * PACKED_TILE_BYTES;
    }
    __device__ __forceinline__ void fill(const Arguments&, const Maps&, int column, int width, u8* stage,
                                         u64* full) const {
        copy_rows<EIGHTS>(stage, EIGHT_ROWS_BYTES, eight + column / STEP * PACKED_TILE_BYTES,
                          width / STEP * PACKED_TILE_BYTES, full);
    }
#endif
};

#if STREAM_X
// Copies a stage's columns of x, from `column` on.
__device__ __forceinline__ void fill_x(const TensorMap& map, int column, u8* stage, u64* full) {
    if (!elected()) return;
#pragma unroll
    for (int p = 0; p < PANELS; p++)
        copy_box(stage + WEIGHT_BYTES + p * MAX_N * PANEL_BYTES, map, column + p * (PANEL_BYTES / (int)sizeof(T)), 0, full);
}
#endif

__device__ void produce(const Arguments& a, const Maps& maps, const Work& work,
                        Shared& shared, u8* ring) {
    int stage = 0;
    u32 parity = 1;  // a wait for the phase before a new barrier's first phase returns at once
#if STREAM_X
    // The first stages get their weights before the upstream kernel ends.
    int early = 0, chunks = (work.columns + OWN - 1) / OWN;
    auto fill_early = [&] {
        wait_for_upstream();
        for (int i = 0; i < early; i++)
            fill_x(*maps.x, work.column_of(i % chunks * OWN), ring + i * STAGE_BYTES, &shared.full[i]);
        early = -1;
    };
#endif
    for (int tile = work.first; tile < work.tiles; tile += work.step) {
        TileWeights weights(a, tile);
        for (int own = 0, column = work.column_of(0); own < work.columns; own += OWN, column += CHUNK) {
            barrier_wait(&shared.empty[stage], parity);
            weights.fill(a, maps, column, min(OWN, work.columns - own), ring + stage * STAGE_BYTES, &shared.full[stage]);
#if STREAM_X
            if (early < 0) fill_x(*maps.x, column, ring + stage * STAGE_BYTES, &shared.full[stage]);
            else if (++early == a.num_stages) fill_early();
#endif
            if (++stage == a.num_stages) stage = 0, parity ^= 1;
        }
    }
#if STREAM_X
    if (early >= 0) fill_early();
#endif
}
