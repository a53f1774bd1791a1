// The arguments of prefill_attention, and a block's tile of queries with the keys that it sees.
#pragma once
#include "attention/kv_schemes.cuh"
#include "attention/mma_softmax.cuh"

#ifdef KV_SCHEME
using Stored = u8;  // element of the cache
#else
using Stored = T;
#endif

struct Arguments {
    const T* q;
    const Stored* cache;
    const int *block_tables, *query_starts, *context_lens;
    const float *alibi_slopes, *sinks;
    T* out;
    i64 q_stride;
    int num_seqs, max_blocks, num_heads, num_kv_heads, head_dim, log2_block_size, window, chunk, num_tiles;
    int heads_together;
    float scale, softcap;
#ifdef KV_SCHEME
    const float* kv_scales;
#endif
#ifdef PACKED_KV
    const u8 *key_bits, *value_bits;
#endif
#if SPLIT
    float* partials;
    int group_size, num_splits, num_tokens;
#endif
};

// A block's queries and the keys that they see. In shared memory, because registers are scarce and most of it
// is rarely used. With SPLIT, the rows are the group_size heads of the first token, then those of the next.
struct QueryTile {
    const T* q;           // of the first row; with SPLIT of the sequence's first token and the first head
    const Stored* keys;   // of the cache's block 0
    const int* table;
    T* out;  // of the first row
    i64 values;         // from a key to its value, in elements
    int block_rows;     // rows of head_dim elements in a block of the cache
    int num_rows;       // remaining rows of the sequence; may exceed the tile
    int first_token;    // row of q; with SPLIT of the sequence's first token
    int position;       // of the first row; with SPLIT of the sequence's first token
    int context, window, chunk;
    int chunk_begin;  // the first key of the first row's chunk; without chunks 0
    int head;  // with SPLIT the first one
    float slope;
#ifdef KV_SCHEME
    const float* scales;  // of the cache's block 0
    int value_rows;        // from a key's to its value's
#endif
#ifdef PACKED_KV
    const u8 *key_bits, *value_bits;  // of the cache's block 0
#endif
#if SPLIT
    int first, group_size, split;  // first row

    __device__ __forceinline__ int token(int row) const { return (first + row) / group_size; }
    __device__ __forceinline__ i64 query_offset(const Arguments& a, int row) const {
        return token(row) * a.q_stride + (first + row) % group_size * a.head_dim;
    }
#else
    __device__ __forceinline__ int token(int row) const { return row; }
    __device__ __forceinline__ i64 query_offset(const Arguments& a, int row) const {
        return row * a.q_stride;
    }
#endif
    // The score of a row's sink; -infinity: none. Of several splits the first one counts it.
    __device__ __forceinline__ float sink(const Arguments& a, int row) const {
        if (!a.sinks) return -infinity();
#if SPLIT
        return split == 0 ? a.sinks[head + (first + row) % group_size] : -infinity();
#else
        return a.sinks[head];
#endif
    }

    __device__ __forceinline__ int key_end(int row) const { return position + token(row) + 1; }
    __device__ __forceinline__ int key_begin(int row) const {
        int at = position + token(row), begin = chunk_begin;
        // A division would need too many registers; the rows of a tile are in one chunk or two if it is not tiny.
        for (int rest = at - begin; chunk > 0 && rest >= chunk; rest -= chunk) begin += chunk;
        return window > 0 ? max(at + 1 - window, begin) : begin;
    }
    // The keys that the rows first … first + count - 1 may see: begin … end - 1.
    __device__ __forceinline__ void span(int first, int count, int& begin, int& end) const {
        int last = min(first + count, num_rows) - 1;
        begin = key_begin(first);
        end = last < first ? begin : min(key_end(last), context);
    }
    __device__ __forceinline__ bool all_see(int first, int count, int key, int num_keys) const {
        return key + num_keys <= key_end(first) && key >= key_begin(first + count - 1);
    }
};

