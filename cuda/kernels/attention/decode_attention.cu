// decode_attention: softmax(scale q Kᵀ) V for one query token of each sequence, keys and values
// read once from a paged cache.
//
//   map       the cache as a matrix of rows of head_dim, in boxes of 128 bytes by a step's rows, or a
//             block's where it has fewer; before sm_90 it is not used
//   q         T [num_seqs, num_heads, head_dim], q_stride elements from row to row
//   cache     T [num_blocks, 2 * num_kv_heads, block_size, head_dim]: keys' heads, values' heads;
//             with KV_SCHEME they are bytes, and kv_scales fp32, one for each row (codes.cuh)
//   block_tables    int32 [num_seqs, max_blocks]: blocks of a sequence; entries of no visible token may
//             be anything
//   context_lens   int32 [num_seqs]: tokens in the cache, the query's own included; 0: zeros are written
//   alibi_slopes    fp32 [num_heads] or null: adds slope * (position - (length - 1)) (ALiBi; Press, 2021)
//   out       T [num_seqs, num_heads, head_dim]
//   partials  fp32: [num_seqs, num_heads, num_splits, head_dim / 4] × 4 sums, then × 2 statistics;
//             all bits set before and after
//   window    only the last `window` tokens are seen; 0: all
//   early_reads   context_lens, block_tables and all keys and values but the newest token's were written before the
//             current chain of dependent launches began: they are read without waiting
//   softcap   scores become softcap * tanh(score / softcap); 0: they stay    (Gemma 2, 2024)
//
// Split over the sequence as in Flash-Decoding (Dao et al., 2023), running maximum as in Milakov
// and Gimelshein (2018). Grid columns * num_splits * num_seqs, or more (those end), block
// NUM_WARPS * 32, dynamic shared memory NUM_WARPS * NUM_STAGES * TILE_CHUNKS * 16 bytes. Moves the keys and
// values of all visible tokens once for each ROWS query heads. The grid does not depend on the
// context_lens: blocks without work end.
//
// A warp takes 16 tokens at a time, or 32 (KV_SCHEME), and waits for no other: a ring of its own holds
// NUM_STAGES tiles of as many keys or values, brought by the copy engine, and a tile's place is requested
// anew as soon as it has been read: all of the ring is on its way while the warp waits. Tokens are the
// 16 rows of the matrix products and query heads their 8 columns (scores: K qᵀ; sums: Vᵀ wᵀ), so a group_size of up
// to 8 heads wastes little. fp32 has the same layout, computed without tensor cores.
//
// Sums in fp32; weights are rounded to T before they meet the values. Warps, then splits, are
// combined in a fixed order, the splits by the last one's block: bits do not depend on timing.
// Test: tests/cuda/kernels/test_decode_attention.py, relative 2^-8 (bf16), 2^-11 (fp16): the rounding of
// weights and of the result; 2e-6 (fp32): that of scores, and the order of sums.
//
// Compiled with HEAD_DIM (head_dim or more, a multiple of 16; the rest is padded_columns with zeros), ROWS
// (query heads a block, 8 or 16), NUM_WARPS, NUM_STAGES; KV_SCHEME for a cache in 8 bits: head_dim is then a
// multiple of 16, HEAD_DIM of 32, and T has 16 bits.
#include "attention/decode_splits.cuh"
#include "attention/decode_tiles.cuh"
#ifdef KV_SCHEME
#include "attention/decode_quantized_kv.cuh"
using WarpMma = QuantizedTileMma;
#else
using WarpMma = TileMma<T>;
using StageScales = NoScales;
#endif

// How the visible tokens [begin, end) are shared out: steps of 16 tokens go round the warps of the
// splits that are used: as few as give each warp one step, or one where a combination would load_if
// longer than more steps. Every split that is used has a step.
struct TokenRange {
    int begin, end, splits;
    int first, stride, count;  // this warp's steps: tokens first, first + stride, …; how many

