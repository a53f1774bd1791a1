// prefill_attention: attention of many queries of several sequences over a block-paged cache.
//
//   q              T [num_tokens, num_heads, head_dim], rows q_stride elements apart; the
//                  sequences' new tokens one after another
//   cache          T [num_blocks, 2 * num_kv_heads, block_size, head_dim]: the keys' heads, then
//                  the values'; with KV_SCHEME bytes, and kv_scales fp32, one a row (codes.cuh)
//   block_tables   int32 [num_seqs, max_blocks]; only blocks with visible keys are looked up
//   query_starts   int32 [num_seqs + 1]: where in q each sequence begins, and the last one ends
//   context_lens   int32 [num_seqs]: tokens in the cache, the sequence's queries being the last
//   prefix_lens    int32 [num_seqs] or null: keys before it are visible from everywhere
//   alibi_slopes         fp32 [num_heads] or null: ALiBi
//   out            T [num_tokens, num_heads, head_dim]
//
// out = softmax(cap · tanh(q · kᵀ · scale / cap) + slope · (key - position)) · v over the visible
// keys: those up to the query's position or in the prefix, and with a window w > 0 of these only
// keys > position - w. Head h reads key head h / (num_heads / num_kv_heads). The algorithm is
// FlashAttention's (Dao, 2023; Shah et al., 2024): a block keeps a tile of queries of one head and
// goes over the keys' tiles with an online softmax; tiles that no row sees are left out, masks are
// evaluated only in tiles that some row sees in part.
//
// PATH 0, fp32: a block of 128 threads has 16 queries; ordinary FMAs.
// PATH 1, bf16 and fp16: 4 warps of mma.m16n8k16 with 16 or 32 rows each; two stages of keys and
//   values, brought by asynchronous copies while the tile before is computed.
// PATH 2, the same on sm_90a: a producer warpgroup keeps a ring of keys and values full; 2 or 3
//   consumer warpgroups with 64 queries each mma by wgmma. They are not in step, so that
//   one's softmax runs beside another's products.
//
// Grid: num_tiles * num_heads. A tile is a tile of queries of some sequence, the last rows of a
// sequence first (they see most keys); surplus num_tiles return at once. `heads_together` heads run
// side by side, so that their keys and values stay in L2. Block and shared memory: Shape in
// ops/prefill_attention.py.
// Defines: DIM, head_dim rounded up to what the registers are laid out for (columns beyond
// head_dim are zeros); BIASED 1 allows softcap and alibi_slopes; SMALL 1 (PATH 1) is for GPUs with 99 KiB
// of shared memory; CONSUMERS (PATH 2), warpgroups with queries; KV_SCHEME (PATH 1) is
// for a cache in 8 bits, head_dim being a multiple of 16.
// Moves at least q, out and the contexts' keys and values; 4 · head_dim · num_heads operations for
// each visible pair. Requires head_dim % 8 == 0, q and its rows aligned to 16 bytes, context_lens ≥
// the number of queries, and fewer than 2^31 rows in the cache.
// Sums in fp32; the weights of the second product are rounded to T.
// Test: tests/cuda/kernels/test_prefill_attention.py, relative 2^-8 (bf16), 2^-11 (fp16): one rounding
// of the weights and one of the result, on average less than half the bound each; 5e-6 (fp32).
#include "attention/prefill_tile.cuh"

#define FMA_PATH 0
#define MMA_PATH 1
#define WGMMA_PATH 2

#if PATH == FMA_PATH
constexpr int THREADS = 128, ROWS = 16, KEYS = 32, SHARERS = THREADS / ROWS;
constexpr int STRIDE = DIM + 1;  // rows begin in different banks

