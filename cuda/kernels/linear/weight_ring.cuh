// The ring of weights of `linear`: a block's work, and the producer warp that keeps the ring full.
#pragma once
#include "common/mbarrier.cuh"
#include "linear/packed_layout.cuh"

// Values of the macro EPILOGUE.
#define STORE 0
#define RESIDUAL 1
#define ACT_AND_MUL 2
#define ROPE_CACHE 3
#define SEND 4

constexpr int M_TILE = 16;         // weight rows
constexpr int CHUNK_BYTES = 1024;  // most bytes of a row's values in a stage
constexpr int CHUNK = CHUNK_BYTES * 8 / BITS;
constexpr int FRAGMENT = 16 * 8 / BITS;  // weights of a row that a thread loads at a time
constexpr int SPLIT_COLUMNS = 512;       // splits of k are multiples of this
// Each copy brings a contiguous run of memory: a row, or a block of eight rows of a packed weight.
constexpr int RUNS = SCHEME == PLAIN ? M_TILE : M_TILE / TILE_ROWS;
// From one run to the next in a stage. Plain rows are padded by half of 128 bytes, so that rows g and
// g + 1 are in different banks.
constexpr int RUN_BYTES =
    SCHEME == PLAIN ? CHUNK_BYTES + 64 : CHUNK_BYTES / STEP_BYTES * PACKED_TILE_BYTES;
constexpr int STAGE_BYTES = RUNS * RUN_BYTES;
constexpr int SUMS_STRIDE = M_TILE + 4;  // floats; padded so that activation rows are in other banks
constexpr int CONSUMERS = 8, EPILOGUES = 2, MAX_STAGES = 16;
constexpr int CONSUMER_THREADS = CONSUMERS * WARP;
constexpr int STEPS = CHUNK / STEP / CONSUMERS;  // of a warp in a full stage
constexpr int THREADS = (CONSUMERS + 1 + EPILOGUES) * WARP;
constexpr bool IS_HALF = Same<T, half>::value;

// LOW_RANK: the most ranks of all activation rows together.
constexpr int NARROW_ELEMENTS = MAX_N > 8 ? 1536 : 768;

using WeightElement = Choose<SCHEME == PLAIN, T, u8>::type;

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
};

struct Shared {
    u64 full[MAX_STAGES], empty[MAX_STAGES], sums_full[EPILOGUES], sums_empty[EPILOGUES];
    float squares[CONSUMERS][MAX_N];
    float sums[EPILOGUES][CONSUMERS][MAX_N][SUMS_STRIDE];
#if LOW_RANK
    alignas(16) float narrow[NARROW_ELEMENTS];  // [n, max_rank]: A · x of the adapters
#endif
#if EPILOGUE == ROPE_CACHE
    float angles[MAX_N][256];  // rows of cos_sin; head_dim is at most 256
#endif
};

// This block's work: its split of k (columns begin … end), and its M tiles first, first + step, …
struct Work {
    int split, first, step, tiles, begin, end;

    __device__ Work(const Arguments& a) {
        int columns = padded_columns(a.k);
        int width = ((columns + a.num_splits - 1) / a.num_splits + SPLIT_COLUMNS - 1) /
                    SPLIT_COLUMNS * SPLIT_COLUMNS;
        split = blockIdx.x % a.num_splits;
        first = blockIdx.x / a.num_splits;
        step = gridDim.x / a.num_splits;
        tiles = (a.m + M_TILE - 1) / M_TILE;
        begin = min(split * width, columns);
        end = min(begin + width, columns);
    }
};

// Weight row r of an M tile. The tile has eight pairs (row, row + pair_span / 2): first the first rows
// of the pairs, then the second rows.
__device__ __forceinline__ int row_of(const Arguments& a, int tile, int r) {
    constexpr int PAIRS = M_TILE / 2;
    int half_span = a.pair_span / 2, pair = tile * PAIRS + r % PAIRS;
    return pair / half_span * a.pair_span + pair % half_span + r / PAIRS * half_span;
}

__device__ void produce(const Arguments& a, const Work& work, Shared& shared, u8* ring) {
    constexpr int RUN_ROWS = M_TILE / RUNS;
    int stage = 0, runs = (a.m + RUN_ROWS - 1) / RUN_ROWS;
    i64 run_elements = SCHEME == PLAIN ? a.k : (i64)padded_columns(a.k) / STEP * PACKED_TILE_BYTES;
    u32 parity = 1;  // a wait for the phase before a new barrier's first phase returns at once
    for (int tile = work.first; tile < work.tiles; tile += work.step) {
        int run = row_of(a, tile, threadIdx.x % RUNS * RUN_ROWS) / RUN_ROWS;  // this lane's
        const WeightElement* from = a.weight + min(run, runs - 1) * run_elements;
        for (int column = work.begin; column < work.end; column += CHUNK) {
            int width = min(CHUNK, work.end - column);
            u32 at = SCHEME == PLAIN ? column : column / STEP * PACKED_TILE_BYTES;
            u32 bytes = SCHEME == PLAIN ? width * (int)sizeof(WeightElement)
                                        : width / STEP * PACKED_TILE_BYTES;
            barrier_wait(&shared.empty[stage], parity);
            copy_rows<RUNS>(ring + stage * STAGE_BYTES, RUN_BYTES, from + at, bytes,
                            &shared.full[stage]);
            if (++stage == a.num_stages) stage = 0, parity ^= 1;
        }
    }
}
