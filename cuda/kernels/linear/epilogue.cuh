// The two epilogue warps of `linear`: they add the consumers' partial sums and write the output.
#pragma once
#include "common/activation.cuh"
#include "comm/peer_buffer.cuh"
#include "linear/low_rank.cuh"

// Writes the results of activation row b at weight row `low` and its partner `high`; `slot` is the
// cache slot of b.
__device__ __forceinline__ void write_output(const Arguments& a, int b, int low, int high, float y_low,
                                             float y_high, const Shared& shared, int slot) {
    if (a.bias) {
#if ROW_BIAS
        // From L2: an earlier matmul on this multiprocessor may have read other values to L1.
        const T* bias = a.bias + (i64)b * a.bias_stride;
        y_low += to_float(__ldcg(bias + low));
        if (high < a.m) y_high += to_float(__ldcg(bias + high));
#else
        y_low += to_float(a.bias[low]);
        if (high < a.m) y_high += to_float(a.bias[high]);
#endif
    }
#if EPILOGUE == STORE
    using Y = typename Choose<FP32_OUT, float, T>::type;
    Y* y = (Y*)a.out + (i64)b * a.m;
    y[low] = from_float<Y>(y_low);
    if (high < a.m) y[high] = from_float<Y>(y_high);
#elif EPILOGUE == RESIDUAL
    float* y = (float*)a.out + (i64)b * a.m;
    atomicAdd(&y[low], y_low);  // no other thread adds here; unlike a load, it is not waited for
    if (high < a.m) atomicAdd(&y[high], y_high);
#elif EPILOGUE == SEND
    for (int r = 0; r < a.world_size; r++) {
        float* to = ((float* const*)a.out)[r] + (i64)b * a.m;
        send(to + low, not_sentinel(y_low));
        if (high < a.m) send(to + high, not_sentinel(y_high));
    }
#elif EPILOGUE == ACT_AND_MUL
    ((T*)a.out)[(i64)b * (a.m / 2) + low] = from_float<T>(activate<ACTIVATION>(y_low) * y_high);
#else
    int head = low / a.head_dim, d = low % a.head_dim;
    if (head < a.num_heads + a.num_kv_heads) {
        float c = shared.angles[b][d], s = shared.angles[b][a.head_dim / 2 + d];
        float rotated = y_low * c - y_high * s;
        y_high = y_high * c + y_low * s;
        y_low = rotated;
    }
    T* to = (T*)a.out + ((i64)b * a.num_heads + head) * a.head_dim + d;
    if (head >= a.num_heads) {
        int size = 1 << a.log2_block_size;
        if (slot < 0) return;
        i64 block = (i64)(slot >> a.log2_block_size) * 2 * a.num_kv_heads;
        i64 row = (block + (head - a.num_heads)) * size;
        to = a.cache + (row + (slot & (size - 1))) * a.head_dim + d;
    }
    to[0] = from_float<T>(y_low);
    to[a.head_dim / 2] = from_float<T>(y_high);
#endif
}

// Adds the sums of all splits of an M tile, in order. Returns true for the warp that comes last for the
// tile; the others only store their sums.
template <int ROUNDS>
__device__ __forceinline__ bool combine_splits(const Arguments& a, const Work& work, int tile, int low,
                                               int high, float* y_low, float* y_high) {
    constexpr int PAIRS = M_TILE / 2;
    int lane = threadIdx.x % WARP;
    i64 plane = (i64)a.n * a.m;
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int b = lane / PAIRS + j * (WARP / PAIRS);
        float* own = a.partial_sums + work.split * plane + (i64)b * a.m;
        if (b < a.n && low < a.m) own[low] = y_low[j];
        if (b < a.n && high < a.m) own[high] = y_high[j];
    }
    __threadfence();
    __syncwarp();
    u32 earlier = 0;
    if (lane == 0) earlier = atomicAdd(&a.counters[tile], 1);
    if (__shfl_sync(ALL, earlier, 0) != a.num_splits - 1) return false;
    __threadfence();
    if (lane == 0) a.counters[tile] = 0;  // for the next launch
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int b = lane / PAIRS + j * (WARP / PAIRS);
        if (b >= a.n) continue;
        y_low[j] = y_high[j] = 0;
        for (int s = 0; s < a.num_splits; s++) {
            const float* from = a.partial_sums + s * plane + (i64)b * a.m;
            if (low < a.m) y_low[j] += __ldcg(from + low);
            if (high < a.m) y_high[j] += __ldcg(from + high);
        }
    }
    return true;
}

// The scales of this lane's two weight rows of an M tile, if there is such a tile.
__device__ __forceinline__ float2 row_scales(const Arguments& a, const Work& work, int tile) {
    float2 scales = {};
    if (!PACKED || tile >= work.tiles) return scales;
    if (!ROW_SCALES) return {1, 1};
    int i = threadIdx.x % (M_TILE / 2);
    int low = row_of(a, tile, i), high = row_of(a, tile, i + M_TILE / 2);
    if (low < a.m) scales.x = __ldg(a.row_scale + low);
    if (high < a.m) scales.y = __ldg(a.row_scale + high);
    return scales;
}

