// Grouped GEMM: the rows of all experts of a layer, each with its expert's matrix, in tiles on tensor cores.
//
// A block computes BLOCK_ROWS rows of one expert, as `expert_order` has sorted them, by TILE_COLUMNS rows of its
// matrix. It finds its tile in the experts' starts, so the host need not know them: blocks past the last tile end.
// Tiles of DEPTH elements of the sum arrive in shared memory by asynchronous copies, STAGES at a time.
//
// Within 32 elements of a row, thread (g, t) = (lane / 4, lane % 4) of an mma takes the elements 8t … 8t + 7: the
// order within the sum is free as long as both operands have the same. So one load of 16 bytes fills the registers
// of two mma, and quantized matrices are read in the order of their packed layout. With 8-bit values and scales of
// rows the thread takes the elements 16t … 16t + 15 of 64.
//
// Every element is summed by one thread in the order of the columns, whatever BLOCK_ROWS is. On sm_90a 128 rows of
// 16-bit matrices are multiplied by wgmma instead.
//
// Defines: DTYPE; SCHEME, GROUP_SIZE; BLOCK_ROWS: 128 or 32; STAGES: at least 3.
#pragma once
#include "common/wgmma.cuh"
#include "moe/grouped_matrix.cuh"

constexpr int WARPS = THREADS / WARP, ROW_WARPS = WGMMA ? WARPS : BLOCK_ROWS == 128 ? 2 : 1;
constexpr int COLUMN_WARPS = WARPS / ROW_WARPS;
constexpr int OWN_ROWS = BLOCK_ROWS / ROW_WARPS, OWN_COLUMNS = TILE_COLUMNS / COLUMN_WARPS;  // of a warp
constexpr int MMA_ROWS = OWN_ROWS / 16, MMA_COLUMNS = OWN_COLUMNS / 8;
constexpr int ACTIVATION_BYTES = BLOCK_ROWS * ROW_BYTES;  // of a stage
// Blocks on a multiprocessor, at least; many of them hide how long it takes to dequantize.
constexpr int MIN_BLOCKS = BLOCK_ROWS == 32 ? (SCHEME == PLAIN ? 2 : 4) : sizeof(T) == 4 ? 1 : 2;

// The rows first … end - 1 of `order` that a block computes; none if first == end.
struct ExpertRows {
    int expert, first, end;

    // Each warp scans the experts by itself: a lane has `own` neighboring ones.
    __device__ __forceinline__ ExpertRows(const int* starts, int num_experts, int tile) {
        int lane = threadIdx.x % WARP, own = (num_experts + WARP - 1) / WARP;
        int from = min(lane * own, num_experts), to = min(from + own, num_experts), tiles = 0;
        for (int e = from; e < to; e++) tiles += (starts[e + 1] - starts[e] + BLOCK_ROWS - 1) / BLOCK_ROWS;
        int sum = tiles;
#pragma unroll
        for (int offset = 1; offset < WARP; offset *= 2) {
            int other = __shfl_up_sync(ALL, sum, offset);
            if (lane >= offset) sum += other;
        }
        u32 holds = __ballot_sync(ALL, tile >= sum - tiles && tile < sum);
        int found = 0, row = 0, limit = 0;
        if (holds >> lane & 1) {
            int left = tile - (sum - tiles);
            for (found = from; found < to; found++) {
                row = starts[found], limit = starts[found + 1];
                int count = (limit - row + BLOCK_ROWS - 1) / BLOCK_ROWS;
                if (left < count) break;
                left -= count;
            }
            row += left * BLOCK_ROWS;
        }
        int source = holds ? __ffs(holds) - 1 : 0;
        expert = __shfl_sync(ALL, found, source);
        first = __shfl_sync(ALL, row, source);
        end = holds ? min(__shfl_sync(ALL, limit, source), first + BLOCK_ROWS) : first;
    }
};

// The activation rows that a thread copies of every tile: a chunk of every 32nd row.
struct Activations {
    static constexpr int ROWS = BLOCK_ROWS * 8 / THREADS;
    static constexpr u32 MISSING = ~0u;
    const uint4* x;
    u32 at[ROWS];  // in chunks; MISSING: the row does not exist
    int columns;

    // `row_of(i)` is the row of x for row i of the block, below 0: it does not exist.
    template <typename RowOf>
    __device__ __forceinline__ Activations(const T* x, RowOf row_of, int columns)
        : x((const uint4*)x), columns(columns) {
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
            copy_chunk(to + chunk_at(row + i * THREADS / 8, chunk), x + (valid ? at[i] + depth * 8 : 0), valid);
        }
    }
};

// The sums of a warp's rows and columns, as accumulators of mma: see common/mma.cuh.
struct Sums {
    float at[MMA_ROWS][MMA_COLUMNS][4];
};

__device__ __forceinline__ Chunk chunk_of(const u8* tile, int row, int chunk) {
    Chunk result;
    result.bits = *(const uint4*)(tile + chunk_at(row, chunk));
    return result;
}

// Adds the products of a tile. Of the warp's rows only the first `num_rows` exist.
__device__ __forceinline__ void add_tile(Sums& sums, const u8* tile, const u8* slot, int depth, int first_row,
                                         int first_column, int num_rows) {
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int group = 0; group < 2; group++) {
        Chunk w[MMA_COLUMNS];
#pragma unroll
        for (int j = 0; j < MMA_COLUMNS; j++) w[j] = Matrix::operand(slot, depth, first_column + j * 8 + g, group);
        int chunk = chunk_of_thread(group, t);
#pragma unroll
        for (int i = 0; i < MMA_ROWS; i++) {
            if (i * 16 >= num_rows) break;
            Chunk low = chunk_of(tile, first_row + i * 16 + g, chunk);
            Chunk high = chunk_of(tile, first_row + i * 16 + 8 + g, chunk);
#pragma unroll
            for (int k = 0; k < 4; k += 2)
#pragma unroll
                for (int j = 0; j < MMA_COLUMNS; j++)
                    mma<T>(sums.at[i][j], low.at[k], high.at[k], low.at[k + 1], high.at[k + 1], w[j].at[k],
                           w[j].at[k + 1]);
        }
    }
}

