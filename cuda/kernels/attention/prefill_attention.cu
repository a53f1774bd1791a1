// prefill_attention: attention of many queries of several sequences over a paged cache.
//
//   q             T [num_tokens, num_heads, head_dim], rows q_stride elements apart: the new tokens of the
//                 sequences, one sequence after the other
//   cache         int8 [num_blocks, 2 * num_kv_heads, block_size, head_dim / 2] with KV_SCHEME KV_INT5,
//                 int8 [num_blocks, 2 * num_kv_heads, block_size, head_dim] with KV_SCHEME,
//                 else T [num_blocks, 2 * num_kv_heads, block_size, head_dim]: key heads first; with KV_INT5 rows
//                 are rotated, q is rotated too, and so is the output
//   kv_scales     fp32 [num_blocks, 2 * num_kv_heads, block_size]: with KV_SCHEME (quantized_kv.cuh)
//   key_bits      int8 [num_blocks, num_kv_heads, block_size, head_dim / 4]: with KV_INT5 (int5_kv.cuh)
//   value_bits    int8 [num_blocks, num_kv_heads, block_size, head_dim / 8]
//   block_tables  int32 [num_seqs, max_blocks]; only entries with visible keys are used
//   query_starts  int32 [num_seqs + 1]: the first row of each sequence in q, and the end
//   context_lens  int32 [num_seqs]: tokens in the cache; the queries are the last of them
//   alibi_slopes  fp32 [num_heads] or null: ALiBi
//   sinks         fp32 [num_heads] or null: the score of one more key, whose value is 0 (Xiao et al., 2023)
//   out           T [num_tokens, num_heads, head_dim]
//   partials      fp32 [num_splits * num_tokens * num_heads * (head_dim + 2)]: with SPLIT, see prefill_splits.cuh
//   group_size    with SPLIT: heads in one tile, 1 or those of a KV head; 1 with ALiBi
//   cache_map     PATH 2: tensor map of the cache's rows, in boxes of block_size rows, at most those of a tile
//   q_map         PATH 2 without SPLIT: tensor map of q, in boxes of 64 rows of a head
//
// out = softmax(cap · tanh(q · kᵀ · scale / cap) + slope · (key - position)) · v over the visible keys:
// those up to the query's position, and with a window w > 0 of these only keys >
// position - w, with a chunk c > 0 only keys >= position / c * c (Llama 4). Head h reads KV head h / (num_heads / num_kv_heads).
//
// Algorithm: FlashAttention (Dao, 2023; Shah et al., 2024). A block keeps a tile of queries of one head and
// loops over the tiles of keys with an online softmax. Tiles that no row sees are skipped; masks are
// evaluated only in tiles that some row sees in part.
// PATH 0, fp32: 128 threads and 16 queries a block, FMAs.
// PATH 1, bf16 and fp16: 4 warps of mma.m16n8k16 with 16 or 32 rows each; two stages of keys and values,
//   loaded by asynchronous copies while the tile before is computed. With head_dim above 256 two warps share 16
//   rows: both compute the scores, each half of the output's columns, whose sums would not fit the registers of one.
//   There are 8 warps, or with SMALL 4.
// PATH 2, bf16 and fp16 on sm_90a: persistent blocks. A producer warp fills rings of queries, keys and values by
//   the copy engine; 2 or 3 consumer warpgroups with 64 queries each use wgmma. The softmax of a tile of keys
//   overlaps with the products of the tile before and with those of the other warpgroups, which take turns.
//
// SPLIT 1 (not PATH 0), for few queries: the heads of a KV head are rows of one tile, and several blocks share
//   the keys of a tile (prefill_splits.cuh). They write `partials`, which combine_splits joins, and not `out`.
//
// Defines: DIM (head_dim rounded up; further columns are zeros), BIASED (1 allows softcap and ALiBi), SMALL
// (PATH 1: 1 for GPUs with 99 KiB of shared memory), CONSUMERS (PATH 2: warpgroups with queries), KV_SCHEME
// (PATH 1: quantized cache; head_dim is a multiple of 16, with KV_INT5 DIM, 64 or 128).
// Requires: head_dim % 8 == 0; q's rows aligned to 16 bytes; context_lens at least the number of queries;
// fewer than 2^31 rows in the cache.
// Launch: grid num_tiles * num_heads, PATH 2 at most one block a multiprocessor: a tile of queries, the last rows
// of a sequence first (they see the most keys); surplus tiles return at once. `heads_together` heads run at the
// same time, so that their keys and values stay in L2. Block and shared memory: Shape in
// ops/attention/prefill_attention.py.
// Moves at least q, out and the keys and values of the contexts; 4 · head_dim · num_heads operations for each
// visible pair.
// Accuracy: fp32 sums; attention weights are rounded to T: relative 2^-8 (bf16), 2^-11 (fp16), of which the
// roundings of weights and result each take less than half on average; 5e-6 (fp32).
// Test: tests/cuda/kernels/test_prefill_attention.py
#include "attention/prefill_tile.cuh"
#if SPLIT
#include "attention/prefill_splits.cuh"
#endif

