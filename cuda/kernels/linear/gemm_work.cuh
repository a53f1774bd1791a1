// Work, shared memory and copies of packed_gemm.
#pragma once
#include "common/mbarrier.cuh"
#include "linear/gemm_operands.cuh"

// Blocks of a cluster compute neighboring tiles of weight rows with the same activations.
#if PATH == WGMMA_PATH
constexpr int CLUSTER = 2;
#else
constexpr int CLUSTER = 1;
#endif
constexpr int BLOCK_M = CONSUMER_WARPS * 16, UNIT_COLUMNS = 128, CONSUMERS = CONSUMER_WARPS * WARP;
constexpr int PRODUCERS = 4 * WARP;  // a warpgroup, for setmaxnreg
#if __CUDA_ARCH__ >= 900
constexpr int COPYING = WARP, FULL_ARRIVALS = 1;  // producers that copy
#else
constexpr int COPYING = PRODUCERS, FULL_ARRIVALS = PRODUCERS;
#endif
constexpr int THREADS = CONSUMERS + PRODUCERS;
constexpr int MAX_STAGES = 16;
constexpr int ROW_BLOCKS = BLOCK_M / TILE_ROWS;
constexpr int UNIT_TILES = UNIT_COLUMNS / STEP;  // packed tiles of a row block in a work unit
constexpr int UNIT_BYTES = UNIT_TILES * PACKED_TILE_BYTES;
constexpr int W_STAGE_BYTES = ROW_BLOCKS * UNIT_BYTES;
// Boxes of 64 columns of activations in a stage.
constexpr int X_BOXES = BLOCK_N <= 64 ? 2 : 1, X_BOX_BYTES = BLOCK_N * 128, X_STAGE_BYTES = X_BOXES * X_BOX_BYTES;

struct Arguments {
    const TensorMap &x_map, &weight_map;
    const T* x;
    const u8* tiles;
    const float* row_scale;
    const T* bias;
    const float* x_scale;
    T* out;
    int n, m, k, w_stages, x_stages;
    float* partial_sums;
    int* counters;
};

struct Rings {
    u8 *x, *weights;
    u64 *w_full, *w_empty, *x_full, *x_empty;
};

// The parts of output tiles that a cluster computes: units first … last - 1 of the columns of a tile.
struct Segment {
    int units, tiles_n, cluster, clusters, rank;  // a tile's units; this block's place
    int at, end;                                  // this cluster's units in all tiles
    int first, last, m, n;                        // of the present tile, with its first rows
    i64 total;

    __device__ __forceinline__ explicit Segment(const Arguments& a) {
        units = (a.k + UNIT_COLUMNS - 1) / UNIT_COLUMNS;
        tiles_n = (a.n + BLOCK_N - 1) / BLOCK_N;
        total = (i64)((a.m + CLUSTER * BLOCK_M - 1) / (CLUSTER * BLOCK_M)) * tiles_n * units;
        clusters = gridDim.x / CLUSTER;
        cluster = blockIdx.x / CLUSTER;
        rank = blockIdx.x % CLUSTER;
        at = begin(cluster);
        end = begin(cluster + 1);
        find();
    }
    __device__ __forceinline__ int begin(int i) const { return (int)(total * i / clusters); }
    __device__ __forceinline__ bool valid() const { return at < end; }
    __device__ __forceinline__ bool is_whole() const { return first == 0 && last == units; }
    __device__ __forceinline__ void next() {
        at += last - first;
        find();
    }
    __device__ __forceinline__ void find() {
        int tile = at / units;
        first = at - tile * units;
        last = min(units, first + end - at);
        m = (tile / tiles_n * CLUSTER + rank) * BLOCK_M;
        n = tile % tiles_n * BLOCK_N;
    }
};

