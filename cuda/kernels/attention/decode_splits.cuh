// How decode_attention combines the splits of a sequence.
#pragma once
#include "attention/decode_tiles.cuh"
#include "comm/sentinel.cuh"

// A block's part of the work. There may be more blocks than work: then `sequence` is num_seqs or more.
struct BlockWork {
    int column, split, sequence;  // a column is a KV head and ROWS of its query heads
    int num_splits, few_splits, num_seqs;

    __device__ BlockWork(int columns, int splits, int few, int sequences)
        : num_splits(splits), few_splits(few), num_seqs(sequences) {
        column = blockIdx.x % columns;
        split = blockIdx.x / columns % splits;
        sequence = blockIdx.x / columns / splits;
    }
};

// The query heads of a block: all of one sequence and one KV head.
struct Heads {
    int count;      // up to ROWS
    int first;      // index among the model's query heads
    i64 first_row;  // index among the query heads of all sequences
    int kv_head;

    __device__ Heads(const BlockWork& part, int num_heads, int group_size) {
        int tiles = (group_size + ROWS - 1) / ROWS, tile = part.column % tiles;
        kv_head = part.column / tiles;
        count = min(ROWS, group_size - tile * ROWS);
        first = kv_head * group_size + tile * ROWS;
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

__device__ __forceinline__ void store_relaxed(float4* to, u32 x, u32 y, u32 z, u32 w) {
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
__device__ __forceinline__ void store_relaxed(float2* to, u32 x, u32 y) {
    asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(x), "r"(y)
                 : "memory");
}
// Loads if `wanted` is true, without a branch, so that many loads are in flight together.
__device__ __forceinline__ void load_if(const float4* from, float4& v, bool wanted) {
    u32 x = __float_as_uint(v.x), y = __float_as_uint(v.y);
    u32 z = __float_as_uint(v.z), w = __float_as_uint(v.w);
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(x), "+r"(y), "+r"(z), "+r"(w)
        : "l"(__cvta_generic_to_global(from)), "r"((u32)wanted)
        : "memory");
    v = {__uint_as_float(x), __uint_as_float(y), __uint_as_float(z), __uint_as_float(w)};
}
__device__ __forceinline__ void load_if(const float2* from, float2& v, bool wanted) {
    u32 x = __float_as_uint(v.x), y = __float_as_uint(v.y);
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %3, 0; @p ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2]; }"
        : "+r"(x), "+r"(y)
        : "l"(__cvta_generic_to_global(from)), "r"((u32)wanted)
        : "memory");
    v = {__uint_as_float(x), __uint_as_float(y)};
}
__device__ __forceinline__ bool valid(const float2& a, const float4& b) {
    return __float_as_uint(a.x) != SENTINEL && __float_as_uint(a.y) != SENTINEL &&
           __float_as_uint(b.x) != SENTINEL && __float_as_uint(b.y) != SENTINEL &&
           __float_as_uint(b.z) != SENTINEL && __float_as_uint(b.w) != SENTINEL;
}

constexpr int BATCH = HEAD_DIM > 256 ? 16 : 8;  // splits that a thread loads at a time

// The softmax-weighted sum of some tokens' values, four dimensions of a row, with its maximum and total.
struct Sum {
    float row_max, total;
    float4 values;

    // Adds another sum whose maximum is not larger.
    __device__ __forceinline__ void add(const float2& statistic, const float4& v) {
        float factor = exp2f(statistic.x - row_max);
        total += factor * statistic.y;
        add_scaled(values, factor, v);
    }
    __device__ __forceinline__ void raise(float to) {
        float rescale = exp2f(row_max - to);
        total *= rescale;
        values = {values.x * rescale, values.y * rescale, values.z * rescale, values.w * rescale};
        row_max = to;
    }
};

// The results of the splits of a sequence in the workspace: four dimensions of a row, and the row's maximum
// and total, repeated for each four. All elements are the sentinel before and after.
struct Partials {
    float4* values;
    float2* statistics;
    int quads, num_splits;

    __device__ Partials(const BlockWork& part, float* partials, int num_heads, int head_dim)
        : quads(head_dim / 4), num_splits(part.num_splits) {
        values = reinterpret_cast<float4*>(partials);
        i64 count = (i64)part.num_seqs * num_heads * num_splits * quads;
        statistics = reinterpret_cast<float2*>(values + count);
    }
    __device__ i64 at(i64 head, int split, int quad) const {
        return (head * num_splits + split) * quads + quad;
    }

    __device__ void store(i64 at, const Sum& sum) const {
        store_relaxed(values + at, not_sentinel(sum.values.x), not_sentinel(sum.values.y),
            not_sentinel(sum.values.z), not_sentinel(sum.values.w));
        store_relaxed(statistics + at, not_sentinel(sum.row_max), not_sentinel(sum.total));
    }

    // Adds the results of the first `splits` splits in order and resets them to the sentinel. Whole warps call
    // it and poll together, because lanes that poll separately would run one after the other. A lane with
    // nothing to add passes 0.
    __device__ void collect(i64 head, int splits, int quad, Sum& sum) const {
        for (int first = 0; __any_sync(ALL, first < splits); first += BATCH) {
            i64 here = at(head, first, quad);
            float2 statistic[BATCH];
            float4 found[BATCH];
            u32 missing = 0;
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                statistic[i] = {-infinity(), 0};
                found[i] = {};
                if (first + i < splits) missing |= 1 << i;
            }
            u32 own = missing;
            do {
#pragma unroll
                for (int i = 0; i < BATCH; i++) {
                    load_if(statistics + here + i * quads, statistic[i], missing >> i & 1);
                    load_if(values + here + i * quads, found[i], missing >> i & 1);
                }
                missing = 0;
#pragma unroll
                for (int i = 0; i < BATCH; i++)
                    if (!valid(statistic[i], found[i])) missing |= 1 << i;
            } while (__any_sync(ALL, missing));
            float row_max = sum.row_max;
#pragma unroll
            for (int i = 0; i < BATCH; i++) row_max = fmaxf(row_max, statistic[i].x);
            sum.raise(row_max);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                sum.add(statistic[i], found[i]);
                if (own >> i & 1) {
                    store_relaxed(values + here + i * quads, SENTINEL, SENTINEL, SENTINEL, SENTINEL);
                    store_relaxed(statistics + here + i * quads, SENTINEL, SENTINEL);
                }
            }
        }
    }
};
