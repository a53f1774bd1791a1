// The visible tokens of a sequence, and the loads of their keys and values into a warp's ring.
#pragma once
#include "attention/decode_splits.cuh"
#include "attention/decode_tiles.cuh"
#ifdef PACKED_KV
#include "attention/decode_int5_kv.cuh"
#include "attention/decode_scales.cuh"
using WarpMma = PackedTileMma;
#elif defined(KV_SCHEME)
#include "attention/decode_quantized_kv.cuh"
#include "attention/decode_scales.cuh"
using WarpMma = QuantizedTileMma;
constexpr bool SCALED_QUERY = false;
#else
constexpr bool SCALED_QUERY = false;
using WarpMma = TileMma<T>;
using StageScales = NoScales;
#endif

constexpr int LONG_STEPS = 16;  // of a warp, from which on sequences may use more than few_splits

// The visible tokens [begin, end) and this warp's work of them. Steps of STEP tokens are dealt to the warps of
// the splits in turn. The number of splits in use gives BUSY_WARPS warps of each a step, or is 1 if combining would
// take longer than more steps. Every split in use has a step.
struct TokenRange {
    int begin, end, splits;
    int first, stride, count;  // this warp's steps: their first tokens, and how many

    __device__ TokenRange(const BlockWork& work, int length, int window, int chunk, int first_key) {
        begin = max(0, min(first_key, length - 1));
        if (window > 0) begin = max(begin, length - window);
        if (chunk > 0 && length > chunk) begin = max(begin, (length - 1) / chunk * chunk);
        end = length;
        int start = begin / STEP, steps = (end + STEP - 1) / STEP - start;
        splits = min(work.num_splits, (steps + BUSY_WARPS - 1) / BUSY_WARPS);
        if (splits > work.few_splits)
            splits = max(work.few_splits, min(splits, steps / (NUM_WARPS * LONG_STEPS)));
        if (steps <= DIRECT_STEPS) splits = 1;
        int turn = splits * NUM_WARPS;
        int own = BUSY_WARPS < NUM_WARPS ? warp() * splits + work.split : work.split * NUM_WARPS + warp();
        first = (start + own) * STEP;
        stride = turn * STEP;
        count = own < steps ? (steps - own - 1) / turn + 1 : 0;
    }
    __device__ int token(int index) const { return first + index * stride; }
    // Returns whether this warp's step `index` has one of the newest tokens, of which the last is the query's.
    __device__ bool has_new(int index, int new_tokens) const {
        return index < count && token(index) + STEP > end - new_tokens;
    }
    __device__ bool sees(int token) const { return (u32)(token - begin) < (u32)(end - begin); }
    __device__ bool sees_all(int index) const {
        return token(index) >= begin && token(index) + STEP <= end;
    }
};

// Loads the tiles of a warp's steps into its ring: tile 2 i has the keys of step i, tile 2 i + 1 its values.
// Lane i keeps block numbers of coming steps: a step needs one, or STEP / block_size if blocks are smaller than
// a step.
struct Loader {
    const TensorMap& map;
    const Stored* cache;
    const int* table;
    u64* full;  // a barrier for each stage
    TokenRange range;
    int early;  // lane i's block number of the first 32, loaded together with the context length
    int kv_head, num_kv_heads, head_dim, log2_block_size;
    StageScales scales;
#ifdef PACKED_KV
    const u8 *key_bits, *value_bits;
#endif
    int batch, next;  // lane i's block number for this batch of steps and for the next

    __device__ int log_entries() const { return max(0, LOG_STEP - log2_block_size); }  // a step's, log2
    __device__ int batch_steps() const { return WARP >> log_entries(); }

    __device__ void begin() {
        if (lane() < NUM_STAGES) barrier_init(full + lane(), COPY_ARRIVALS);
        barrier_init_fence();
        __syncwarp();
        batch = entry(0);
        next = entry(batch_steps());
    }

    // Lane i's block number for the batch of steps from `index` on; always of a visible token.
    __device__ int entry(int index) const {
        int per_step = log_entries(), last = (range.end - 1) >> log2_block_size;
        int step_entry = range.token(index + (lane() >> per_step)) >> log2_block_size;
        int which = step_entry + (lane() & ((1 << per_step) - 1));
        which = min(max(which, range.begin >> log2_block_size), last);
        return last < WARP ? __shfl_sync(ALL, early, which) : table[which];
    }

