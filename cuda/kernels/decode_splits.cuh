// How decode_attention combines the splits of a sequence.
#pragma once
#include "decode_tiles.cuh"

// Which part of the work a block does. More blocks than parts may be launched: `sequence` is then
// num_sequences or more.
struct Part {
    int column, split, sequence;  // column: a KV head and eight or sixteen of its query heads
    int num_splits, num_sequences;

    __device__ Part(int columns, int splits, int sequences)
        : num_splits(splits), num_sequences(sequences) {
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

// A number that is not there yet: a NaN that no computation gives.
constexpr u32 EMPTY = ~0u;

__device__ __forceinline__ u32 never_empty(float v) {
    u32 bits = __float_as_uint(v);
    return bits == EMPTY ? 0x7fffffffu : bits;
}

// What a split has found for a row, or four numbers of it: read again until it is there. Every
// number says so itself, so that one trip to memory brings it; a counter would take two more.
__device__ __forceinline__ void put(float4* to, const float4& v) {
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(never_empty(v.x)), "r"(never_empty(v.y)), "r"(never_empty(v.z)),
                 "r"(never_empty(v.w))
                 : "memory");
}
__device__ __forceinline__ void put(float2* to, const float2& v) {
    asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(never_empty(v.x)), "r"(never_empty(v.y))
                 : "memory");
}
__device__ __forceinline__ bool take(const float4* from, float4& v) {
    u32 x, y, z, w;
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    v = {__uint_as_float(x), __uint_as_float(y), __uint_as_float(z), __uint_as_float(w)};
    return x != EMPTY && y != EMPTY && z != EMPTY && w != EMPTY;
}
__device__ __forceinline__ bool take(const float2* from, float2& v) {
    u32 x, y;
    asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];"
                 : "=r"(x), "=r"(y)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    v = {__uint_as_float(x), __uint_as_float(y)};
    return x != EMPTY && y != EMPTY;
}

// The softmax-weighted sum of some tokens' values, four numbers of a row, and its statistics.
struct Sum {
    float top, total;
    float4 values;

    // Adds another one, whose maximum is not above this one's.
    __device__ __forceinline__ void add(const float2& statistic, const float4& v) {
        float factor = exp2f(statistic.x - top);
        total += factor * statistic.y;
        add_scaled(values, factor, v);
    }
    __device__ __forceinline__ void raise(float to) {
        float shrink = exp2f(top - to);
        total *= shrink;
        values = {values.x * shrink, values.y * shrink, values.z * shrink, values.w * shrink};
        top = to;
    }
};

constexpr int BATCH = 8;  // splits whose results a thread loads at a time

// Where the splits of a sequence leave their results. Empty before and after.
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
    __device__ float4* sum(i64 head, int split, int quad) const {
        return reinterpret_cast<float4*>(sums + (head * num_splits + split) * head_dim) + quad;
    }
    __device__ float2* statistic(i64 head, int split) const {
        return statistics + head * num_splits + split;
    }

    __device__ void leave(i64 head, int split, int quad, const Sum& sum) const {
        put(this->sum(head, split, quad), sum.values);
        if (quad == 0) put(statistic(head, split), {sum.top, sum.total});
    }

    // Adds what the first `splits` splits have left for a row, in their order.
    __device__ void collect(i64 head, int splits, int quad, Sum& sum) const {
#pragma unroll 1
        for (int first = 0; first < splits; first += BATCH) {
            float2 found[BATCH];
            float4 values[BATCH];
            bool complete;
            do {
                complete = true;
#pragma unroll
                for (int i = 0; i < BATCH; i++) {
                    found[i] = {-infinity(), 0};
                    values[i] = {};
                    if (first + i >= splits) continue;
                    complete &= take(statistic(head, first + i), found[i]);
                    complete &= take(this->sum(head, first + i, quad), values[i]);
                }
            } while (!complete);
            float top = sum.top;
#pragma unroll
            for (int i = 0; i < BATCH; i++) top = fmaxf(top, found[i].x);
            sum.raise(top);
#pragma unroll
            for (int i = 0; i < BATCH; i++) sum.add(found[i], values[i]);
        }
    }

    __device__ void clear(i64 head, int splits, int quad) const {
        float empty = __uint_as_float(EMPTY);
        for (int i = 0; i < splits; i++) {
            *sum(head, i, quad) = {empty, empty, empty, empty};
            if (quad == 0) *statistic(head, i) = {empty, empty};
        }
    }
};
