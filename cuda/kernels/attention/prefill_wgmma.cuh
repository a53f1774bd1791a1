// The sm_90a path of prefill_attention. prefill_attention.cu includes it and defines the shapes and helpers.
//
// Shared memory, aligned to 1024 bytes: queries [Q_SLOTS][CONSUMERS][PANELS][64 rows][128 bytes], keys
// [STAGES][PANELS][KEYS rows][128 bytes], values likewise. Barriers: copies complete `full`; the first lane of
// each consumer warp completes `empty`.
#include "attention/mma_softmax.cuh"
#include "common/wgmma.cuh"

constexpr int KEY = 0, VALUE = 1;
constexpr int Q_SLOTS = IS_WIDE ? 1 : 2;
constexpr int NUM_INFOS = Q_SLOTS + 1;  // a tile's description is read after its queries
constexpr int QUERY_BYTES = ROWS * ROW_BYTES;
// Warpgroups take turns at the tensor cores. With wide heads the products take much longer than the softmax.
constexpr bool IN_TURNS = !IS_WIDE;

struct Ring {
    u64 q_full[Q_SLOTS], q_empty[Q_SLOTS];
    u64 full[2][STAGES], empty[2][STAGES];
    u64 unmasked;  // a tile of values has arrived whose invisible rows are not zero yet
    QueryTile tiles[NUM_INFOS];
};

// A position in a ring of COUNT entries, and the parity of their phase.
template <int COUNT> struct Cursor {
    int at = 0;
    u32 parity = 0;
    __device__ __forceinline__ void advance() {
        if (++at == COUNT) at = 0, parity ^= 1;
    }
};

// The keys of a tile of queries that this block reads: begin … end - 1, in tiles from `first` on.
struct KeyRange {
    int first, begin, end;
    __device__ __forceinline__ KeyRange(const Arguments& a, const QueryTile& w) {
        w.span(0, ROWS, begin, end);
#if SPLIT
        take_split<KEYS>(a, w, begin, end);
#endif
        first = begin / KEYS * KEYS;
    }
};

#include "attention/prefill_producer.cuh"

// Starts s = q · kᵀ for the warpgroup's 64 queries.
__device__ __forceinline__ void start_scores(float (&s)[KEYS / 2], u32 queries, u32 keys) {
    u64 left = tile_descriptor<GROUP_ROWS>(queries), right = tile_descriptor<KEYS>(keys);
    fence_operand(s);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        int panel = step / 4, within = step % 4 * 32;
        wgmma_ss<T>(s, left + ((panel * GROUP_ROWS * 128 + within) >> 4),
                    right + ((panel * KEYS * 128 + within) >> 4), step > 0);
    }
    wgmma_commit();
}

// Starts o += weights · v.
__device__ __forceinline__ void start_values(float (&o)[DIM / 2], u32 (&weights)[KEYS / 16][4], u32 values) {
    constexpr int PART = DIM < 128 ? DIM / 2 : 64;  // accumulators of one wgmma
    u64 right = tile_descriptor<KEYS>(values);
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) fence_operand(weights[step]);
    fence_operand(o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++)
#pragma unroll
        for (int part = 0; part < DIM / 2 / PART; part++)
            wgmma_rs<T, true, 2 * PART>(o + part * PART, weights[step],
                                        right + ((part * (PART / 32) * KEYS * 128 + step * 16 * 128) >> 4));
    wgmma_commit();
}

// The warpgroups' turns to start products: while one of them waits for its turn, it computes its softmax.
struct Turns {
    int group;
    __device__ __forceinline__ void wait() const {
        if (IN_TURNS) asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
    }
    __device__ __forceinline__ void pass() const {
        if (IN_TURNS) asm volatile("bar.arrive %0, 256;" ::"r"(1 + (group + 1) % CONSUMERS) : "memory");
    }
};

// Transposes a matrix of 4 × 4 that four lanes hold in rows: x[i] of lane j becomes x[j] of lane i.
__device__ __forceinline__ void transpose(u32 (&x)[4], int lane) {
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
        bool upper = lane & step;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int low = step == 1 ? 2 * k : k, high = low + step;
            u32 got = __shfl_xor_sync(ALL, upper ? x[low] : x[high], step);
            (upper ? x[low] : x[high]) = got;
        }
    }
}

// Stores 16 rows of accumulators, from `row` on. Four lanes exchange their parts, so that each stores 16 bytes.
template <int N>
__device__ __forceinline__ void store_output(const Arguments& a, const QueryTile& w, const float (&o)[N], int row,
                                             const float (&sum)[2]) {
    int lane = threadIdx.x % WARP, part = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int own = row + lane / 4 + 8 * r;
        float by = inverse_sum(sum[r]);
        T* to = w.out + (i64)own * a.num_heads * a.head_dim + part * 8;
#pragma unroll
        for (int j = 0; j < N; j += 16) {
            u32 x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float* pair = o + j + 4 * i + 2 * r;
                x[i] = pair_bits(pair[0] * by, pair[1] * by, T());
            }
            transpose(x, part);
            int column = j * 2;
            if (own < w.num_rows && column + part * 8 < a.head_dim)
                *(uint4*)(to + column) = {x[0], x[1], x[2], x[3]};
        }
    }
}

struct Consumer {
    const Arguments& a;
    Ring& ring;
    u8* queries;  // slot 0, this warpgroup's rows
    u32 tiles;
    int group, row;  // this warp's first row
    Turns turns;
    Cursor<STAGES> stage;
    Cursor<Q_SLOTS> slot;