    __device__ TokenRange(const BlockWork& part, int length, int window) {
        begin = window > 0 ? max(0, length - window) : 0;
        end = length;
        int start = begin / STEP, steps = (end + STEP - 1) / STEP - start;
        splits = min(part.num_splits, (steps + NUM_WARPS - 1) / NUM_WARPS);
        if (steps <= DIRECT_STEPS) splits = 1;
        int turn = splits * NUM_WARPS, mine = part.split * NUM_WARPS + warp();
        first = (start + mine) * STEP;
        stride = turn * STEP;
        count = mine < steps ? (steps - mine - 1) / turn + 1 : 0;
    }
    __device__ int token(int index) const { return first + index * stride; }
    // Whether the query's own token, the newest, is of this warp's step `index`.
    __device__ bool has_newest(int index) const {
        return index == count - 1 && token(index) + STEP >= end;
    }
    __device__ bool sees(int token) const { return (u32)(token - begin) < (u32)(end - begin); }
    __device__ bool sees_all(int index) const {
        return token(index) >= begin && token(index) + STEP <= end;
    }
};

// Brings the tiles of a warp's steps into its ring: tile 2 i has the keys of step i, tile 2 i + 1
// its values. Lane i keeps block numbers of coming steps: a step needs 1, or STEP / block_size when
// blocks are smaller than a step.
struct Loader {
    const TensorMap& map;
    const Stored* cache;
    const int* table;
    u64* full;  // a barrier for each stage
    TokenRange range;
    int early;  // lane i's entry of the table's first 32, which were loaded along with the length
    int kv_head, num_kv_heads, head_dim, log2_block_size;
    StageScales scales;
    int batch, next;  // lane i's entry for this batch of steps and for the next

    __device__ int log_entries() const { return max(0, LOG_STEP - log2_block_size); }  // a step's, log2
    __device__ int batch_steps() const { return WARP >> log_entries(); }

    __device__ void begin() {
        if (lane() < NUM_STAGES) barrier_init(full + lane(), COPY_ARRIVALS);
        barrier_init_fence();
        __syncwarp();
        batch = entry(0);
        next = entry(batch_steps());
    }

    // Lane i's entry for the batch of steps from `index` on; always one of a visible token.
    __device__ int entry(int index) const {
        int per_step = log_entries(), last = (range.end - 1) >> log2_block_size;
        int step_entry = range.token(index + (lane() >> per_step)) >> log2_block_size;
        int which = step_entry + (lane() & ((1 << per_step) - 1));
        which = min(max(which, range.begin >> log2_block_size), last);
        return last < WARP ? __shfl_sync(ALL, early, which) : table[which];
    }

    // Requests tile `number`, if there is one. Lanes below STEP / block_size have a block each.
    __device__ __forceinline__ void request(int number, int stage) {
        bool values = number % 2;
        int index = number / 2, log_parts = log_entries(), log_rows = min(log2_block_size, LOG_STEP);
        if (index >= range.count) return;
        if (!values && index && (index & (batch_steps() - 1)) == 0) {
            batch = next;
            next = entry(index + batch_steps());
        }
        int part = lane() & ((1 << log_parts) - 1);
        int block = __shfl_sync(ALL, batch, ((index << log_parts) + part) & (WARP - 1));
        int token = range.token(index) + (part << log_rows);
        int head = block * 2 * num_kv_heads + kv_head + (values ? num_kv_heads : 0);
        int row = (head << log2_block_size) + (token & ((1 << log2_block_size) - 1));
        copy_tile(stage, row, log_rows, full + stage);
    }

