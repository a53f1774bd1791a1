// Loading the activations of `linear` into shared memory: normalized or not, as T or as int8 planes.
#pragma once
#include "linear/accumulate.cuh"
#include "common/reduce.cuh"

// The RMSNorm factor of activation row b, from the consumers' partial sums of squares.
__device__ __forceinline__ float inverse_rms(const Arguments& a, const Shared& shared, int b) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < CONSUMERS; w++) sum += shared.squares[w][b];
    return rsqrtf(sum / a.k + a.eps);
}

// COLUMNS loads are in flight together, because a round trip to L2 takes longer than all of them.
// AT_ONCE of them are used together.
constexpr int COLUMNS = MAX_N > 8                              ? CLUSTER
                        : CLUSTER > 1 && SHARES_MULTIPROCESSOR ? 2
                        : MAX_N > 1 && CLUSTER == 1            ? 1
                        : NORM                                 ? 4
                                                               : 8;
constexpr int AT_ONCE = COLUMNS > 4 ? 2 : COLUMNS;
// Whether the RMSNorm factor is applied before the matmul. Otherwise the epilogue applies it, which
// saves a pass; but fp16 cannot hold the residual stream without it.
constexpr bool NORM_FIRST = NORM && IS_HALF && !INT8_PLANES;

// In a cluster each thread loads some of the activation rows, so that the columns of a sum of squares are those of
// a thread, in its order, without clusters.
constexpr int LOADERS = CONSUMER_THREADS / CLUSTER;  // threads that divide the columns of a row
constexpr int EACH_ROWS = (MAX_N + CLUSTER - 1) / CLUSTER;
__device__ __forceinline__ int loaded_row(int i) { return i * CLUSTER + threadIdx.x / LOADERS; }

// Stores EACH neighboring elements of activation row b, from `column` of this block's on.
template <int EACH>
__device__ __forceinline__ void store_activation(const float (&x)[EACH], int b, int column,
                                                 const Arguments& a, const Work& work,
                                                 u8* activations, int stride) {
    bool valid = b < a.n && column < work.columns;
    if constexpr (INT8_PLANES) {
        store_planes(x, column, valid, activations, stride);
    } else if (valid) {
        Vec<T, EACH> values;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int from = FOUR_BIT_ORDER && (i % 4 == 1 || i % 4 == 2) ? i ^ 3 : i;
            values.at[i] = from_float<T>(x[from]);
        }
        *(Vec<T, EACH>*)(activations + b * stride + column * sizeof(T)) = values;
    }
}

#if NORM
// Stores a warp's sums of squares of its rows, for both blocks of a cluster.
__device__ __forceinline__ void store_squares(const float (&sums)[EACH_ROWS], const Work& work, Shared& shared) {
#if CLUSTER > 1
    cluster_wait();  // the other block's barriers are initialized
#endif
    if (threadIdx.x % WARP) return;
#if CLUSTER > 1
    // The place is that of the warp which adds the same columns without clusters, if there is one.
    constexpr int PASS = CONSUMER_THREADS * 4;
    int warp = threadIdx.x % LOADERS / WARP;
    int place = OWN < PASS ? work.column_of(warp * WARP * 4) % PASS / (WARP * 4) : work.rank * SHARERS + warp;
    u32 peer = work.rank ^ 1;
#pragma unroll
    for (int i = 0; i < EACH_ROWS; i++) {
        float* to = &shared.squares[place][loaded_row(i)];
        *to = sums[i];
        store_remote(address_in(peer, to), sums[i]);
    }
    barrier_arrive(&shared.squares_full);
    barrier_arrive_remote(address_in(peer, &shared.squares_full));
#else
#pragma unroll
    for (int i = 0; i < EACH_ROWS; i++) shared.squares[threadIdx.x / WARP][i] = sums[i];
#endif
}

