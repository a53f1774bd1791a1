// The sm_90a path of prefill_attention. prefill_attention.cu includes it and defines the shapes and helpers.
//
// Shared memory, aligned to 1024 bytes: queries [CONSUMERS][PANELS][64 rows][128 bytes], keys
// [STAGES][PANELS][KEYS rows][128 bytes], values likewise. Barriers: the copies of the 128 producer threads
// complete `full`; the first lane of each consumer warp completes `empty`.
#include "attention/mma_softmax.cuh"
#include "common/wgmma.cuh"

constexpr int KEY = 0, VALUE = 1;

struct Ring {
    u64 full[2][STAGES], empty[2][STAGES];
    int begin[CONSUMERS], end[CONSUMERS];  // keys that are visible to a warpgroup's rows
};

__device__ __forceinline__ void produce(const Arguments& a, const QueryTile& w, Ring& ring, u32 tiles,
                                        int begin, int end) {
    // CHUNKS neighboring threads load a row together. Each thread finds the cache row of one of the rows that they
    // load in turn.
    constexpr int STEPS = KEYS * CHUNKS / COPIERS;
    static_assert(IS_EVEN && STEPS <= CHUNKS && CHUNKS <= WARP);
    int thread = threadIdx.x % COPIERS, chunk = thread % CHUNKS, found = step_row(thread, chunk);
    int row_bytes = a.head_dim * sizeof(T), stage = 0;
    bool has_chunk = chunk * 8 < a.head_dim;
    const u8* keys = (const u8*)(w.keys + (has_chunk ? chunk * 8 : 0));
    u32 parity = 1;
    int first = begin / KEYS * KEYS;
    int next = key_row(a, w, first + found, begin);
    for (int key = first; key < end; key += KEYS) {
        int own = next;
        if (key + KEYS < end) next = key_row(a, w, key + KEYS + found, begin);
#pragma unroll 1
        for (int kind = KEY; kind <= VALUE; kind++) {
            barrier_wait(&ring.empty[kind][stage], parity);
            u32 to = tiles + (kind * STAGES + stage) * TILE_BYTES;
            const u8* base = keys + (kind == KEY ? 0 : w.values * sizeof(T));
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                int at = __shfl_sync(ALL, own, i, CHUNKS);
                copy_chunk(to + step_offset<KEYS>(thread, i), base + (i64)max(at, 0) * row_bytes,
                           has_chunk && at >= 0);
            }
            arrive_after_copies(&ring.full[kind][stage]);
        }
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    wait_for_copies();
}

// s = q · kᵀ for the warpgroup's 64 queries.
__device__ __forceinline__ void score(float (&s)[KEYS / 2], u32 queries, u32 keys) {
    u64 left = tile_descriptor<GROUP_ROWS>(queries), right = tile_descriptor<KEYS>(keys);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        int panel = step / 4, within = step % 4 * 32;
        wgmma_ss<T>(s, left + ((panel * GROUP_ROWS * 128 + within) >> 4),
                          right + ((panel * KEYS * 128 + within) >> 4), step > 0);
    }
    wgmma_commit();
    wgmma_wait();
    fence_operand(s);
}

// o += weights · v.
__device__ __forceinline__ void add_values(float (&o)[DIM / 2], const float (&s)[KEYS / 2],
                                           u32 values) {
    constexpr int PART = DIM < 128 ? DIM / 2 : 64;  // accumulators of one wgmma
    u64 right = tile_descriptor<KEYS>(values);
    u32 weights[KEYS / 16][4];
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) pack_operand<T>(weights[step], s, step);
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) fence_operand(weights[step]);
    fence_operand(o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++)
#pragma unroll
        for (int part = 0; part < DIM / 2 / PART; part++)
            wgmma_rs<T, PART>(
                o + part * PART, weights[step],
                right + ((part * (PART / 32) * KEYS * 128 + step * 16 * 128) >> 4));
    wgmma_commit();
    wgmma_wait();
    fence_operand(o);
}

__device__ __forceinline__ void consume(const Arguments& a, const QueryTile& w, Ring& ring, u8* queries,
                                        u32 tiles, int begin, int end) {
    int group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, lane = threadIdx.x % WARP;
    int group_row = group * GROUP_ROWS, row = group_row + thread / WARP * 16;
    queries += group_row * ROW_BYTES;
    load_queries<GROUP_ROWS>(a, w, shared_address(queries), group_row, thread);
    wait_for_copies();
    wgmma_proxy_fence();
    warpgroup_barrier(1 + group);

    int stage = 0;
    u32 parity = 0;
    float o[DIM / 2] = {}, sum[2], row_max[2];
    begin_softmax(a, w, row, row_max, sum);
    for (int key = begin / KEYS * KEYS; key < end; key += KEYS) {
        u32 at = tiles + stage * TILE_BYTES;
        barrier_wait(&ring.full[KEY][stage], parity);
        if (key < ring.end[group] && key + KEYS > ring.begin[group]) {
            float s[KEYS / 2] = {}, rescale[2];
            wgmma_proxy_fence();
            score(s, shared_address(queries), at);
            if (lane == 0) barrier_arrive(&ring.empty[KEY][stage]);
            softmax_weights(a, w, s, row, key, row_max, sum, rescale);
            rescale_rows(o, rescale);
            barrier_wait(&ring.full[VALUE][stage], parity);
            wgmma_proxy_fence();
            add_values(o, s, at + STAGES * TILE_BYTES);
        } else {
            if (lane == 0) barrier_arrive(&ring.empty[KEY][stage]);
            barrier_wait(&ring.full[VALUE][stage], parity);
        }
        if (lane == 0) barrier_arrive(&ring.empty[VALUE][stage]);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
#if SPLIT
    store_split(a, w, o, row, row_max, sum, BIASED ? 1.f : a.scale * LOG2_E);
#else
    if (group_row >= w.num_rows) return;
    warpgroup_barrier(1 + group);  // the queries are no longer read: their memory takes the output
    put_rows<GROUP_ROWS>(queries, o, thread / WARP * 16, sum);
    warpgroup_barrier(1 + group);
    store_rows<GROUP_ROWS>(a, w, queries, group_row, 0, GROUP_ROWS, thread, 128);
#endif
}

__device__ __forceinline__ void attend(const Arguments& a, const QueryTile& w, u8* shared) {
    __shared__ Ring ring;
    shared += -shared_address(shared) & 1023;
    u32 tiles = shared_address(shared) + ROWS * ROW_BYTES;
    if (threadIdx.x < 2 * STAGES) {
        barrier_init(&ring.full[0][threadIdx.x], COPIERS);
        barrier_init(&ring.empty[0][threadIdx.x], CONSUMERS * 4);
        barrier_init_fence();
    }
    int begin, end;
    if (threadIdx.x < CONSUMERS) {
        w.span(threadIdx.x * GROUP_ROWS, GROUP_ROWS, begin, end);
        ring.begin[threadIdx.x] = begin;
        ring.end[threadIdx.x] = end;
    }
    __syncthreads();
    w.span(0, ROWS, begin, end);
#if SPLIT
    take_split<KEYS>(a, w, begin, end);
#endif
    if (threadIdx.x < COPIERS) {
        fewer_registers<CONSUMERS == 3 ? 32 : 40>();
        produce(a, w, ring, tiles, begin, end);
    } else {
        more_registers<CONSUMERS == 3 ? 160 : 232>();
        consume(a, w, ring, shared, tiles, begin, end);
    }
}