#define FMA_PATH 0
#define MMA_PATH 1
#define WGMMA_PATH 2

#if PATH == FMA_PATH
#include "attention/prefill_fma.cuh"
#else  // the tensor core paths

constexpr bool IS_WIDE = DIM > 128, IS_WIDEST = DIM > 256;
#if PATH == MMA_PATH
constexpr int ROW_TILES = SMALL || IS_WIDE ? 1 : 2;  // of 16 rows, a warp
// Warps that share rows: each computes the scores, and a part of the output's columns.
constexpr int PARTS = IS_WIDEST ? 2 : 1;
constexpr int THREADS = IS_WIDEST && !SMALL ? 256 : 128, ROWS = THREADS / WARP / PARTS * ROW_TILES * 16;
constexpr int KEYS = IS_WIDEST ? 16 : SMALL || IS_WIDE ? 32 : 64;
#else
constexpr int THREADS = (CONSUMERS + 1) * 128, GROUP_ROWS = 64, ROWS = CONSUMERS * GROUP_ROWS;
constexpr int KEYS = IS_WIDE ? 64 : 128, STAGES = DIM == 64 ? 4 : 2;
#endif
constexpr int CHUNKS = DIM / 8, PANELS = (DIM + 63) / 64;
constexpr int ROW_BYTES = PANELS * 128, TILE_BYTES = KEYS * ROW_BYTES;  // of keys, or of values

// COPIERS threads load a tile of rows, a 16-byte chunk each at a time: these functions return the row, the chunk
// and its offset in the tile for thread `thread` at step `i`. A chunk has the same offset in rows that are
// eight apart, so most steps' offsets differ by constants.
constexpr int COPIERS = PATH == MMA_PATH ? THREADS : 128;
constexpr bool IS_EVEN = COPIERS % CHUNKS == 0;
__device__ __forceinline__ int step_row(int thread, int i) {
    return IS_EVEN ? thread / CHUNKS + i * (COPIERS / CHUNKS) : (i * COPIERS + thread) / CHUNKS;
}
__device__ __forceinline__ int step_chunk(int thread, int i) {
    return IS_EVEN ? thread % CHUNKS : (i * COPIERS + thread) % CHUNKS;
}
template <int TILE_ROWS> __device__ __forceinline__ u32 step_offset(int thread, int i) {
    constexpr int BY = COPIERS / CHUNKS;
    if (IS_EVEN)
        return chunk_offset<TILE_ROWS>(thread / CHUNKS + i * BY % 8, thread % CHUNKS) +
               i * BY / 8 * 8 * 128;
    return chunk_offset<TILE_ROWS>(step_row(thread, i), step_chunk(thread, i));
}

// Loads the query rows first … first + COUNT - 1 of the block.
template <int COUNT>
__device__ __forceinline__ void load_queries(const Arguments& a, const QueryTile& w, u32 to, int first,
                                             int thread) {
#pragma unroll
    for (int i = 0; i < COUNT * CHUNKS / COPIERS; i++) {
        int row = first + step_row(thread, i), chunk = step_chunk(thread, i);
        bool valid = row < w.num_rows && chunk * 8 < a.head_dim;
        const T* from = w.q + (valid ? w.query_offset(a, row) + chunk * 8 : 0);
        copy_chunk(to + step_offset<COUNT>(thread, i), from, valid);
    }
}