// Calls use(b, column of this block's, four elements of activation row b, four of norm_weight) for this thread's
// columns; the lanes of a warp call it together, with zeros past the end. Returns the warp's partial sums of
// squares.
template <typename Use>
__device__ __forceinline__ void for_values(const Arguments& a, const Work& work, float (&squares)[EACH_ROWS],
                                           Use use) {
    constexpr int STRIDE = LOADERS * 4;
#pragma unroll
    for (int i = 0; i < EACH_ROWS; i++) squares[i] = 0;
    int lane = threadIdx.x % WARP * 4, columns = work.columns;
    for (int first = threadIdx.x % LOADERS * 4; first - lane < columns; first += COLUMNS * STRIDE) {
        float4 v[COLUMNS][EACH_ROWS];
        Vec<T, 4> weight[COLUMNS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            int column = work.column_of(first + j * STRIDE);
            weight[j] = {};
            if (column < a.k) weight[j] = *(const Vec<T, 4>*)(a.norm_weight + column);
#pragma unroll
            for (int i = 0; i < EACH_ROWS; i++) {
                int b = loaded_row(i);
                v[j][i] = {};
                if (b < a.n && column < a.k)
                    v[j][i] = __ldcg((const float4*)((const float*)a.x + (i64)b * a.k + column));
            }
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int i = 0; i < EACH_ROWS; i++) {
                float4 u = v[j][i];
                // explicit, so that the rounding is the same in every variant
                squares[i] = fmaf(u.w, u.w, fmaf(u.z, u.z, fmaf(u.y, u.y, fmaf(u.x, u.x, squares[i]))));
                use(i, first + j * STRIDE, u, weight[j]);
            }
    }
#pragma unroll
    for (int i = 0; i < EACH_ROWS; i++) squares[i] = warp_reduce(squares[i], Sum());
}

// Loads the normalized activations into shared memory.
__device__ void load_activations(const Arguments& a, const Work& work, Shared& shared, u8* to,
                                 int stride) {
    float inverses[EACH_ROWS], squares[EACH_ROWS];
    if constexpr (NORM_FIRST) {
        for_values(a, work, squares, [](int, int, float4, Vec<T, 4>) {});
        store_squares(squares, work, shared);
#if CLUSTER > 1
        barrier_wait_cluster(&shared.squares_full, 0);
#else
        named_barrier<1, CONSUMER_THREADS>();
#endif
#pragma unroll
        for (int i = 0; i < EACH_ROWS; i++)
            inverses[i] = loaded_row(i) < a.n ? inverse_rms(a, shared, loaded_row(i)) : 0;
    }
    for_values(a, work, squares, [&](int i, int column, float4 v, Vec<T, 4> w) {
        float f = 1, weights[4];
        if constexpr (NORM_FIRST) f = inverses[i];
#pragma unroll
        for (int j = 0; j < 4; j++) weights[j] = to_float(w.at[j]) + a.weight_offset;
        float x[4] = {v.x * f * weights[0], v.y * f * weights[1], v.z * f * weights[2], v.w * f * weights[3]};
        store_activation(x, loaded_row(i), column, a, work, to, stride);
    });
    if (!NORM_FIRST) store_squares(squares, work, shared);
    named_barrier<1, CONSUMER_THREADS>();
}
#else
__device__ void load_activations(const Arguments& a, const Work& work, Shared&, u8* to, int stride) {
    constexpr int EACH = 16 / sizeof(T), STRIDE = LOADERS * EACH;
    int lane = threadIdx.x % WARP * EACH, first = threadIdx.x % LOADERS * EACH, columns = work.columns;
    for (; first - lane < columns; first += COLUMNS * STRIDE) {
        uint4 v[COLUMNS][EACH_ROWS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int i = 0; i < EACH_ROWS; i++) {
                int column = work.column_of(first + j * STRIDE);
                v[j][i] = {};
                if (loaded_row(i) < a.n && column < min(work.end, a.k))
                    v[j][i] = __ldcg((const uint4*)((const T*)a.x + (i64)loaded_row(i) * a.k + column));
            }
#pragma unroll
        for (int part = 0; part < COLUMNS; part += AT_ONCE) {
            if (first - lane + part * STRIDE >= columns) break;
#pragma unroll
            for (int j = part; j < part + AT_ONCE; j++)
#pragma unroll
                for (int i = 0; i < EACH_ROWS; i++) {
                    float x[EACH];
#pragma unroll
                    for (int e = 0; e < EACH; e++) x[e] = to_float(((const T*)&v[j][i])[e]);
                    store_activation(x, loaded_row(i), first + j * STRIDE, a, work, to, stride);
                }
        }
    }
    named_barrier<1, CONSUMER_THREADS>();
}
#endif