// Loads a stage of weights, [16 row blocks][UNIT_BYTES]. Those outside the matrix become 0.
__device__ __forceinline__ void load_weights(const Arguments& a, const Segment& s, int unit, u8* to, u64* full) {
#if __CUDA_ARCH__ >= 900
    if (!elected()) return;
    barrier_expect(full, W_STAGE_BYTES);
    copy_box(to, a.weight_map, unit * (UNIT_BYTES / 8), s.m / TILE_ROWS, full);
#else
    int steps = padded_columns(a.k) / STEP, step = unit * UNIT_TILES;
    int blocks = (a.m - s.m + TILE_ROWS - 1) / TILE_ROWS, bytes = (steps - step) * PACKED_TILE_BYTES;
    i64 stride = (i64)steps * PACKED_TILE_BYTES;
    const u8* from = a.tiles + s.m / TILE_ROWS * stride + step * PACKED_TILE_BYTES;
    for (int i = threadIdx.x - CONSUMERS; i < W_STAGE_BYTES / 16; i += PRODUCERS) {
        int block = i * 16 / UNIT_BYTES, at = i * 16 % UNIT_BYTES;
        bool valid = block < blocks && at < bytes;
        copy_16_async(to + i * 16, valid ? from + block * stride + at : a.tiles, valid);
    }
    arrive_after_copies(full);
#endif
}

// Loads X_BOXES times 64 columns of the activation rows of a tile: rows of 128 bytes, whose 16-byte chunks are permuted
// by exclusive or with the row. Elements outside x become 0. Each block of a cluster loads a part for all of them.
__device__ __forceinline__ void load_activations(const Arguments& a, const Segment& s, int column, u8* to,
                                                 u64* full) {
#if __CUDA_ARCH__ >= 900
    if (!elected()) return;
    barrier_expect(full, X_STAGE_BYTES);
#pragma unroll
    for (int box = 0; box < X_BOXES; box++, to += X_BOX_BYTES, column += 64) {
        if (CLUSTER == 1) {
            copy_box(to, a.x_map, column, s.n, full);
            continue;
        }
        constexpr int ROWS = BLOCK_N / CLUSTER;
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to + s.rank * ROWS * 128)),
            "l"(&a.x_map), "r"(column), "r"(s.n + s.rank * ROWS), "r"(shared_address(full)),
            "h"((unsigned short)((1 << CLUSTER) - 1))
            : "memory");
    }
#else
    for (int i = threadIdx.x - CONSUMERS; i < X_BOXES * BLOCK_N * 8; i += PRODUCERS) {
        int row = i / 8, chunk = i % 8, n = s.n + row % BLOCK_N, from = column + row / BLOCK_N * 64 + chunk * 8;
        bool valid = n < a.n && from < a.k;
        copy_16_async(to + row * 128 + ((chunk ^ row % 8) << 4), a.x + (valid ? (i64)n * a.k + from : 0), valid);
    }
    arrive_after_copies(full);
#endif
}

// Where the consumers are in the rings.
struct RingState {
    int w = 0, x = 0;
    u32 w_parity = 0, x_parity = 0;

    __device__ __forceinline__ void next_weights(const Arguments& a) {
        if (++w == a.w_stages) w = 0, w_parity ^= 1;
    }
    __device__ __forceinline__ void next_activations(const Arguments& a) {
        if (++x == a.x_stages) x = 0, x_parity ^= 1;
    }
};

// A consumer warp has read a stage of weights; a stage of activations.
__device__ __forceinline__ void release_weights(u64* empty) {
    __syncwarp();
    if (threadIdx.x % WARP == 0) barrier_arrive(empty);
}
__device__ __forceinline__ void release_activations(u64* empty) {
#if PATH == WGMMA_PATH
    __syncwarp();
    int rank = threadIdx.x % WARP;
    if (rank < CLUSTER)  // the other block's producer writes to this block, too
        asm volatile(
            "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
            "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(empty)),
            "r"(rank)
            : "memory");
#else
    release_weights(empty);
#endif
}

// Waits for all threads of the cluster.
__device__ __forceinline__ void cluster_barrier() {
#if PATH == WGMMA_PATH
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
