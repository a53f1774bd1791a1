// latent_attention: attention of one query token of each sequence over cached latents (MLA), in absorbed form.
//
//   q_latent      T [num_heads, num_seqs, RANK]: queries times the matrix that makes keys of latents
//   q_rope        T [num_seqs, num_heads, ROPE], rows seq_stride and heads head_stride elements apart: rotated parts
//                 of the queries
//   cache         T [num_blocks, 1, block_size, row_size]: RANK elements of the latent, then ROPE of the rotated key
//   block_tables  int32 [num_seqs, max_blocks]; entries without a token may be anything
//   context_lens  int32 [num_seqs]: tokens in the cache, the query's own included
//   partials      fp32 [num_splits * num_seqs * num_heads * (RANK + 2)]: sums of latents [num_splits, num_seqs,
//                 num_heads, RANK], then two statistics [num_splits, num_seqs, num_heads]: the greatest score in units of log2, and the sum of the
//                 weights; with a sum of 0 the sums of latents are not written. latent_combine joins them.
//
// Scores are scale * (q_latent · latent + q_rope · key) (DeepSeek-V2, arXiv:2405.04434, section 2.1).
//
// Algorithm: a block takes HEADS heads of a sequence and a split of its tokens, TOKENS at a time, which all heads
// share. A ring of STAGES tiles is filled by asynchronous copies. Warps are a grid of heads, 16 each, by columns: for
// the scores (mma of queries and tokens) the columns are tokens, for the sums (mma of weights and latents)
// elements. Weights and row maxima are exchanged in shared memory.
//
// Defines: RANK, ROPE, HEADS, TOKENS, STAGES, NUM_WARPS.
// Requires: RANK and ROPE multiples of 32; row_size % 8 == 0; q aligned to 16 bytes; block_size a power of two.
// Launch: grid ceil(num_heads / HEADS) * num_splits * num_seqs, block NUM_WARPS * 32, dynamic shared memory as in
// ops/attention/latent_attention.py.
// Moves the rows of all tokens once for each HEADS heads.
// Accuracy: fp32 sums; attention weights are rounded to T. Test: tests/cuda/kernels/test_latent_attention.py
#include "attention/mma_softmax.cuh"

constexpr int THREADS = NUM_WARPS * WARP;
constexpr int ROW_WARPS = HEADS / 16, COLUMN_WARPS = NUM_WARPS / ROW_WARPS;
constexpr int OWN_TOKENS = TOKENS / COLUMN_WARPS, OWN_DIMS = RANK / COLUMN_WARPS;
constexpr int KEY = RANK + ROPE, CHUNKS = KEY / 8, PANELS = (CHUNKS + 7) / 8;
constexpr int TILE_BYTES = PANELS * TOKENS * 128, QUERY_BYTES = PANELS * HEADS * 128;
static_assert(OWN_TOKENS % 8 == 0 && OWN_DIMS % 16 == 0 && RANK % 32 == 0 && ROPE % 32 == 0);

struct Shared {
    float row_max[COLUMN_WARPS][HEADS], total[COLUMN_WARPS][HEADS];
};

// The tokens of a block, and where their rows are.
struct Tokens {
    const T* cache;
    const int* table;
    int end, log2_block_size, row_size;

    // Starts to copy the tile from token `first` on; rows from `end` on are zeros.
    __device__ __forceinline__ void load(u32 to, int first) const {
        constexpr int SHARERS = THREADS / TOKENS;  // threads of a row
        int row = threadIdx.x / SHARERS, token = first + row;
        bool valid = token < end;
        i64 block = valid ? table[token >> log2_block_size] : 0;
        i64 at = (block << log2_block_size) + (token & ((1 << log2_block_size) - 1));
        const T* from = cache + (valid ? at * row_size : 0);
#pragma unroll
        for (int i = 0; i * SHARERS < CHUNKS; i++) {
            int chunk = i * SHARERS + threadIdx.x % SHARERS;
            if (CHUNKS % SHARERS == 0 || chunk < CHUNKS)
                copy_chunk(to + chunk_offset<TOKENS>(row, chunk), from + chunk * 8, valid);
        }
    }
};