// Finds tile `index` of all heads and queries; returns false for a surplus tile. All threads of a warp call it;
// one of them `writes` the result, which the caller makes visible.
template <int ROWS>
__device__ __forceinline__ bool find_tile(const Arguments& a, int index, QueryTile& w, bool writes) {
#if SPLIT
    int columns = a.num_heads / a.group_size, column = index % columns;
    int tile = index / columns % a.num_tiles, head = column * a.group_size;
    int rows_per_token = a.group_size;
#else
    int per_section = a.num_tiles * a.heads_together;
    int rest = index % per_section, tile = rest / a.heads_together;
    int head = index / per_section * a.heads_together + rest % a.heads_together;
    constexpr int rows_per_token = 1;
#endif
    int lane = threadIdx.x % WARP;
    for (int base = 0; base < a.num_seqs; base += WARP) {
        int seq = base + lane, start = 0, count = 0;
        if (seq < a.num_seqs) {
            start = a.query_starts[seq];
            count = (a.query_starts[seq + 1] - start) * rows_per_token;
        }
        int end = (count + ROWS - 1) / ROWS;
#pragma unroll
        for (int offset = 1; offset < WARP; offset *= 2) {
            int before = __shfl_up_sync(ALL, end, offset);
            if (lane >= offset) end += before;
        }
        u32 after = __ballot_sync(ALL, tile < end);
        if (after == 0) {
            tile -= __shfl_sync(ALL, end, WARP - 1);
            continue;
        }
        int found = __ffs(after) - 1;
        seq = base + found;
        start = __shfl_sync(ALL, start, found);
        count = __shfl_sync(ALL, count, found);
        int first = (__shfl_sync(ALL, end, found) - 1 - tile) * ROWS;
        if (writes) {
            int kv_head = head / (a.num_heads / a.num_kv_heads);
            i64 head_rows = 1ll << a.log2_block_size;
#if SPLIT
            w.q = a.q + (i64)start * a.q_stride + (i64)head * a.head_dim;
            w.first = first;
            w.group_size = a.group_size;
            w.split = index / (columns * a.num_tiles);
#else
            w.q = a.q + (i64)(start + first) * a.q_stride + (i64)head * a.head_dim;
            w.out = a.out + ((i64)(start + first) * a.num_heads + head) * a.head_dim;
#endif
#ifdef PACKED_KV
            int row_size = a.head_dim / 2;
            w.key_bits = a.key_bits + kv_head * head_rows * (a.head_dim / 4);
            w.value_bits = a.value_bits + kv_head * head_rows * (a.head_dim / 8);
#else
            int row_size = a.head_dim;
#endif
            w.keys = a.cache + kv_head * head_rows * row_size;
            w.values = a.num_kv_heads * head_rows * row_size;
            w.block_rows = 2 * a.num_kv_heads << a.log2_block_size;
            w.table = a.block_tables + (i64)seq * a.max_blocks;
            w.num_rows = count - first;
            w.first_token = start + (SPLIT ? 0 : first);
            w.context = a.context_lens[seq];
            w.position = w.context - count / rows_per_token + (SPLIT ? 0 : first);
            w.window = a.window;
            w.chunk = a.chunk;
            w.chunk_begin = a.chunk > 0 ? (w.position + w.token(0)) / a.chunk * a.chunk : 0;
            w.head = head;
            w.slope = a.alibi_slopes ? a.alibi_slopes[head] : 0.f;
#ifdef KV_SCHEME
            w.scales = a.kv_scales + kv_head * head_rows;
            w.value_rows = a.num_kv_heads << a.log2_block_size;
#endif
        }
        return true;
    }
    return false;
}

// The cache row of a key, counted from `keys`, or -1 if no row of the block sees it: then the key and its block
// table entry may be anything.
__device__ __forceinline__ int key_row(const Arguments& a, const QueryTile& w, int key, int begin) {
    if (key < begin || key >= w.context) return -1;
    int within = key & ((1 << a.log2_block_size) - 1);
    return w.table[key >> a.log2_block_size] * w.block_rows + within;
}

// Begins the online softmax of 16 rows from `row` on: with their sinks, if there are some.
__device__ __forceinline__ void begin_softmax(const Arguments& a, const QueryTile& w, int row,
                                              float (&row_max)[2], float (&sum)[2]) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sink = w.sink(a, row + lane / 4 + 8 * r);
        row_max[r] = BIASED ? sink * LOG2_E : sink / a.scale;  // in units of the products
        sum[r] = lane % 4 == 0 && sink > -infinity() ? 1.f : 0.f;  // of four threads that share a row
    }
}
