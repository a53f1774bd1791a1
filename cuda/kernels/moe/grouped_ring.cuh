// Work and loads of a grouped GEMM (grouped.cuh): the rows of a block, and its ring of tiles in shared memory.
#pragma once
#include "moe/grouped_matrix.cuh"

constexpr int WARPS = THREADS / WARP, ROW_WARPS = WGMMA ? WARPS : BLOCK_ROWS == 128 ? 2 : 1;
constexpr int COLUMN_WARPS = WARPS / ROW_WARPS;
constexpr int OWN_ROWS = BLOCK_ROWS / ROW_WARPS, OWN_COLUMNS = TILE_COLUMNS / COLUMN_WARPS;  // of a warp
constexpr int MMA_ROWS = OWN_ROWS / 16, MMA_COLUMNS = OWN_COLUMNS / 8;
constexpr int ACTIVATION_BYTES = BLOCK_ROWS * ROW_BYTES;  // of a stage
// Blocks on a multiprocessor, at least; many of them hide how long it takes to dequantize.
constexpr int MIN_BLOCKS = BLOCK_ROWS == 32 ? (PACKED ? 4 : 2) : sizeof(T) == 4 ? 1 : 2;

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

// The sums of a warp's rows and columns, as accumulators of mma: see common/mma.cuh.
struct Sums {
    float at[MMA_ROWS][MMA_COLUMNS][4];
};

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