    __device__ __forceinline__ void release(u64* barrier) const {
        if (threadIdx.x % WARP == 0) barrier_arrive(barrier);
    }
    __device__ __forceinline__ u32 keys(int at) const { return tiles + at * TILE_BYTES; }
    __device__ __forceinline__ u32 values(int at) const { return tiles + (STAGES + at) * TILE_BYTES; }

    // Converts the scores to weights; returns whether older sums have to be rescaled.
    __device__ __forceinline__ bool weigh(const QueryTile& w, float (&s)[KEYS / 2], int key, float (&row_max)[2],
                                          float (&sum)[2], float (&rescale)[2]) const {
        prepare_scores(a, w, s, row, key);
        return lazy_softmax(s, BIASED ? 1.f : a.scale * LOG2_E, row_max, sum, rescale);
    }
    __device__ __forceinline__ void pack(u32 (&weights)[KEYS / 16][4], float (&s)[KEYS / 2]) const {
        fence_operand(s);  // not before the products that read `weights` are complete
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) pack_operand<T>(weights[step], s, step);
    }

    // Computes a tile of queries: while a warpgroup computes the softmax of a tile of keys, the tensor cores
    // multiply the weights of the tile before with its values.
    __device__ __forceinline__ void attend(const QueryTile& w) {
        KeyRange range(a, w);
        u8* own_queries = queries + slot.at * QUERY_BYTES;
        u32 q = shared_address(own_queries);
        float o[DIM / 2] = {}, s[KEYS / 2] = {}, row_max[2], sum[2], rescale[2];
        u32 weights[KEYS / 16][4];
        begin_softmax(a, w, row, row_max, sum);
#if SPLIT
        load_queries<GROUP_ROWS>(a, w, q, group * GROUP_ROWS, threadIdx.x % 128);
        wait_for_copies();
        wgmma_proxy_fence();
        warpgroup_barrier(1 + CONSUMERS + group);
#endif
        if (range.first < range.end) {
            barrier_wait(&ring.full[KEY][stage.at], stage.parity);
            turns.wait();
            start_scores(s, q, keys(stage.at));
            turns.pass();
            wgmma_wait<0>();
            fence_operand(s);
            release(&ring.empty[KEY][stage.at]);
            weigh(w, s, range.first, row_max, sum, rescale);
            pack(weights, s);
            for (int key = range.first + KEYS; key < range.end; key += KEYS) {
                Cursor<STAGES> next = stage;
                next.advance();
                barrier_wait(&ring.full[KEY][next.at], next.parity);
                turns.wait();
                start_scores(s, q, keys(next.at));
                barrier_wait(&ring.full[VALUE][stage.at], stage.parity);
                start_values(o, weights, values(stage.at));
                turns.pass();
                wgmma_wait<1>();
                fence_operand(s);
                release(&ring.empty[KEY][next.at]);
                // The compiler moves a wait before instructions that do not use the accumulators, but not to
                // before a branch: the branch keeps it behind the softmax.
                if (weigh(w, s, key, row_max, sum, rescale)) {
                    wgmma_wait<0>();
                    fence_operand(o);
                    rescale_rows(o, rescale);
                }
                wgmma_wait<0>();
                fence_operand(o);
                release(&ring.empty[VALUE][stage.at]);
                pack(weights, s);
                stage = next;
            }
            release(&ring.q_empty[slot.at]);
            barrier_wait(&ring.full[VALUE][stage.at], stage.parity);
            start_values(o, weights, values(stage.at));
            wgmma_wait<0>();
            fence_operand(o);
            release(&ring.empty[VALUE][stage.at]);
            stage.advance();
        } else {
            release(&ring.q_empty[slot.at]);
        }
#if SPLIT
        store_split(a, w, o, row, 0, row_max, sum, BIASED ? 1.f : a.scale * LOG2_E);
#else
        store_output(a, w, o, row, sum);
#endif
    }

    __device__ __forceinline__ void run() {
        if (group == CONSUMERS - 1) turns.pass();
        for (int info = 0;; info = (info + 1) % NUM_INFOS) {
            barrier_wait(&ring.q_full[slot.at], slot.parity);
            const QueryTile& w = ring.tiles[info];
            if (w.num_rows == 0) return;
            attend(w);
            slot.advance();
        }
    }
};

__device__ __forceinline__ void attend(const Arguments& a, const TensorMap& cache_map, const TensorMap& q_map,
                                       u8* shared) {
    __shared__ Ring ring;
    shared += -shared_address(shared) & 1023;
    u8* tiles = shared + Q_SLOTS * QUERY_BYTES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Q_SLOTS; i++) {
            barrier_init(&ring.q_full[i], 1);
            barrier_init(&ring.q_empty[i], CONSUMERS * 4);
        }
        for (int i = 0; i < 2 * STAGES; i++) {
            barrier_init(&ring.full[0][i], 1);
            barrier_init(&ring.empty[0][i], CONSUMERS * 4);
        }
        barrier_init(&ring.unmasked, 1);
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<CONSUMERS == 3 ? 32 : 40>();
        if (threadIdx.x < WARP) Producer{a, cache_map, q_map, ring, shared, tiles}.run();
    } else {
        more_registers<CONSUMERS == 3 ? 160 : 232>();
        int group = threadIdx.x / 128 - 1;
        u8* queries = shared + group * GROUP_ROWS * ROW_BYTES;
        int row = threadIdx.x / WARP * 16 - 64;
        Consumer{a, ring, queries, shared_address(tiles), group, row, {group}}.run();
    }
}
