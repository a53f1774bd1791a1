// The path of prefill_attention by mma.m16n8k16. prefill_attention.cu includes it and defines the shapes and
// helpers.
#pragma once
// Finds the cache rows of a tile's keys, one tile ahead.
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

#ifdef PACKED_KV
#include "attention/prefill_int5_kv.cuh"
#include "attention/prefill_scales.cuh"
#elif defined(KV_SCHEME)
#include "attention/prefill_quantized_kv.cuh"
#include "attention/prefill_scales.cuh"
#endif

// The address of chunk `chunk` (even) plus a bit, in the row at `address`; `twist` is the row (mod 8) xor that
// bit.
template <int TILE_ROWS> __device__ __forceinline__ u32 twisted(u32 address, int twist, int chunk) {
    return address + chunk / 8 * TILE_ROWS * 128 + (chunk % 8 ^ twist) * 16;
}

// Attention of a warp's ROW_TILES × 16 queries, in `q` from row `row` on, with one tile of keys and values; of the
// values with columns of part `part`.
__device__ __forceinline__ void attend_tile(const Arguments& a, const QueryTile& w, u32 q, u32 keys,
                                            int row, int part, int key, float (&o)[ROW_TILES][DIM / 2 / PARTS],
                                            float (&row_max)[ROW_TILES][2], float (&sum)[ROW_TILES][2],
                                            const float (*scales)[KEYS] = nullptr) {
    int lane = threadIdx.x % WARP, matrix = lane / 8;
    int low = matrix % 2, high = matrix / 2, within = lane % 8;
    // Matrices 0 … 3 are (rows, chunks) (0, 0), (8, 0), (0, 1), (8, 1) for queries and values, and
    // (0, 0), (0, 1), (8, 0), (8, 1) for keys.
    int by_column = (low * 8 + within) * 128, by_row = (high * 8 + within) * 128;
    u32 values = keys + TILE_BYTES + part * PART_PANELS * KEYS * 128;
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
        prepare_scores(a, w, s[m], row + m * 16, key);
        online_softmax(s[m], BIASED ? 1.f : a.scale * LOG2_E, row_max[m], sum[m], rescale);
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
        for (int j = 0; j < DIM / 16 / PARTS; j++) {
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
    int row = threadIdx.x / WARP / PARTS * ROW_TILES * 16, part = threadIdx.x / WARP % PARTS;
    int begin, end;
    w.span(0, ROWS, begin, end);
#if SPLIT
    take_split<KEYS>(a, w, begin, end);
#endif
    int first = begin / KEYS * KEYS;
    float o[ROW_TILES][DIM / 2 / PARTS] = {}, row_max[ROW_TILES][2], sum[ROW_TILES][2];
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) begin_softmax(a, w, row + m * 16, row_max[m], sum[m]);

    find_key_rows(a, w, key_rows[0], first, begin);
    find_key_rows(a, w, key_rows[1], first + KEYS, begin);
    load_queries<ROWS>(a, w, q, 0, threadIdx.x);
    __syncthreads();
#ifdef KV_SCHEME
    __shared__ __align__(16) float scales[2][2][KEYS];
    QuantizedTiles quantized{ring, ring + 2 * TILE_BYTES, scales};
    quantized.load(a, w, key_rows[0], 0);
#else
    load_keys(a, w, key_rows[0], ring);
#endif
    int stage = 0;
    for (int key = first; key < end; key += KEYS, stage ^= 1) {
        wait_for_copies();
        __syncthreads();  // this tile has arrived, and the one before has been used
        int other = stage ^ 1;
#ifdef KV_SCHEME
        if (key + KEYS < end) quantized.load(a, w, key_rows[other], other);
        quantized.convert(stage);
        __syncthreads();
        u32 tile = ring;
        const float(*by)[KEYS] = scales[stage];
#else
        if (key + KEYS < end) load_keys(a, w, key_rows[other], ring + other * 2 * TILE_BYTES);
        u32 tile = ring + stage * 2 * TILE_BYTES;
        const float(*by)[KEYS] = nullptr;
#endif
        find_key_rows(a, w, key_rows[stage], key + 2 * KEYS, begin);
        int row_begin, row_end;  // recomputed for each tile to save registers
        w.span(row, ROW_TILES * 16, row_begin, row_end);
        if (key < row_end && key + KEYS > row_begin)
            attend_tile(a, w, q, tile, row, part, key, o, row_max, sum, by);
    }
    wait_for_copies();
#if SPLIT
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
        store_split(a, w, o[m], row + m * 16, part * (DIM / PARTS), row_max[m], sum[m],
                    BIASED ? 1.f : a.scale * LOG2_E);
#else
    __syncthreads();  // warps reuse their queries' memory for their output
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
        put_rows<ROWS>(shared + part * PART_PANELS * ROWS * 128, o[m], row + m * 16, sum[m]);
    __syncwarp();
    store_rows<ROWS>(a, w, shared, 0, row, ROW_TILES * 16, part * PART_CHUNKS, threadIdx.x % WARP, WARP);
#endif
}