// Eight threads share a row: of the scores each has every eighth key, of the output every eighth
// column.
__device__ __forceinline__ void attend(const Arguments& a, const QueryTile& w, u8* shared) {
    float *q = (float*)shared, *k = q + ROWS * STRIDE, *v = k + KEYS * STRIDE;
    float* weights = v + KEYS * STRIDE;
    int row = threadIdx.x / SHARERS, part = threadIdx.x % SHARERS;
    for (int e = threadIdx.x; e < ROWS * DIM; e += THREADS) {
        int r = e / DIM, d = e % DIM;
        bool valid = r < w.num_rows && d < a.head_dim;
        q[r * STRIDE + d] = valid ? to_float(w.q[r * a.q_stride + d]) : 0.f;
    }
    int begin, end;
    w.span(0, ROWS, begin, end);
    int row_begin = w.key_begin(row), row_end = min(w.key_end(row), w.context);
    float row_max = -infinity(), sum = 0, o[DIM / SHARERS] = {};
    for (int first = begin / KEYS * KEYS; first < end; first += KEYS) {
        __syncthreads();  // the tile before has been read
        for (int e = threadIdx.x; e < KEYS * DIM; e += THREADS) {
            int key = e / DIM, d = e % DIM, at = key_row(a, w, first + key, begin);
            bool valid = at >= 0 && d < a.head_dim;
            const T* from = w.keys + (valid ? (i64)at * a.head_dim + d : 0);
            k[key * STRIDE + d] = valid ? to_float(from[0]) : 0.f;
            v[key * STRIDE + d] = valid ? to_float(from[w.values]) : 0.f;
        }
        __syncthreads();
        float s[KEYS / SHARERS] = {}, greatest = row_max;
        for (int d = 0; d < DIM; d++)
#pragma unroll
            for (int i = 0; i < KEYS / SHARERS; i++)
                s[i] += q[row * STRIDE + d] * k[(part + i * SHARERS) * STRIDE + d];
#pragma unroll
        for (int i = 0; i < KEYS / SHARERS; i++) {
            int key = first + part + i * SHARERS;
            s[i] *= a.scale;
            if (BIASED && a.softcap > 0) s[i] = a.softcap * tanhf(s[i] / a.softcap);
            if (BIASED) s[i] += w.slope * (key - w.position - row);
            if (key < row_begin || key >= row_end) s[i] = -infinity();
            greatest = fmaxf(greatest, s[i]);
        }
#pragma unroll
        for (int offset = SHARERS / 2; offset; offset /= 2)
            greatest = fmaxf(greatest, __shfl_xor_sync(ALL, greatest, offset));
        float base = greatest == -infinity() ? 0.f : greatest, rescale = expf(row_max - base);
        row_max = greatest;
        sum *= rescale;
#pragma unroll
        for (int i = 0; i < KEYS / SHARERS; i++) {
            float weight = expf(s[i] - base);
            sum += weight;
            weights[row * (KEYS + 1) + part + i * SHARERS] = weight;
        }
        __syncwarp();  // a row's threads are of one warp; others do not touch its weights
#pragma unroll
        for (int i = 0; i < DIM / SHARERS; i++) o[i] *= rescale;
        for (int key = 0; key < KEYS; key++)
#pragma unroll
            for (int i = 0; i < DIM / SHARERS; i++)
                o[i] += weights[row * (KEYS + 1) + key] * v[key * STRIDE + part + i * SHARERS];
    }
#pragma unroll
    for (int offset = SHARERS / 2; offset; offset /= 2) sum += __shfl_xor_sync(ALL, sum, offset);
    if (row >= w.num_rows) return;
#pragma unroll
    for (int i = 0; i < DIM / SHARERS; i++) {
        int d = part + i * SHARERS;
        if (d < a.head_dim)
            w.out[(i64)row * a.num_heads * a.head_dim + d] = sum > 0 ? o[i] / sum : 0.f;
    }
}
#else  // the tensor cores' paths

constexpr bool IS_WIDE = DIM > 128;
#if PATH == MMA_PATH
constexpr int ROW_TILES = SMALL || IS_WIDE ? 1 : 2;  // of 16 rows, a warp
constexpr int THREADS = 128, ROWS = THREADS / WARP * ROW_TILES * 16;
constexpr int KEYS = SMALL || IS_WIDE ? 32 : 64;
#else
constexpr int THREADS = (CONSUMERS + 1) * 128, GROUP_ROWS = 64, ROWS = CONSUMERS * GROUP_ROWS;
constexpr int KEYS = IS_WIDE ? 64 : 128, STAGES = DIM == 64 ? 4 : 2;
#endif
constexpr int CHUNKS = DIM / 8, PANELS = (DIM + 63) / 64;
constexpr int ROW_BYTES = PANELS * 128, TILE_BYTES = KEYS * ROW_BYTES;  // of keys, or of values