__device__ void epilogue(const Arguments& a, const Work& work, Shared& shared, int buffer,
                         const LowRank& low_rank) {
    // A lane has an activation row and a pair of weight rows; two rounds for up to 16 activation rows.
    constexpr int PAIRS = M_TILE / 2, ROUNDS = (MAX_N * PAIRS + WARP - 1) / WARP;
    int lane = threadIdx.x % WARP, uses = 0, slots[ROUNDS] = {};
#if LOW_RANK
    shrink(a, low_rank, buffer);
#endif
#if EPILOGUE == ROPE_CACHE
    // Load angles and slots before the sums are ready.
    for (int i = buffer * WARP + lane; i < a.n * a.head_dim; i += EPILOGUES * WARP) {
        int b = i / a.head_dim, d = i % a.head_dim;
        shared.angles[b][d] = __ldg(a.cos_sin + (i64)__ldcg(a.positions + b) * a.head_dim + d);
    }
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int b = lane / PAIRS + j * (WARP / PAIRS);
        if (b < a.n) slots[j] = __ldcg(a.slot_mapping + b);
    }
    named_barrier<3, EPILOGUES * WARP>();
#endif
    float x_scales[ROUNDS];
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int b = lane / PAIRS + j * (WARP / PAIRS);
        x_scales[j] = PACKED && a.x_scale && b < a.n ? __ldcg(a.x_scale + b) : 1.f;
    }
#if LOW_RANK
    gather(a, low_rank, shared, buffer);
#endif
    int first = work.first + work.rank + buffer * work.step;
    float2 next_scales = row_scales(a, work, first);
#if CLUSTER > 1
    u32 peer_empty = address_in(work.rank ^ 1, &shared.peer_empty[buffer]);
    if (NORM) barrier_wait_cluster(&shared.squares_full, 0);
#endif
    for (int tile = first; tile < work.tiles; tile += EPILOGUES * work.step, uses++) {
        float2 scales = next_scales;  // loaded a tile ahead: memory latency may exceed a tile's time
        next_scales = row_scales(a, work, tile + EPILOGUES * work.step);
        int low = row_of(a, tile, lane % PAIRS), high = row_of(a, tile, lane % PAIRS + PAIRS);
#if LOW_RANK
        float2 changes[ROUNDS];
#pragma unroll
        for (int j = 0; j < ROUNDS; j++)
            changes[j] = expand(a, low_rank, shared, lane / PAIRS + j * (WARP / PAIRS), low, high);
        prefetch_expand(a, low_rank, tile + EPILOGUES * work.step);
#endif
#if CLUSTER > 1
        if (lane == 0) barrier_expect(&shared.sums_full[buffer], SHARERS * M_TILE * 4 * a.n);
        barrier_wait_cluster(&shared.sums_full[buffer], uses & 1);
#else
        barrier_wait(&shared.sums_full[buffer], uses & 1);
#endif
        float y_low[ROUNDS], y_high[ROUNDS];
#pragma unroll
        for (int j = 0; j < ROUNDS; j++) {
            int b = lane / PAIRS + j * (WARP / PAIRS);
            y_low[j] = y_high[j] = 0;
            if (b < a.n) {
#pragma unroll
                for (int w = 0; w < CONSUMERS; w++) {
                    y_low[j] += shared.sums[buffer][w][b][lane % PAIRS];
                    y_high[j] += shared.sums[buffer][w][b][lane % PAIRS + PAIRS];
                }
                if (NORM && !NORM_FIRST) {
                    float factor = inverse_rms(a, shared, b);
                    y_low[j] *= factor;
                    y_high[j] *= factor;
                }
                if (PACKED) {
                    y_low[j] *= scales.x * x_scales[j];
                    y_high[j] *= scales.y * x_scales[j];
                }
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.sums_empty[buffer]);
#if CLUSTER > 1
        // Not after the last tile: the other block does not wait for it and may have ended.
        bool is_last = tile + EPILOGUES * work.step >= work.tiles;
        if (lane == 0 && !is_last) barrier_arrive_remote(peer_empty);
#endif
        bool last = true;
#if EPILOGUE == RESIDUAL || EPILOGUE == SEND
        if (a.num_splits > 1) last = combine_splits<ROUNDS>(a, work, tile, low, high, y_low, y_high);
#endif
        if (!last) continue;
#pragma unroll
        for (int j = 0; j < ROUNDS; j++) {
            int b = lane / PAIRS + j * (WARP / PAIRS);
#if LOW_RANK
            float factor = NORM && b < a.n ? inverse_rms(a, shared, b) : 1.f;
            y_low[j] += factor * changes[j].x;
            y_high[j] += factor * changes[j].y;
#endif
            if (b < a.n && low < a.m)
                write_output(a, b, low, high, y_low[j], y_high[j], shared, slots[j]);
        }
    }
}
