// decode_attention: softmax(scale q Kᵀ) V for one query token of each sequence; reads the keys and values of
// the paged cache once.
//
//   map           tensor map of the cache as rows of head_dim, in boxes of 128 bytes by a step's rows, or a
//                 block's if it has fewer; not used before sm_90
//   q             T [num_seqs, num_heads, head_dim], rows q_stride elements apart
//   cache         int8 [num_blocks, 2 * num_kv_heads, block_size, head_dim / 2] with KV_SCHEME KV_INT5,
//                 int8 [num_blocks, 2 * num_kv_heads, block_size, head_dim] with KV_SCHEME,
//                 else T [num_blocks, 2 * num_kv_heads, block_size, head_dim]: key heads first; with KV_INT5 rows
//                 are rotated, q is rotated too, and the output is rotated back
//   kv_scales     fp32 [num_blocks, 2 * num_kv_heads, block_size]: with KV_SCHEME (quantized_kv.cuh)
//   key_bits      int8 [num_blocks, num_kv_heads, block_size, head_dim / 4]: with KV_INT5 (int5_kv.cuh)
//   value_bits    int8 [num_blocks, num_kv_heads, block_size, head_dim / 8]
//   block_tables  int32 [num_seqs, max_blocks]; entries without a visible token may be anything
//   context_lens  int32 [num_seqs]: tokens in the cache, the query's own included; 0 writes zeros
//   alibi_slopes  fp32 [num_heads] or null: adds slope * (position - (context_len - 1)) (ALiBi; Press, 2021)
//   sinks         fp32 [num_heads] or null: a head's score of one more key, whose value is 0 (Xiao et al., 2023)
//   out           T [num_seqs, num_heads, head_dim]
//   workspace     fp32 [workspace_size]: [num_seqs, num_heads, num_splits, head_dim / 4] × 4 sums, then × 2
//                 statistics; all elements are the sentinel before and after
//   group_size    query heads on each KV head
//   window        only the last `window` tokens are visible; 0: all
//   chunk         of these only the tokens from the last multiple of `chunk` on, up to the query; 0: all (Llama 4)
//   first_key     of these only the tokens from this one on, and the query's own; 0: all
//   num_splits    blocks of a sequence and column; short sequences use few_splits of them
//   together      with HEAD_DIM from 256 on: all splits of a sequence combine the results, not the last one alone
//   new_tokens    context_lens, block_tables, and all keys and values except those of this many newest tokens
//                 were written before the current chain of dependent launches: they are read without waiting;
//                 0: nothing is
//   q_norm, k_norm           T [head_dim] or null: with ROTARY, see decode_rotary.cuh: the kernel normalizes and rotates
//                 q, and stores the newest key and value, which follow q in memory as in `rotary`, in the cache;
//                 new_tokens is 1
//   cos_sin       fp32 [max_positions, rotary_dim] or null
//   positions, slot_mapping  int32 [num_seqs]
//   softcap       scores become softcap * tanh(score / softcap); 0: off    (Gemma 2, 2024)
//
// Algorithm: Flash-Decoding (Dao et al., 2023) with an online softmax (Milakov and Gimelshein, 2018). A
// warp takes 16 tokens at a time, 32 with KV_SCHEME or 64 with KV_INT5, independently of other warps. Its ring holds
// NUM_STAGES tiles of keys or values, brought by the copy engine; a tile's stage is refilled as soon as it
// has been read, so the whole ring is in flight while the warp waits. Tokens are the 16 rows of the mma and
// query heads its 8 columns (scores: K qᵀ; sums: Vᵀ wᵀ), so a group of up to 8 heads wastes little. fp32 has
// the same layout without tensor cores. Warps, then splits, are combined in a fixed order, the splits by
// the block of the last one or, `together`, by all of them, so the result does not depend on timing.
//
// Defines: HEAD_DIM (at least head_dim, a multiple of 16, padded with zeros), ROWS (query heads of a block, 8
// or 16), NUM_WARPS, NUM_STAGES, KV_SCHEME.
// Requires: `together` only if all blocks of a sequence run at the same time; head_dim % 8 == 0; block_size a power of two from 4 on; with KV_SCHEME 16-bit T, head_dim a
// multiple of 16 and HEAD_DIM of 32; with KV_INT5 head_dim = HEAD_DIM, 64 or 128.
// Launch: grid columns * num_splits * num_seqs, or more; blocks without work end, so the grid does not depend
// on context_lens. Block NUM_WARPS * 32, dynamic shared memory NUM_WARPS * NUM_STAGES * tile bytes.
// Moves the keys and values of all visible tokens once for each ROWS query heads.
// Accuracy: fp32 sums; attention weights are rounded to T: relative 2^-8 (bf16), 2^-11 (fp16): weights and
// result rounded once each; 2e-6 (fp32). Test: tests/cuda/kernels/test_decode_attention.py
#include "attention/decode_softmax.cuh"
#ifdef PACKED_KV
#include "attention/hadamard.cuh"
#endif
#ifdef ROTARY
#include "attention/decode_rotary.cuh"
constexpr bool HAS_ROTARY = true;
#else
constexpr bool HAS_ROTARY = false;
// In place of that of decode_rotary.cuh: the newest key and value are in the cache.
struct Newest {
    __device__ void put(int step, int tile, int which) const {}
};
#endif