// Scores of the warp's 16 heads and OWN_TOKENS tokens.
__device__ __forceinline__ void score(float (&s)[OWN_TOKENS / 2], u32 queries, u32 keys, int head, int token) {
    int lane = threadIdx.x % WARP, matrix = lane / 8, within = lane % 8;
#pragma unroll
    for (int step = 0; step < KEY / 32; step++) {
        u32 left[2][4];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int row = head + matrix % 2 * 8 + within, chunk = step * 4 + k * 2 + matrix / 2;
            ldmatrix<false>(left[k], queries + chunk_offset<HEADS>(row, chunk));
        }
#pragma unroll
        for (int j = 0; j < OWN_TOKENS / 8; j++) {
            u32 right[4];
            ldmatrix<false>(right, keys + chunk_offset<TOKENS>(token + j * 8 + within, step * 4 + matrix));
            mma<T>(&s[4 * j], left[0], right[0], right[1]);
            mma<T>(&s[4 * j], left[1], right[2], right[3]);
        }
    }
}

// Adds weights · latents for the warp's 16 heads and OWN_DIMS elements.
__device__ __forceinline__ void add_latents(float (&o)[OWN_DIMS / 2], u32 weights, u32 latents, int head, int dim) {
    int lane = threadIdx.x % WARP, low = lane / 8 % 2, high = lane / 16, within = lane % 8;
#pragma unroll
    for (int step = 0; step < TOKENS / 16; step++) {
        u32 left[4];
        ldmatrix<false>(left, weights + chunk_offset<HEADS>(head + low * 8 + within, step * 2 + high));
#pragma unroll
        for (int j = 0; j < OWN_DIMS / 16; j++) {
            u32 right[4];
            int row = step * 16 + low * 8 + within;
            ldmatrix<true>(right, latents + chunk_offset<TOKENS>(row, dim / 8 + j * 2 + high));
            mma<T>(&o[8 * j], left, right[0], right[1]);
            mma<T>(&o[8 * j + 4], left, right[2], right[3]);
        }
    }
}