    // Starts to load tile `number`, if there is one. Lanes below STEP / block_size have a block each.
    __device__ __forceinline__ void request(int number, int stage) {
        bool values = number % 2;
        int index = number / 2, log_parts = log_entries(), log_rows = min(log2_block_size, LOG_STEP);
        if (index >= range.count) return;
        if (!values && index && (index & (batch_steps() - 1)) == 0) {
            batch = next;
            next = entry(index + batch_steps());
        }
        int work = lane() & ((1 << log_parts) - 1);
        int block = __shfl_sync(ALL, batch, ((index << log_parts) + work) & (WARP - 1));
        int token = range.token(index) + (work << log_rows);
        int head = block * 2 * num_kv_heads + kv_head + (values ? num_kv_heads : 0);
        int within = token & ((1 << log2_block_size) - 1), row = (head << log2_block_size) + within;
#ifdef PACKED_KV
        int bits_row = ((block * num_kv_heads + kv_head) << log2_block_size) + within;
        copy_packed(stage, values, row, bits_row, log_rows, full + stage);
#else
        copy_tile(stage, row, log_rows, full + stage);
#endif
    }

#ifdef PACKED_KV
    // The same as `copy_tile` for packed rows, which are adjacent in a tile; `bits_row` is the lane's row of
    // upper bits.
    __device__ __forceinline__ void copy_packed(int stage, bool values, int row, int bits_row, int log_rows,
                                                u64* barrier) {
        u8* to = tile_bytes(tile(stage));
        u8* above = to + STEP * ROW_BYTES;
#if __CUDA_ARCH__ >= 900
        int bits_bytes = values ? VALUE_BITS_BYTES : KEY_BITS_BYTES;
        if (lane() == 0) barrier_expect(barrier, STEP * (ROW_BYTES + bits_bytes) + StageScales::bytes());
        if (lane() < STEP >> log_rows) {
            int first = lane() << log_rows;
            copy_bytes(to + first * ROW_BYTES, cache + (i64)row * ROW_BYTES, ROW_BYTES << log_rows, barrier);
            copy_bytes(above + first * bits_bytes, (values ? value_bits : key_bits) + (i64)bits_row * bits_bytes,
                       bits_bytes << log_rows, barrier);
        }
        scales.request(stage, row, log_rows, barrier);
#else
        copy_packed_rows<ROW_BYTES>(to, cache, row, log_rows);
        if (values) copy_packed_rows<VALUE_BITS_BYTES>(above, value_bits, bits_row, log_rows);
        else copy_packed_rows<KEY_BITS_BYTES>(above, key_bits, bits_row, log_rows);
        scales.request(stage, row, log_rows, barrier);
        arrive_after_copies(barrier);
#endif
    }

#if __CUDA_ARCH__ < 900
    template <int BYTES>
    __device__ __forceinline__ static void copy_packed_rows(u8* to, const u8* rows, int row, int log_rows) {
#pragma unroll 1
        for (int chunk = lane(); chunk - lane() < STEP * BYTES / 16; chunk += WARP) {
            int r = chunk * 16 / BYTES % STEP;  // a chunk may have two rows
            int from = __shfl_sync(ALL, row, r >> log_rows) + (r & ((1 << log_rows) - 1));
            if (chunk < STEP * BYTES / 16)
                copy_16_async(to + chunk * 16, rows + (i64)from * BYTES + chunk * 16 % BYTES);
        }
    }
#endif
#else
    // Copies a step's rows of the cache, 1 << log_rows of them from lane i's `row` on, to a stage's tile, padded
    // with zeros to 128 bytes, and completes one phase of `barrier`.
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
#endif

    __device__ void clear_unseen(int index, int stage) const {
        scales.clear_unseen(stage, range.token(index), range);
        copy_engine_fence();
        __syncwarp();
    }

    __device__ static int tile(int stage) { return warp() * RING_CHUNKS + stage * TILE_CHUNKS; }
};