// A warp's attention over its steps.
struct Attention {
    Softmax softmax;
    float sum[HEAD_DIM / 16][HEAD_TILES][4];

    // Fills the ring. With new_tokens, older keys and values are loaded while the upstream kernel computes the
    // newest.
    __device__ static void begin(Loader& loader, int new_tokens) {
#pragma unroll 1
        for (int i = 0; i < NUM_STAGES; i++) {
            if (!HAS_ROTARY && loader.range.has_new(i / 2, new_tokens)) wait_for_upstream();
            loader.request(i, i);
        }
    }

    // Processes all steps. A stage is refilled as soon as all lanes have read it.
    __device__ void run(Loader& loader, const WarpMma& products, const Newest& newest) {
        const TokenRange& range = loader.range;
        int stage = 0;
        u32 parity = 0;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 4 * HEAD_TILES; i++)
            sum[i / (4 * HEAD_TILES)][i / 4 % HEAD_TILES][i % 4] = 0;
        for (int index = 0; index < range.count; index++) {
            float c[TOKEN_TILES][HEAD_TILES][4] = {}, rescale[HEAD_TILES][2];
            barrier_wait(loader.full + stage, parity);
            newest.put(index, Loader::tile(stage), 0);
#pragma unroll
            for (int work = 0; work < TOKEN_TILES; work++)
                products.scores(Loader::tile(stage), work, c[work]);
            loader.scales.apply(stage, c);
            __syncwarp();
            loader.request(2 * index + NUM_STAGES, stage);
            if (++stage == NUM_STAGES) stage = 0, parity ^= 1;
            softmax.adjust(c, index, range);
            if (softmax.softmax_weights(c, rescale)) scale_sum(rescale);
            barrier_wait(loader.full + stage, parity);
            newest.put(index, Loader::tile(stage), 1);
            if (!range.sees_all(index)) loader.clear_unseen(index, stage);
            loader.scales.apply(stage, c);
#pragma unroll
            for (int work = 0; work < TOKEN_TILES; work++)
                products.add_values(Loader::tile(stage), work, c[work], sum);
            __syncwarp();
            loader.request(2 * index + 1 + NUM_STAGES, stage);
            if (++stage == NUM_STAGES) stage = 0, parity ^= 1;
        }
    }

    __device__ void scale_sum(const float (&factor)[HEAD_TILES][2]) {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 4 * HEAD_TILES; i++)
            sum[i / (4 * HEAD_TILES)][i / 4 % HEAD_TILES][i % 4] *= factor[i / 4 % HEAD_TILES][i % 2];
    }
};

// Of 128 registers, so that the next kernel's block fits beside.
#ifdef PACKED_KV
constexpr int MIN_BLOCKS = ROWS == 8 && THREADS <= 256 ? 2 : 1;
#else
constexpr int MIN_BLOCKS = HAS_ROTARY && ROWS == 8 && HEAD_DIM <= 128 && sizeof(T) == 2 ? 2 : 1;
#endif
constexpr int SUM_PITCH = HEAD_DIM + 4;  // floats; padded so that lanes write to different banks
static_assert(ROWS * SUM_PITCH * 4 <= RING_CHUNKS * 16);

// Statistics of all warps of a block.
struct Statistics {
    float row_max[NUM_WARPS][ROWS], total[NUM_WARPS][ROWS];
};

// Stores a warp's sums in its empty ring, and its maxima and totals.
__device__ void store_warp_sums(const Attention& attention, Statistics& statistics) {
    float* sums = reinterpret_cast<float*>(shared + warp() * RING_CHUNKS);
#ifdef PACKED_KV
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16 * HEAD_TILES; i++) {
        int n = i % HEAD_TILES, half = i / HEAD_TILES % 2, quad = i / HEAD_TILES / 2;
        const float(&low)[4] = attention.sum[2 * quad][n], (&high)[4] = attention.sum[2 * quad + 1][n];
        int row = n * 8 + lane() % 4 * 2 + half, dim = lane() / 4 * LANE_STEP + quad * 4;
        *reinterpret_cast<float4*>(sums + row * SUM_PITCH + dim) = {low[half], low[half + 2], high[half],
                                                                    high[half + 2]};
    }