// 128 threads bring a tile of rows, a chunk each at a time: the row, the chunk and its key_row in the
// tile of thread `thread` at step `i`. Eight rows further on a chunk has the same key_row in its row,
// so that most steps' key_rows differ by constants.
constexpr int COPIERS = 128;
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

// Brings query rows first … first + COUNT - 1 of the block.
template <int COUNT>
__device__ __forceinline__ void load_queries(const Arguments& a, const QueryTile& w, u32 to, int first,
                                             int thread) {
#pragma unroll
    for (int i = 0; i < COUNT * CHUNKS / COPIERS; i++) {
        int row = first + step_row(thread, i), chunk = step_chunk(thread, i);
        bool valid = row < w.num_rows && chunk * 8 < a.head_dim;
        const T* from = w.q + (valid ? row * a.q_stride + chunk * 8 : 0);
        copy_chunk(to + step_offset<COUNT>(thread, i), from, valid);
    }
}

// Raw products of 16 rows, the first being `row`, and the keys from `key` on become weights.
template <int N>
__device__ __forceinline__ void softmax_weights(const Arguments& a, const QueryTile& w, float (&s)[N], int row,
                                      int key, float (&row_max)[2], float (&sum)[2],
                                      float (&rescale)[2]) {
    int lane = threadIdx.x % WARP, mine = row + lane / 4, column = key + lane % 4 * 2;
    if (BIASED) {
        int position[2] = {w.position + mine, w.position + mine + 8};
        bias_scores(s, column, position, a.scale, a.softcap, w.slope);
    }
    if (!w.all_see(row, 16, key, 2 * N)) {
        int begin[2] = {w.key_begin(mine), w.key_begin(mine + 8)};
        int count[2] = {max(w.key_end(mine) - begin[0], 0), max(w.key_end(mine + 8) - begin[1], 0)};
        mask_scores(s, column, begin, count);
    }
    online_softmax(s, BIASED ? 1.f : a.scale * LOG2_E, row_max, sum, rescale);
}

// Finished rows go to a tile of TILE_ROWS rows, and from there whole to `out`.
template <int TILE_ROWS, int N>
__device__ __forceinline__ void put_rows(u8* tile, const float (&o)[N], int row,
                                         const float (&sum)[2]) {
    int lane = threadIdx.x % WARP, mine = row + lane / 4, at = lane % 4 * 4;
    float by[2] = {inverse_sum(sum[0]), inverse_sum(sum[1])};
#pragma unroll
    for (int j = 0; j < N; j += 2) {
        u32 pair = pair_bits(o[j] * by[j / 2 % 2], o[j + 1] * by[j / 2 % 2], T());
        *(u32*)(tile + chunk_offset<TILE_ROWS>(mine + j / 2 % 2 * 8, j / 4) + at) = pair;
    }
}
template <int TILE_ROWS>
__device__ __forceinline__ void store_rows(const Arguments& a, const QueryTile& w, const u8* tile,
                                           int tile_first, int first, int count, int thread,
                                           int num_threads) {
    for (int e = thread; e < count * CHUNKS; e += num_threads) {
        int row = first + e / CHUNKS, chunk = e % CHUNKS;
        if (tile_first + row < w.num_rows && chunk * 8 < a.head_dim)
            *(uint4*)(w.out + (i64)(tile_first + row) * a.num_heads * a.head_dim + chunk * 8) =
                *(const uint4*)(tile + chunk_offset<TILE_ROWS>(row, chunk));
    }
}
#endif

