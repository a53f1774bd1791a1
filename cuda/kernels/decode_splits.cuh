// How decode_attention combines the splits of a sequence.
#pragma once
#include "decode_tiles.cuh"

// Which part of the work a block does. More blocks than parts may be launched: `sequence` is then
// num_sequences or more.
struct Part {
    int column, split, sequence;  // column: a KV head and eight or sixteen of its query heads
    int num_columns, num_splits, num_sequences;

    __device__ Part(int columns, int splits, int sequences)
        : num_columns(columns), num_splits(splits), num_sequences(sequences) {
        column = blockIdx.x % columns;
        split = blockIdx.x / columns % splits;
        sequence = blockIdx.x / columns / splits;
    }
};

// The query heads of a block, all of one sequence and one KV head.
struct Heads {
    int count;      // at most ROWS
    int first;      // of the model's query heads
    i64 first_row;  // of all sequences' query heads
    int kv_head;

    __device__ Heads(const Part& part, int num_heads, int group) {
        int tiles = (group + ROWS - 1) / ROWS, tile = part.column % tiles;
        kv_head = part.column / tiles;
        count = min(ROWS, group - tile * ROWS);
        first = kv_head * group + tile * ROWS;
        first_row = (i64)part.sequence * num_heads + first;
    }
};

__device__ __forceinline__ void add_scaled(float4& sum, float factor, const float4& value) {
    sum.x += factor * value.x;
    sum.y += factor * value.y;
    sum.z += factor * value.z;
    sum.w += factor * value.w;
}

__device__ __forceinline__ void store(T* out, float factor, const float4& v) {
    *reinterpret_cast<Vec<T, 4>*>(out) = {from_float<T>(v.x * factor), from_float<T>(v.y * factor),
                                          from_float<T>(v.z * factor), from_float<T>(v.w * factor)};
}

// Where the splits of a block's heads leave their results.
struct Partials {
    float* sums;
    float2* statistics;  // maximum and total
    int head_dim, num_splits;

    __device__ Partials(const Part& part, float* partials, int num_heads, int head_dim)
        : head_dim(head_dim), num_splits(part.num_splits) {
        i64 rows = (i64)part.num_sequences * num_heads * num_splits;
        sums = partials;
        statistics = reinterpret_cast<float2*>(partials + rows * head_dim);
    }
    __device__ i64 row(i64 head, int split) const { return head * num_splits + split; }
    __device__ float4* sum(i64 head, int split, int quad) const {
        return reinterpret_cast<float4*>(sums + row(head, split) * head_dim) + quad;
    }
    __device__ float2* statistic(i64 head, int split) const {
        return statistics + row(head, split);
    }
};

// Adds 1 to a counter of all blocks and returns what it was. What this block's threads wrote before
// their last __syncthreads() is visible to whoever sees the addition, and the other way round.
__device__ __forceinline__ int count_arrival(int* counter) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(counter))
                 : "memory");
    return before;
}

// True, in all threads, for the block that comes last of `splits`: it sees what the others wrote.
// The counter is left at zero for the next launch.
__device__ bool arrives_last(int* counter, int splits, bool& is_last) {
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = count_arrival(counter) == splits - 1;
        if (is_last) *counter = 0;
    }
    __syncthreads();
    return is_last;
}

constexpr int BATCH = 16;  // splits whose results a thread loads at a time

// Combines the splits of a block's heads, in order. A thread has four numbers of a row, and repeats
// what it needs of the row's statistics: one round trip to memory for up to BATCH splits.
__device__ void combine_splits(const Partials& partials, const Heads& heads, int splits, T* out) {
    for (int item = threadIdx.x; item < heads.count * QUADS; item += THREADS) {
        int row = item / QUADS, quad = item % QUADS;
        if (quad * 4 >= partials.head_dim) continue;
        i64 head = heads.first_row + row;
        float top = -infinity(), total = 0;
        float4 sum = {};
#pragma unroll 1
        for (int first = 0; first < splits; first += BATCH) {
            float2 statistic[BATCH];
            float4 found[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                statistic[i] = {-infinity(), 0};
                found[i] = {};
                if (first + i < splits) {
                    statistic[i] = __ldcg(partials.statistic(head, first + i));
                    found[i] = __ldcg(partials.sum(head, first + i, quad));
                }
            }
            float before = top;
#pragma unroll
            for (int i = 0; i < BATCH; i++) top = fmaxf(top, statistic[i].x);
            float shrink = exp2f(before - top);  // 0 the first time
            total *= shrink;
            sum = {sum.x * shrink, sum.y * shrink, sum.z * shrink, sum.w * shrink};
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                float factor = exp2f(statistic[i].x - top);
                total += factor * statistic[i].y;
                add_scaled(sum, factor, found[i]);
            }
        }
        store(out + head * partials.head_dim + quad * 4, 1 / total, sum);
    }
}