#else
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 4 * HEAD_TILES; i++) {
        int row = i / 4 % HEAD_TILES * 8 + lane() % 4 * 2 + i % 2;
        int dim = i / (4 * HEAD_TILES) * TILE_STEP + i % 4 / 2 * SUM_STEP + lane() / 4 * LANE_STEP;
        float sum = attention.sum[i / (4 * HEAD_TILES)][i / 4 % HEAD_TILES][i % 4];
        sums[row * SUM_PITCH + dim] = sum * StageScales::SUM_SCALE;
    }
#endif
#pragma unroll
    for (int i = 0; i < HEAD_TILES * 2; i++) {
        int row = i / 2 * 8 + lane() % 4 * 2 + i % 2;
        float total = attention.softmax.total[i / 2][i % 2];
#pragma unroll
        for (int lanes = 4; lanes < WARP; lanes *= 2) total += __shfl_xor_sync(ALL, total, lanes);
        if (lane() < 4) {
            statistics.row_max[warp()][row] = attention.softmax.row_max[i / 2][i % 2];
            statistics.total[warp()][row] = total;
        }
    }
}

// Combines four dimensions of a row from all warps of the block.
__device__ __forceinline__ Sum combine_warps(const Statistics& statistics, int row, int quad) {
    Sum sum{statistics.row_max[0][row]};
#pragma unroll
    for (int w = 1; w < NUM_WARPS; w++) sum.row_max = fmaxf(sum.row_max, statistics.row_max[w][row]);
#pragma unroll
    for (int w = 0; w < NUM_WARPS; w++) {  // the factor of a warp without steps is 0
        const float* sums = reinterpret_cast<const float*>(shared + w * RING_CHUNKS);
        sum.add({statistics.row_max[w][row], statistics.total[w][row]},
                reinterpret_cast<const float4*>(sums + row * SUM_PITCH)[quad]);
    }
    return sum;
}

#ifdef PACKED_KV
// Rotates a row of the output, of which neighboring lanes have four elements each, back from the cache's
// rotation. Whole warps call it; they have whole rows.
__device__ __forceinline__ float4 rotate_back(const float4& v) {
    static_assert(HEAD_DIM / 4 <= WARP);
    float x[4] = {v.x, v.y, v.z, v.w};
    hadamard(x, HEAD_DIM / 4, ALL);
    float by = rsqrtf(HEAD_DIM);
    return {x[0] * by, x[1] * by, x[2] * by, x[3] * by};
}
#endif

// Combines the block's warps, and in the last split all splits. That block waits only for blocks with lower
// numbers, which started before it and do not wait.
__device__ void combine(const Statistics& statistics, const Heads& heads, int split, int splits,
                        const Partials& partials, const float* sinks, T* out) {
    int items = heads.count * partials.quads;
    bool is_last = split == splits - 1;
    // Whole warps; the last lanes may repeat item 0.
    for (int i = threadIdx.x; i - lane() < items; i += THREADS) {
        int item = i < items ? i : 0, row = item / partials.quads, quad = item % partials.quads;
        i64 head = heads.first_row + row;
        Sum sum = combine_warps(statistics, row, quad);
        if (is_last) partials.collect(head, i < items ? splits - 1 : 0, quad, sum);
#ifdef PACKED_KV
        if (is_last) sum.values = rotate_back(sum.values);
#endif
        if (i >= items) continue;
        // A sink far above the maximum makes the total infinite and the result 0, as it should be.
        if (is_last && sinks) sum.total += exp2f(sinks[heads.first + row] * LOG2_E - sum.row_max);
        if (is_last) store(out + (head * partials.quads + quad) * 4, 1 / sum.total, sum.values);
        else partials.store(partials.at(head, split, quad), sum);
    }
}

#if HEAD_DIM >= 256
// Combines the block's warps, then each of the splits combines its part of the rows. With large heads the last split
// alone would need many rounds. The blocks of a sequence wait for each other, so all of them must run at the same time.
__device__ void combine_together(const Statistics& statistics, const Heads& heads, int split, int splits,
                                 const Partials& partials, const float* sinks, T* out) {
    int items = heads.count * partials.quads, each = (items + splits - 1) / splits;
    for (int i = threadIdx.x; i < items; i += THREADS) {
        int row = i / partials.quads, quad = i % partials.quads;
        partials.store(partials.at(heads.first_row + row, split, quad), combine_warps(statistics, row, quad));
    }
    int begin = split * each, end = min(begin + each, items);
    for (int i = begin + threadIdx.x; i - lane() < end; i += THREADS) {
        int item = min(i, end - 1), row = item / partials.quads, quad = item % partials.quads;
        i64 head = heads.first_row + row;
        Sum sum{-infinity()};
        partials.collect(head, i < end ? splits : 0, quad, sum);
        if (i >= end) continue;
        if (sinks) sum.total += exp2f(sinks[heads.first + row] * LOG2_E - sum.row_max);
        store(out + (head * partials.quads + quad) * 4, 1 / sum.total, sum.values);
    }
}
#endif