#if PATH == MMA_PATH
// Where the tile's keys lie, found one tile ahead.
__device__ __forceinline__ void find_key_rows(const Arguments& a, const QueryTile& w, int* key_rows,
                                          int first, int begin) {
    if (threadIdx.x < KEYS) key_rows[threadIdx.x] = key_row(a, w, first + threadIdx.x, begin);
}

__device__ __forceinline__ void load_keys(const Arguments& a, const QueryTile& w, const int* key_rows,
                                          u32 to) {
    const u8 *keys = (const u8*)w.keys, *values = (const u8*)(w.keys + w.values);
    int row_bytes = a.head_dim * sizeof(T), thread = threadIdx.x;
#pragma unroll
    for (int i = 0; i * COPIERS < KEYS * CHUNKS; i++) {
        int row = step_row(thread, i), chunk = step_chunk(thread, i);
        if (KEYS * CHUNKS % COPIERS && row >= KEYS) break;
        bool valid = key_rows[row] >= 0 && chunk * 8 < a.head_dim;
        i64 from = valid ? (i64)key_rows[row] * row_bytes + chunk * 16 : 0;
        u32 at = to + step_offset<KEYS>(thread, i);
        copy_chunk(at, keys + from, valid);
        copy_chunk(at + TILE_BYTES, values + from, valid);
    }
}

#ifdef KV_SCHEME
#include "attention/prefill_quantized_kv.cuh"
#endif

// The address of an even chunk plus a bit, in the row at `address`: `twist` is the row (mod 8) xor
// that bit.
template <int TILE_ROWS> __device__ __forceinline__ u32 twisted(u32 address, int twist, int chunk) {
    return address + chunk / 8 * TILE_ROWS * 128 + (chunk % 8 ^ twist) * 16;
}

// One warp's ROW_TILES × 16 queries, in `q` from row `row` on, with one tile of keys and values.
__device__ __forceinline__ void attend_tile(const Arguments& a, const QueryTile& w, u32 q, u32 keys,
                                            int row, int key, float (&o)[ROW_TILES][DIM / 2],
                                            float (&row_max)[ROW_TILES][2], float (&sum)[ROW_TILES][2],
                                            const float (*scales)[KEYS] = nullptr) {
    int lane = threadIdx.x % WARP, matrix = lane / 8;
    int low = matrix % 2, high = matrix / 2, within = lane % 8;
    // Matrices 0 … 3 are (rows, chunks) (0, 0), (8, 0), (0, 1), (8, 1) for queries and values, and
    // (0, 0), (0, 1), (8, 0), (8, 1) for keys.
    int by_column = (low * 8 + within) * 128, by_row = (high * 8 + within) * 128;
    u32 values = keys + TILE_BYTES;
    float s[ROW_TILES][KEYS / 2] = {};
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        u32 left[ROW_TILES][4];
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
            ldmatrix<false>(left[m], twisted<ROWS>(q + by_column + (row + m * 16) * 128,
                                                        high ^ within, 2 * step));
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
            u32 right[4];
            ldmatrix<false>(right, twisted<KEYS>(keys + by_row + j * 16 * 128, low ^ within,
                                                      2 * step));
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
                for (int n = 0; n < 2; n++)
                    mma<T>(&s[m][8 * j + 4 * n], left[m], right[2 * n], right[2 * n + 1]);
        }
    }
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
        float rescale[2];
#ifdef KV_SCHEME
        scale_columns(s[m], scales[0]);
#endif
        softmax_weights(a, w, s[m], row + m * 16, key, row_max[m], sum[m], rescale);
        rescale_rows(o[m], rescale);
#ifdef KV_SCHEME
        scale_columns(s[m], scales[1]);
#endif
    }
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        u32 left[ROW_TILES][4];
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) pack_operand<T>(left[m], s[m], step);
#pragma unroll
        for (int j = 0; j < DIM / 16; j++) {
            u32 right[4];
            ldmatrix<true>(right, twisted<KEYS>(values + by_column + step * 16 * 128,
                                                     high ^ within, 2 * j));
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
                for (int n = 0; n < 2; n++)
                    mma<T>(&o[m][8 * j + 4 * n], left[m], right[2 * n], right[2 * n + 1]);
        }
    }
}