// Biases and masks the products of 16 rows from `row` on and the keys from `key` on.
template <int N>
__device__ __forceinline__ void prepare_scores(const Arguments& a, const QueryTile& w, float (&s)[N], int row,
                                               int key) {
    int lane = threadIdx.x % WARP, own = row + lane / 4, column = key + lane % 4 * 2;
    if (BIASED) {
        int position[2] = {w.position + w.token(own), w.position + w.token(own + 8)};
        bias_scores(s, column, position, a.scale, a.softcap, w.slope);
    }
    if (!w.all_see(row, 16, key, 2 * N)) {
        int begin[2] = {w.key_begin(own), w.key_begin(own + 8)};
        int count[2] = {max(w.key_end(own) - begin[0], 0), max(w.key_end(own + 8) - begin[1], 0)};
        mask_scores(s, column, begin, count);
    }
}

#if PATH == MMA_PATH
constexpr int PART_CHUNKS = CHUNKS / PARTS, PART_PANELS = PANELS / PARTS;  // of a warp's part of a row

// Stores finished rows in a tile of TILE_ROWS rows, and from there in full accesses to `out`: of each row the chunks
// from `first_chunk` on.
template <int TILE_ROWS, int N>
__device__ __forceinline__ void put_rows(u8* tile, const float (&o)[N], int row,
                                         const float (&sum)[2]) {
    int lane = threadIdx.x % WARP, own = row + lane / 4, at = lane % 4 * 4;
    float by[2] = {inverse_sum(sum[0]), inverse_sum(sum[1])};
#pragma unroll
    for (int j = 0; j < N; j += 2) {
        u32 pair = pair_bits(o[j] * by[j / 2 % 2], o[j + 1] * by[j / 2 % 2], T());
        *(u32*)(tile + chunk_offset<TILE_ROWS>(own + j / 2 % 2 * 8, j / 4) + at) = pair;
    }
}
template <int TILE_ROWS>
__device__ __forceinline__ void store_rows(const Arguments& a, const QueryTile& w, const u8* tile,
                                           int tile_first, int first, int count, int first_chunk, int thread,
                                           int num_threads) {
    for (int e = thread; e < count * PART_CHUNKS; e += num_threads) {
        int row = first + e / PART_CHUNKS, chunk = first_chunk + e % PART_CHUNKS;
        if (tile_first + row < w.num_rows && chunk * 8 < a.head_dim)
            *(uint4*)(w.out + (i64)(tile_first + row) * a.num_heads * a.head_dim + chunk * 8) =
                *(const uint4*)(tile + chunk_offset<TILE_ROWS>(row, chunk));
    }
}
#endif
#endif

#if PATH == MMA_PATH
#include "attention/prefill_mma.cuh"
#elif PATH == WGMMA_PATH && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "attention/prefill_wgmma.cuh"
#elif PATH == WGMMA_PATH
__device__ __forceinline__ void attend(const Arguments&, const TensorMap&, const TensorMap&, u8*) { __trap(); }
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill_attention_kernel(const __grid_constant__ TensorMap cache_map, const __grid_constant__ TensorMap q_map,
                         const T* q, const Stored* cache, const int* block_tables,
                         const int* query_starts, const int* context_lens, const float* alibi_slopes,
                         const float* sinks, T* out, i64 q_stride, int num_seqs, int max_blocks, int num_heads,
                         int num_kv_heads, int head_dim, int log2_block_size, int window, int chunk, int num_tiles,
                         int heads_together, float scale, float softcap
#ifdef KV_SCHEME
                         , const float* kv_scales
#if KV_SCHEME == KV_INT5
                         , const u8* key_bits, const u8* value_bits
#endif
#endif
#if SPLIT
                         , float* partials, int group_size, int num_splits, int num_tokens
#endif
                         ) {
    extern __shared__ __align__(1024) u8 shared[];
    start_dependents();
    wait_for_upstream();
    Arguments a = {q,          cache,     block_tables, query_starts,   context_lens,    alibi_slopes,
                   sinks,      out,       q_stride,     num_seqs,       max_blocks,      num_heads,
                   num_kv_heads, head_dim, log2_block_size, window,     chunk,           num_tiles,
                   heads_together, scale, softcap,
#ifdef KV_SCHEME
                   kv_scales,
#endif
#ifdef PACKED_KV
                   key_bits,   value_bits,
#endif
#if SPLIT
                   partials,   group_size,   num_splits,   num_tokens,
#endif
    };
#if PATH == WGMMA_PATH
    attend(a, cache_map, q_map, shared);
#else
    __shared__ QueryTile work;
    if (!find_tile<ROWS>(a, blockIdx.x, work, threadIdx.x == 0)) return;
    __syncthreads();
    attend(a, work, shared);
#endif
}