__device__ void write_zeros(const Heads& heads, int head_dim, T* out) {
    for (int item = threadIdx.x; item < heads.count * head_dim / 4; item += THREADS)
        store(out + heads.first_row * head_dim + item * 4, 0, float4{});
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
decode_attention_kernel(const __grid_constant__ TensorMap map, const T* q, const Stored* cache,
                        const int* block_tables, const int* context_lens, const float* alibi_slopes,
                        const float* sinks, T* out, float* workspace, i64 q_stride,
                        int num_kv_heads, int group_size, int head_dim, int log2_block_size, int max_blocks,
                        int window, int chunk, int first_key, int new_tokens, int num_splits, int few_splits, int together,
                        int num_seqs, float scale, float softcap
#ifdef KV_SCHEME
                        , const float* kv_scales
#if KV_SCHEME == KV_INT5
                        , const u8* key_bits, const u8* value_bits
#endif
#endif
#ifdef ROTARY
                        , const T* q_norm, const T* k_norm, const float* cos_sin, const int* positions,
                        const int* slot_mapping, int rotary_dim, int num_gate_heads, float eps, float weight_offset
#endif
                        ) {
#ifdef KV_SCHEME
    __shared__ __align__(16) float stage_scales[NUM_WARPS][NUM_STAGES][STEP];
    StageScales scales{kv_scales, stage_scales[warp()]};
#else
    StageScales scales;
#endif
    __shared__ Statistics statistics;
    __shared__ u64 full[NUM_WARPS][NUM_STAGES];
    start_dependents();
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) prefetch_map(map);
#endif
    BlockWork work(num_kv_heads * ((group_size + ROWS - 1) / ROWS), num_splits, few_splits, num_seqs);
    if (!new_tokens || work.sequence >= num_seqs) wait_for_upstream();
    if (work.sequence >= num_seqs) return;
    Heads heads(work, num_kv_heads * group_size, group_size);
    const int* table = block_tables + (i64)work.sequence * max_blocks;
    // The context length and the first block numbers are loaded together.
    int early = lane() < max_blocks ? table[lane()] : 0, length = context_lens[work.sequence];
    TokenRange range(work, length, window, chunk, first_key);
    if (length <= 0 || work.split >= range.splits) {
        // Blocks that ended early would leave two blocks of the next matmul to some multiprocessors, none to others.
        wait_for_upstream();
        if (length <= 0 && work.split == 0) write_zeros(heads, head_dim, out);
        return;
    }
    Loader loader{map, cache, table, full[warp()], range, early,
                  heads.kv_head, num_kv_heads, head_dim, log2_block_size, scales
#ifdef PACKED_KV
                  , key_bits, value_bits
#endif
    };
    loader.begin();
    Attention::begin(loader, new_tokens);
#ifdef ROTARY
    __shared__ __align__(16) RotatedHeads rotated;
    RotaryArguments how{q_norm, k_norm, cos_sin, positions, slot_mapping, rotary_dim, num_gate_heads, eps, weight_offset};
    HeadRotation rotation(how, work.sequence);
    const T* qkv = q + work.sequence * q_stride;
#pragma unroll 1
    for (bool is_real = !warms_instructions();; is_real = true) {
        if (is_real) wait_for_upstream();
        rotation.write(how, qkv, heads, num_kv_heads * group_size, num_kv_heads, rotated, is_real);
        __syncthreads();
        if (is_real) break;
    }
    Newest newest(rotated, range);
    if (heads.first == heads.kv_head * group_size)
        newest.store_at(rotation.slot, (T*)cache, heads.kv_head, num_kv_heads, log2_block_size);
    WarpMma products(rotated[0], heads.count, HEAD_DIM);
#else
    Newest newest;
    wait_for_upstream();
    WarpMma products(q + work.sequence * q_stride + heads.first * head_dim, heads.count, head_dim);
#endif
    Attention attention{Softmax(scale, softcap, alibi_slopes, heads)};
#ifdef PACKED_KV
    products.multiply_by(attention.softmax.factor);
#endif
    attention.run(loader, products, newest);
    store_warp_sums(attention, statistics);
    __syncthreads();
    Partials partials(work, workspace, num_kv_heads * group_size, head_dim);
#if HEAD_DIM >= 256
    if (together && range.splits > 1) {
        combine_together(statistics, heads, work.split, range.splits, partials, sinks, out);
        return;
    }
#endif
    combine(statistics, heads, work.split, range.splits, partials, sinks, out);
}