    // Copies a step's rows of the cache, 1 << log_rows of them from lane i's `row` on, to a stage's tile,
    // padded_columns up with zeros to 128 bytes, and completes one phase of `barrier`.
    __device__ __forceinline__ void copy_tile(int stage, int row, int log_rows, u64* barrier) {
#if __CUDA_ARCH__ >= 900
        if (lane() == 0) barrier_expect(barrier, TILE_CHUNKS * 16 + StageScales::bytes());
        if (lane() < STEP >> log_rows) {
            uint4* to = shared + tile(stage) + (lane() << log_rows) * 8;
#pragma unroll
            for (int i = 0; i < PANELS; i++)
                copy_box(to + i * PANEL, map, i * 8 * PER_CHUNK, row, barrier);
        }
        scales.request(stage, row, log_rows, barrier);
#else
#pragma unroll 1
        for (int chunk = lane(); chunk < STEP * CHUNKS; chunk += WARP) {
            int r = chunk / CHUNKS, column = chunk % CHUNKS, element = column * PER_CHUNK;
            int from = __shfl_sync(ALL, row, r >> log_rows) + (r & ((1 << log_rows) - 1));
            copy_16_async(shared + tile(stage) + chunk_at(r, column),
                          cache + (i64)from * head_dim + element, element < head_dim);
        }
        scales.request(stage, row, log_rows, barrier);
        arrive_after_copies(barrier);
#endif
    }

    __device__ void clear_unseen(int index, int stage) const {
        scales.clear_unseen(stage, range.token(index), range);
        copy_engine_fence();
        __syncwarp();
    }

    __device__ static int tile(int stage) { return warp() * RING_CHUNKS + stage * TILE_CHUNKS; }
};

// Softmax in powers of two with a running maximum; a lane keeps those of its heads 2t and 2t+1,
// the totals over its own tokens only.
struct Softmax {
    float factor, log2_softcap;
    bool has_alibi;
    float slope[HEAD_TILES][2], row_max[HEAD_TILES][2], total[HEAD_TILES][2];

    __device__ Softmax(float scale, float softcap, const float* alibi_slopes, const Heads& heads) {
        log2_softcap = softcap * LOG2_E;
        has_alibi = alibi_slopes;
        factor = LOG2_E * (softcap > 0 ? 2 * scale / softcap : scale);
#pragma unroll
        for (int i = 0; i < HEAD_TILES * 2; i++) {
            int row = i / 2 * 8 + lane() % 4 * 2 + i % 2;
            slope[i / 2][i % 2] =
                alibi_slopes && row < heads.count ? alibi_slopes[heads.first + row] * LOG2_E : 0.f;
            row_max[i / 2][i % 2] = -infinity();
            total[i / 2][i % 2] = 0;
        }
    }

    __device__ float logit(float product, float slope, int token, const TokenRange& range) const {
        float value = product * factor;
        // tanh(x) = 1 - 2 / (exp(2x) + 1), absolutely as exact as fp32
        if (log2_softcap > 0) value = log2_softcap * (1 - __fdividef(2.f, exp2f(value) + 1));
        value += slope * (token - (range.end - 1));
        return range.sees(token) ? value : -infinity();
    }

    // Makes logits of the products of step `index`.
    __device__ __forceinline__ void adjust(float (&c)[TOKEN_TILES][HEAD_TILES][4], int index,
                                           const TokenRange& range) const {
        float(&all)[TOKEN_TILES * HEAD_TILES][4] = reinterpret_cast<float(&)[TOKEN_TILES * HEAD_TILES][4]>(c);
        if (range.sees_all(index) && log2_softcap == 0 && !has_alibi) {
#pragma unroll
            for (int i = 0; i < TOKEN_TILES * HEAD_TILES * 4; i++) all[i / 4][i % 4] *= factor;
            return;
        }
#pragma unroll
        for (int i = 0; i < TOKEN_TILES * HEAD_TILES * 4; i++) {
            int token = range.token(index) + i / 4 / HEAD_TILES * 16 + lane() / 4 + i % 4 / 2 * 8;
            all[i / 4][i % 4] = logit(all[i / 4][i % 4], slope[i / 4 % HEAD_TILES][i % 2], token, range);
        }
    }