// The same in fp32, without tensor cores.
__device__ __forceinline__ void add_tile_fp32(Sums& sums, const u8* tile, const u8* slot, int first_row,
                                              int first_column) {
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll 1
    for (int chunk = 0; chunk < 8; chunk++)
#pragma unroll
        for (int j = 0; j < MMA_COLUMNS * 2; j++) {
            Chunk w = chunk_of(slot, first_column + j / 2 * 8 + 2 * t + j % 2, chunk);
#pragma unroll
            for (int i = 0; i < MMA_ROWS * 2; i++) {
                Chunk v = chunk_of(tile, first_row + i * 8 + g, chunk);
                float& sum = sums.at[i / 2][j / 2][i % 2 * 2 + j % 2];
#pragma unroll
                for (int k = 0; k < 4; k++) sum += w.floats[k] * v.floats[k];
            }
        }
}

// The tiles of activations and slots of the matrix in shared memory: of the depth that is computed next, and of the
// depth that is requested next, STAGES - 1 ahead.
struct Ring {
    u8 *tiles, *slots;
    int stage = 0, ahead = 0, depth = 0;

    __device__ __forceinline__ u8* slot(int at, int depth) const {
        return slots + (DEPTHS == 1 ? at : depth / DEPTHS % SLOTS) * Matrix::BYTES;
    }
    __device__ __forceinline__ u8* tile() const { return tiles + stage * ACTIVATION_BYTES; }
    __device__ __forceinline__ u8* slot() const { return slot(stage, depth); }
    __device__ __forceinline__ void request(const Activations& x, Matrix& matrix, int depth) {
        x.load(tiles + ahead * ACTIVATION_BYTES, depth);
        if (depth % DEPTHS == 0) matrix.load(slot(ahead, depth), depth);
        commit_copies();
        if (++ahead == STAGES) ahead = 0;
    }
    __device__ __forceinline__ void request(const Activations& x, Matrix& matrix) {
        request(x, matrix, depth + STAGES - 1);
    }
    __device__ __forceinline__ void next() {
        depth++;
        if (++stage == STAGES) stage = 0;
    }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// As compute_tile. Each of two warpgroups multiplies 64 rows; its sums are those of an mma with 16 rows a warp.
__device__ __forceinline__ void compute_tile_wgmma(float (&sums)[64], const Activations& x, Matrix& matrix, Ring& ring,
                                                   int depths, int num_rows) {
    int first_row = threadIdx.x / 128 * 64;
    while (ring.depth < depths) {
        wait_for_groups<STAGES - 2>();
        wgmma_proxy_fence();
        __syncthreads();  // this tile has arrived, and both warpgroups have used the one before
        if (first_row < num_rows) {
            u64 left = tile_descriptor<64>(shared_address(ring.tile()) + first_row * ROW_BYTES);
            u64 right = tile_descriptor<64>(shared_address(ring.slot()));
            fence_operand(sums);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < DEPTH / 16; step++)
                wgmma_ss<T>(sums, left + step * 2, right + step * 2, ring.depth > 0 || step > 0);
            wgmma_commit();
        }
        ring.request(x, matrix);
        wgmma_wait();
        fence_operand(sums);
        ring.next();
    }
}
#endif

__device__ __forceinline__ void compute_tile_mma(Sums& sums, const Activations& x, Matrix& matrix, Ring& ring,
                                                 int depths, int num_rows) {
    int warp = threadIdx.x / WARP, first_row = warp % ROW_WARPS * OWN_ROWS;
    int first_column = warp / ROW_WARPS * OWN_COLUMNS;
    while (ring.depth < depths) {
        wait_for_groups<STAGES - 2>();
        __syncthreads();  // this tile has arrived, and the one before has been used
        ring.request(x, matrix);
        if constexpr (sizeof(T) == 4) {
            add_tile_fp32(sums, ring.tile(), ring.slot(), first_row, first_column);
        } else {
            add_tile(sums, ring.tile(), ring.slot(), ring.depth, first_row, first_column, num_rows - first_row);
        }
        ring.next();
    }
}

// Computes a block's tile of sums, without Matrix::scale. The dynamic shared memory `stages` has STAGES *
// ACTIVATION_BYTES + SLOTS * Matrix::BYTES; `num_rows` of the block exist.
__device__ __forceinline__ void compute_tile(Sums& sums, const Activations& x, Matrix& matrix, u8* stages,
                                             int num_rows) {
    int depths = (x.columns + DEPTH - 1) / DEPTH;
    Ring ring{stages, stages + STAGES * ACTIVATION_BYTES};
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) ring.request(x, matrix, i);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (WGMMA) {
        compute_tile_wgmma(*reinterpret_cast<float(*)[64]>(&sums.at), x, matrix, ring, depths, num_rows);
    } else
#endif
        compute_tile_mma(sums, x, matrix, ring, depths, num_rows);
}

// Stores two neighboring results.
__device__ __forceinline__ void store_pair(T* to, float first, float second) {
    Pack<T, 2> pair;
    const float values[2] = {first, second};
    pair = values;
    store(to, pair);
}
