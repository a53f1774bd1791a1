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
constexpr int COLUMNS = MAX_N > 1 ? 1 : NORM ? 4 : 8;
constexpr int AT_ONCE = COLUMNS > 4 ? 2 : COLUMNS;
// Whether the RMSNorm factor is applied before the matmul. Otherwise the epilogue applies it, which
// saves a pass; but fp16 cannot hold the residual stream without it.
constexpr bool NORM_FIRST = NORM && IS_HALF && !INT8_PLANES;

// Stores EACH neighboring elements of activation row b, from column `column` of x on.
template <int EACH>
__device__ __forceinline__ void store_activation(const float (&x)[EACH], int b, int column,
                                                 const Arguments& a, const Work& work,
                                                 u8* activations, int stride) {
    bool valid = b < a.n && column < work.end;
    if constexpr (INT8_PLANES) {
        store_planes(x, column - work.begin, valid, activations, stride);
    } else if (valid) {
        Vec<T, EACH> values;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int from = INT4_ORDER && (i % 4 == 1 || i % 4 == 2) ? i ^ 3 : i;
            values.at[i] = from_float<T>(x[from]);
        }
        *(Vec<T, EACH>*)(activations + b * stride + (column - work.begin) * sizeof(T)) = values;
    }
}

#if NORM
// Calls use(b, column, four elements of activation row b, four of norm_weight) for this thread's
// columns; the lanes of a warp call it together, with zeros past the end. Stores the partial sums of
// squares in shared memory.
template <typename Use>
__device__ __forceinline__ void for_values(const Arguments& a, const Work& work, Shared& shared,
                                           Use use) {
    constexpr int STRIDE = CONSUMER_THREADS * 4;
    float squares[MAX_N] = {};
    int lane = threadIdx.x % WARP * 4;
    for (int first = threadIdx.x * 4; first - lane < work.end; first += COLUMNS * STRIDE) {
        float4 v[COLUMNS][MAX_N];
        Vec<T, 4> weight[COLUMNS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            int column = first + j * STRIDE;
            weight[j] = {};
            if (column < a.k) weight[j] = *(const Vec<T, 4>*)(a.norm_weight + column);
#pragma unroll
            for (int b = 0; b < MAX_N; b++) {
                v[j][b] = {};
                if (b < a.n && column < a.k)
                    v[j][b] = __ldcg((const float4*)((const float*)a.x + (i64)b * a.k + column));
            }
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int b = 0; b < MAX_N; b++) {
                float4 u = v[j][b];
                squares[b] += u.x * u.x + u.y * u.y + u.z * u.z + u.w * u.w;
                use(b, first + j * STRIDE, u, weight[j]);
            }
    }
#pragma unroll
    for (int b = 0; b < MAX_N; b++) {
        float sum = warp_reduce(squares[b], Sum());
        if (threadIdx.x % WARP == 0) shared.squares[threadIdx.x / WARP][b] = sum;
    }
}

// Loads the normalized activations into shared memory.
__device__ void load_activations(const Arguments& a, const Work& work, Shared& shared, u8* to,
                             int stride) {
    float inverses[MAX_N];
    if constexpr (NORM_FIRST) {
        for_values(a, work, shared, [](int, int, float4, Vec<T, 4>) {});
        named_barrier<1, CONSUMER_THREADS>();
#pragma unroll
        for (int b = 0; b < MAX_N; b++) inverses[b] = b < a.n ? inverse_rms(a, shared, b) : 0;
        named_barrier<1, CONSUMER_THREADS>();
    }
    for_values(a, work, shared, [&](int b, int column, float4 v, Vec<T, 4> w) {
        float f = 1, weights[4];
        if constexpr (NORM_FIRST) f = inverses[b];
#pragma unroll
        for (int j = 0; j < 4; j++) weights[j] = to_float(w.at[j]) + a.weight_offset;
        float x[4] = {v.x * f * weights[0], v.y * f * weights[1], v.z * f * weights[2], v.w * f * weights[3]};
        store_activation(x, b, column, a, work, to, stride);
    });
    named_barrier<1, CONSUMER_THREADS>();
}
#else
__device__ void load_activations(const Arguments& a, const Work& work, Shared&, u8* to, int stride) {
    constexpr int EACH = 16 / sizeof(T), STRIDE = CONSUMER_THREADS * EACH;
    int lane = threadIdx.x % WARP * EACH, first = work.begin + threadIdx.x * EACH;
    for (; first - lane < work.end; first += COLUMNS * STRIDE) {
        uint4 v[COLUMNS][MAX_N];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int b = 0; b < MAX_N; b++) {
                int column = first + j * STRIDE;
                v[j][b] = {};
                if (b < a.n && column < min(work.end, a.k))
                    v[j][b] = __ldcg((const uint4*)((const T*)a.x + (i64)b * a.k + column));
            }
#pragma unroll
        for (int part = 0; part < COLUMNS; part += AT_ONCE) {
            if (first - lane + part * STRIDE >= work.end) break;
#pragma unroll
            for (int j = part; j < part + AT_ONCE; j++)
#pragma unroll
                for (int b = 0; b < MAX_N; b++) {
                    float x[EACH];
#pragma unroll
                    for (int i = 0; i < EACH; i++) x[i] = to_float(((const T*)&v[j][b])[i]);
                    store_activation(x, b, first + j * STRIDE, a, work, to, stride);
                }
        }
    }
    named_barrier<1, CONSUMER_THREADS>();
}
#endif