__device__ __forceinline__ void attend(const Arguments& a, const QueryTile& w, u8* shared) {
    __shared__ int key_rows[2][KEYS];
    u32 q = shared_address(shared), ring = q + ROWS * ROW_BYTES;
    int row = threadIdx.x / WARP * ROW_TILES * 16;
    int begin, end;
    w.span(0, ROWS, begin, end);
    int first = begin / KEYS * KEYS;
    float o[ROW_TILES][DIM / 2] = {}, row_max[ROW_TILES][2], sum[ROW_TILES][2] = {};
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) row_max[m][0] = row_max[m][1] = -infinity();

    find_key_rows(a, w, key_rows[0], first, begin);
    find_key_rows(a, w, key_rows[1], first + KEYS, begin);
    load_queries<ROWS>(a, w, q, 0, threadIdx.x);
    __syncthreads();
#ifdef KV_SCHEME
    __shared__ __align__(16) float scales[2][2][KEYS];
    QuantizedTiles codes{ring, ring + 2 * TILE_BYTES, scales};
    codes.load(a, w, key_rows[0], 0);
#else
    load_keys(a, w, key_rows[0], ring);
#endif
    int stage = 0;
    for (int key = first; key < end; key += KEYS, stage ^= 1) {
        wait_for_copies();
        __syncthreads();  // this tile is there; the one before and its key_rows have been used
        int other = stage ^ 1;
#ifdef KV_SCHEME
        if (key + KEYS < end) codes.load(a, w, key_rows[other], other);
        codes.convert(stage);
        __syncthreads();
        u32 tile = ring;
        const float(*by)[KEYS] = scales[stage];
#else
        if (key + KEYS < end) load_keys(a, w, key_rows[other], ring + other * 2 * TILE_BYTES);
        u32 tile = ring + stage * 2 * TILE_BYTES;
        const float(*by)[KEYS] = nullptr;
#endif
        find_key_rows(a, w, key_rows[stage], key + 2 * KEYS, begin);
        int row_begin, row_end;  // not kept from tile to tile: registers are scarce
        w.span(row, ROW_TILES * 16, row_begin, row_end);
        if (key < row_end && key + KEYS > row_begin)
            attend_tile(a, w, q, tile, row, key, o, row_max, sum, by);
    }
    wait_for_copies();
    __syncthreads();  // all copies are done; only this warp reads its queries: output goes there
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) put_rows<ROWS>(shared, o[m], row + m * 16, sum[m]);
    __syncwarp();
    store_rows<ROWS>(a, w, shared, 0, row, ROW_TILES * 16, threadIdx.x % WARP, WARP);
}
#elif PATH == WGMMA_PATH && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "attention/prefill_wgmma.cuh"
#elif PATH == WGMMA_PATH
__device__ __forceinline__ void attend(const Arguments&, const QueryTile&, u8*) { __trap(); }
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill_attention_kernel(const T* q, const Stored* cache, const int* block_tables,
                         const int* query_starts, const int* context_lens, const int* prefix_lens,
                         const float* alibi_slopes, T* out, i64 q_stride, int num_seqs, int max_blocks,
                         int num_heads, int num_kv_heads, int head_dim, int log2_block_size, int window,
                         int num_tiles, int heads_together, float scale, float softcap
#ifdef KV_SCHEME
                         , const float* kv_scales
#endif
                         ) {
    extern __shared__ __align__(1024) u8 shared[];
    start_dependents();
    wait_for_upstream();
    Arguments a = {q,          cache,        block_tables, query_starts, context_lens,
                   prefix_lens, alibi_slopes,      out,          q_stride,     num_seqs,
                   max_blocks, num_heads,    num_kv_heads, head_dim,     log2_block_size,
                   window,     num_tiles,        heads_together, scale,      softcap,
#ifdef KV_SCHEME
                   kv_scales
#endif
    };
    __shared__ QueryTile work;
    if (find_tile<ROWS>(a, work)) attend(a, work, shared);
}