    // Makes weights of logits; `rescale` is what older sums have to be multiplied by: true if by
    // anything but 1. Every step has a visible token, so the new maximum is finite.
    __device__ __forceinline__ bool softmax_weights(float (&c)[TOKEN_TILES][HEAD_TILES][4], float (&rescale)[HEAD_TILES][2]) {
        bool grows = false;
#pragma unroll
        for (int i = 0; i < HEAD_TILES * 2; i++) {
            int n = i / 2, h = i % 2;
            float largest = row_max[n][h];
#pragma unroll
            for (int part = 0; part < TOKEN_TILES; part++)
                largest = fmaxf(largest, fmaxf(c[part][n][h], c[part][n][h + 2]));
#pragma unroll
            for (int lanes = 4; lanes < WARP; lanes *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, lanes));
            rescale[n][h] = exp2_fast(row_max[n][h] - largest);
            grows |= largest > row_max[n][h];
            row_max[n][h] = largest;
            total[n][h] *= rescale[n][h];
#pragma unroll
            for (int part = 0; part < TOKEN_TILES; part++) {
                c[part][n][h] = exp2_fast(c[part][n][h] - largest);
                c[part][n][h + 2] = exp2_fast(c[part][n][h + 2] - largest);
                total[n][h] += c[part][n][h] + c[part][n][h + 2];
            }
        }
        return __any_sync(ALL, grows);
    }
};

// What a warp has summed over its steps.
struct Attention {
    Softmax softmax;
    float sum[HEAD_DIM / 16][HEAD_TILES][4];

    // Fills the ring. Older keys and values may be on their way while the upstream kernel makes the
    // newest.
    __device__ static void begin(Loader& loader) {
#pragma unroll 1
        for (int i = 0; i < NUM_STAGES; i++) {
            if (loader.range.has_newest(i / 2)) wait_for_upstream();
            loader.request(i, i);
        }
    }