// Converts scores to weights in shared memory; older sums must be multiplied by `rescale`.
__device__ __forceinline__ void softmax_tile(float (&s)[OWN_TOKENS / 2], u8* weights, Shared& shared, float factor,
                                             int head, int column, int visible, float (&row_max)[2],
                                             float (&sum)[2], float (&rescale)[2]) {
    int lane = threadIdx.x % WARP, own = head + lane / 4, first = column * OWN_TOKENS + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float greatest = -infinity();
#pragma unroll
        for (int j = 0; j < OWN_TOKENS / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float& score = s[4 * j + 2 * r + i];
                score = first + 8 * j + i < visible ? score * factor : -infinity();
                greatest = fmaxf(greatest, score);
            }
        greatest = fmaxf(greatest, __shfl_xor_sync(ALL, greatest, 1));
        greatest = fmaxf(greatest, __shfl_xor_sync(ALL, greatest, 2));
        if (lane % 4 == 0) shared.row_max[column][own + 8 * r] = greatest;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float greatest = row_max[r];  // every tile has a visible token, so the new maximum is finite
#pragma unroll
        for (int w = 0; w < COLUMN_WARPS; w++) greatest = fmaxf(greatest, shared.row_max[w][own + 8 * r]);
        rescale[r] = exp2_fast(row_max[r] - greatest);
        row_max[r] = greatest;
        sum[r] *= rescale[r];
#pragma unroll
        for (int j = 0; j < OWN_TOKENS / 8; j++) {
            float low = exp2_fast(s[4 * j + 2 * r] - greatest), high = exp2_fast(s[4 * j + 2 * r + 1] - greatest);
            sum[r] += low + high;
            int token = first + 8 * j;
            *(u32*)(weights + chunk_offset<HEADS>(own + 8 * r, token / 8) + token % 8 * 2) =
                pair_bits(low, high, T());
        }
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS)
latent_attention_kernel(const T* q_latent, const T* q_rope, const T* cache, const int* block_tables,
                        const int* context_lens, float* partials, i64 seq_stride, int head_stride, int row_size,
                        int num_seqs, int num_heads, int log2_block_size, int max_blocks, int num_splits,
                        float scale) {
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ Shared shared;
    start_dependents();
    int head_tiles = (num_heads + HEADS - 1) / HEADS, first_head = blockIdx.x % head_tiles * HEADS;
    int split = blockIdx.x / head_tiles % num_splits, sequence = blockIdx.x / head_tiles / num_splits;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int head = warp % ROW_WARPS * 16, column = warp / ROW_WARPS;
    wait_for_upstream();
    int length = context_lens[sequence], tiles = (length + TOKENS - 1) / TOKENS;
    int own = (tiles + num_splits - 1) / num_splits, begin = split * own * TOKENS;
    int end = min(length, begin + own * TOKENS);
    i64 row = ((i64)split * num_seqs + sequence) * num_heads + first_head;
    float2* statistics = (float2*)(partials + (i64)num_splits * num_seqs * num_heads * RANK);
    if (begin >= end) {
        if (threadIdx.x < HEADS && first_head + threadIdx.x < num_heads)
            statistics[row + threadIdx.x] = {-infinity(), 0};
        return;
    }

    u32 queries = shared_address(dynamic), weights = queries + QUERY_BYTES, ring = weights + HEADS * 128;
    for (int i = threadIdx.x; i < HEADS * CHUNKS; i += THREADS) {
        int r = i / CHUNKS, chunk = i % CHUNKS;
        bool valid = first_head + r < num_heads;
        i64 h = valid ? first_head + r : 0;
        const T* from = chunk < RANK / 8 ? q_latent + (h * num_seqs + sequence) * RANK + chunk * 8
                                         : q_rope + sequence * seq_stride + h * head_stride + chunk * 8 - RANK;
        copy_chunk(queries + chunk_offset<HEADS>(r, chunk), from, valid);
    }
    Tokens tokens{cache, block_tables + (i64)sequence * max_blocks, end, log2_block_size, row_size};
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (begin + i * TOKENS < end) tokens.load(ring + i * TILE_BYTES, begin + i * TOKENS);
        commit_copies();  // the first group has the queries too
    }
    float o[OWN_DIMS / 2] = {}, row_max[2] = {-infinity(), -infinity()}, sum[2] = {};
    int stage = 0;
    for (int token = begin; token < end; token += TOKENS) {
        wait_for_groups<STAGES - 2>();
        __syncthreads();  // this tile has arrived, and the one before has been used
        int ahead = token + (STAGES - 1) * TOKENS, free = stage == 0 ? STAGES - 1 : stage - 1;
        if (ahead < end) tokens.load(ring + free * TILE_BYTES, ahead);
        commit_copies();
        u32 tile = ring + stage * TILE_BYTES;
        float s[OWN_TOKENS / 2] = {}, rescale[2];
        score(s, queries, tile, head, column * OWN_TOKENS);
        softmax_tile(s, dynamic + QUERY_BYTES, shared, scale * LOG2_E, head, column, end - token, row_max, sum,
                     rescale);
        rescale_rows(o, rescale);
        add_latents(o, weights, tile, head, column * OWN_DIMS);
        if (++stage == STAGES) stage = 0;
    }

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float total = sum[r];
        total += __shfl_xor_sync(ALL, total, 1);
        total += __shfl_xor_sync(ALL, total, 2);
        int at = head + lane / 4 + 8 * r;
        if (lane % 4 == 0) shared.total[column][at] = total;
        if (first_head + at >= num_heads) continue;
        float* to = partials + (row + at) * RANK + column * OWN_DIMS + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < OWN_DIMS / 8; j++) *(float2*)(to + 8 * j) = {o[4 * j + 2 * r], o[4 * j + 2 * r + 1]};
        if (column == 0 && lane % 4 == 0) shared.row_max[0][at] = row_max[r];
    }
    __syncthreads();
    if (threadIdx.x < HEADS && first_head + threadIdx.x < num_heads) {
        float total = 0;
#pragma unroll
        for (int w = 0; w < COLUMN_WARPS; w++) total += shared.total[w][threadIdx.x];
        statistics[row + threadIdx.x] = {shared.row_max[0][threadIdx.x], total};
    }
}