    // A tile's stage is requested anew as soon as all lanes have read it.
    __device__ void run(Loader& loader, const WarpMma& products) {
        const TokenRange& range = loader.range;
        int stage = 0;
        u32 parity = 0;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 4 * HEAD_TILES; i++)
            sum[i / (4 * HEAD_TILES)][i / 4 % HEAD_TILES][i % 4] = 0;
        for (int index = 0; index < range.count; index++) {
            float c[TOKEN_TILES][HEAD_TILES][4] = {}, rescale[HEAD_TILES][2];
            barrier_wait(loader.full + stage, parity);
#pragma unroll
            for (int part = 0; part < TOKEN_TILES; part++)
                products.scores(Loader::tile(stage) + part * TOKEN_TILE_CHUNKS, c[part]);
            loader.scales.apply(stage, c);
            __syncwarp();
            loader.request(2 * index + NUM_STAGES, stage);
            if (++stage == NUM_STAGES) stage = 0, parity ^= 1;
            softmax.adjust(c, index, range);
            if (softmax.softmax_weights(c, rescale)) scale_sum(rescale);
            barrier_wait(loader.full + stage, parity);
            if (!range.sees_all(index)) loader.clear_unseen(index, stage);
            loader.scales.apply(stage, c);
#pragma unroll
            for (int part = 0; part < TOKEN_TILES; part++)
                products.add_values(Loader::tile(stage) + part * TOKEN_TILE_CHUNKS, c[part], sum);
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

constexpr int SUM_PITCH = HEAD_DIM + 4;  // floats; lanes of a warp write to different banks
static_assert(ROWS * SUM_PITCH * 4 <= RING_CHUNKS * 16);

// What all threads of a block range besides the rings.
struct Statistics {
    float row_max[NUM_WARPS][ROWS], total[NUM_WARPS][ROWS];
};

// Lays a warp's sums down in its ring, which it has emptied, and its maxima and totals beside.
__device__ void store_warp_sums(const Attention& attention, Statistics& statistics) {
    float* sums = reinterpret_cast<float*>(shared + warp() * RING_CHUNKS);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 4 * HEAD_TILES; i++) {
        int row = i / 4 % HEAD_TILES * 8 + lane() % 4 * 2 + i % 2;
        int dim = i / (4 * HEAD_TILES) * 16 + i % 4 / 2 * SUM_STEP + lane() / 4 * LANE_STEP;
        float sum = attention.sum[i / (4 * HEAD_TILES)][i / 4 % HEAD_TILES][i % 4];
        sums[row * SUM_PITCH + dim] = sum * StageScales::SUM_SCALE;
    }
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

// Four numbers of a row, from all warps of the block.
__device__ __forceinline__ Sum combine_warps(const Statistics& statistics, int row, int quad) {
    Sum sum{statistics.row_max[0][row]};
#pragma unroll
    for (int w = 1; w < NUM_WARPS; w++) sum.row_max = fmaxf(sum.row_max, statistics.row_max[w][row]);
#pragma unroll
    for (int w = 0; w < NUM_WARPS; w++) {  // a warp without steps has a factor of 0
        const float* sums = reinterpret_cast<const float*>(shared + w * RING_CHUNKS);
        sum.add({statistics.row_max[w][row], statistics.total[w][row]},
                reinterpret_cast<const float4*>(sums + row * SUM_PITCH)[quad]);
    }
    return sum;
}

// Combines the block's warps, and in the last split all splits. It waits for blocks with lower
// numbers only, which have been started before it and wait for nobody.
__device__ void combine(const Statistics& statistics, const Heads& heads, int split, int splits,
                        const Partials& partials, T* out) {
    int items = heads.count * partials.quads;
    bool is_last = split == splits - 1;
    // Whole warps, of which the last lanes may repeat others.
    for (int i = threadIdx.x; i - lane() < items; i += THREADS) {
        int item = i < items ? i : 0, row = item / partials.quads, quad = item % partials.quads;
        i64 head = heads.first_row + row;
        Sum sum = combine_warps(statistics, row, quad);
        if (is_last) partials.collect(head, i < items ? splits - 1 : 0, quad, sum);
        if (i >= items) continue;
        if (is_last) store(out + (head * partials.quads + quad) * 4, 1 / sum.total, sum.values);
        else partials.store(partials.at(head, split, quad), sum);
    }
}

__device__ void write_zeros(const Heads& heads, int head_dim, T* out) {
    for (int item = threadIdx.x; item < heads.count * head_dim / 4; item += THREADS)
        store(out + heads.first_row * head_dim + item * 4, 0, float4{});
}

extern "C" __global__ void __launch_bounds__(THREADS)
decode_attention_kernel(const __grid_constant__ TensorMap map, const T* q, const Stored* cache,
                        const int* block_tables, const int* context_lens, const float* alibi_slopes, T* out,
                        float* partial, i64 q_stride,
                        int num_kv_heads, int group_size, int head_dim, int log2_block_size, int max_blocks,
                        int window, int early_reads, int num_splits, int num_seqs, float scale,
                        float softcap
#ifdef KV_SCHEME
                        , const float* kv_scales
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
    BlockWork part(num_kv_heads * ((group_size + ROWS - 1) / ROWS), num_splits, num_seqs);
    if (!early_reads || part.sequence >= num_seqs) wait_for_upstream();
    if (part.sequence >= num_seqs) return;
    Heads heads(part, num_kv_heads * group_size, group_size);
    const int* table = block_tables + (i64)part.sequence * max_blocks;
    // The length and the first block numbers are loaded at once.
    int early = lane() < max_blocks ? table[lane()] : 0, length = context_lens[part.sequence];
    TokenRange range(part, length, window);
    if (length <= 0 || part.split >= range.splits) {
        wait_for_upstream();
        if (length <= 0 && part.split == 0) write_zeros(heads, head_dim, out);
        return;
    }
    Loader loader{map, cache, table, full[warp()], range, early,
                  heads.kv_head, num_kv_heads, head_dim, log2_block_size, scales};
    loader.begin();
    Attention::begin(loader);
    wait_for_upstream();
    WarpMma products(q + part.sequence * q_stride + heads.first * head_dim, heads.count,
                          head_dim);
    Attention attention{Softmax(scale, softcap, alibi_slopes, heads)};
    attention.run(loader, products);
    store_warp_sums(attention, statistics);
    __syncthreads();
    Partials partials(part, partial, num_kv_heads * group_size, head_dim);
    combine(statistics, heads, part.split, range.splits, partials, out);
}
