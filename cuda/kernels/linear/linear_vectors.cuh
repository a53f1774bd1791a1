// How linear's vectors come to shared memory: normalized, as T or as digits.
#pragma once
#include "linear/linear_sums.cuh"
#include "common/reduce.cuh"

// RMSNorm's factor of a vector, from the consumers' partial sums of squares.
__device__ __forceinline__ float norm_factor(const Arguments& a, const Shared& shared, int b) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < CONSUMERS; w++) sum += shared.squares[w][b];
    return rsqrtf(sum / a.k + a.eps);
}

// Loads that are in flight together: a round trip to L2 takes longer than all of them. Of those so
// many are used at once.
constexpr int COLUMNS = MAX_N > 1 ? 1 : NORM ? 4 : 8;
constexpr int AT_ONCE = COLUMNS > 4 ? 2 : COLUMNS;
// RMSNorm's factor is one number a vector; where what is kept of a vector can hold the residual stream
// it is left to the epilogue, which saves a pass. fp16 cannot.
constexpr bool NORM_FIRST = NORM && IS_HALF && !INTEGERS;

// Keeps EACH neighbors of vector b, from `column` of the whole on, for the products.
template <int EACH>
__device__ __forceinline__ void keep(const float (&x)[EACH], int b, int column, const Arguments& a,
                                     const Share& share, u8* vectors, int stride) {
    bool valid = b < a.n && column < share.end;
    if constexpr (INTEGERS) {
        keep_digits(x, column - share.begin, valid, vectors, stride);
    } else if (valid) {
        Vec<T, EACH> values;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int from = CROSSED && (i % 4 == 1 || i % 4 == 2) ? i ^ 3 : i;
            values.at[i] = from_float<T>(x[from]);
        }
        *(Vec<T, EACH>*)(vectors + b * stride + (column - share.begin) * sizeof(T)) = values;
    }
}

#if NORM
// Calls use(b, column, four values of vector b, four of norm_weight) for this thread's columns, all
// of a warp's together with zeros past the end, and leaves the sums of squares in shared memory.
template <typename Use>
__device__ __forceinline__ void for_values(const Arguments& a, const Share& share, Shared& shared,
                                           Use use) {
    constexpr int STRIDE = CONSUMER_THREADS * 4;
    float squares[MAX_N] = {};
    int lane = threadIdx.x % WARP * 4;
    for (int first = threadIdx.x * 4; first - lane < share.end; first += COLUMNS * STRIDE) {
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

// The normalized vectors into shared memory.
__device__ void load_vectors(const Arguments& a, const Share& share, Shared& shared, u8* to,
                             int stride) {
    float factors[MAX_N];
    if constexpr (NORM_FIRST) {
        for_values(a, share, shared, [](int, int, float4, Vec<T, 4>) {});
        named_barrier<1, CONSUMER_THREADS>();
#pragma unroll
        for (int b = 0; b < MAX_N; b++) factors[b] = b < a.n ? norm_factor(a, shared, b) : 0;
        named_barrier<1, CONSUMER_THREADS>();
    }
    for_values(a, share, shared, [&](int b, int column, float4 v, Vec<T, 4> w) {
        float f = 1, gain[4];
        if constexpr (NORM_FIRST) f = factors[b];
#pragma unroll
        for (int j = 0; j < 4; j++) gain[j] = to_float(w.at[j]) + a.offset;
        float x[4] = {v.x * f * gain[0], v.y * f * gain[1], v.z * f * gain[2], v.w * f * gain[3]};
        keep(x, b, column, a, share, to, stride);
    });
    named_barrier<1, CONSUMER_THREADS>();
}
#else
__device__ void load_vectors(const Arguments& a, const Share& share, Shared&, u8* to, int stride) {
    constexpr int EACH = 16 / sizeof(T), STRIDE = CONSUMER_THREADS * EACH;
    int lane = threadIdx.x % WARP * EACH, first = share.begin + threadIdx.x * EACH;
    for (; first - lane < share.end; first += COLUMNS * STRIDE) {
        uint4 v[COLUMNS][MAX_N];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int b = 0; b < MAX_N; b++) {
                int column = first + j * STRIDE;
                v[j][b] = {};
                if (b < a.n && column < min(share.end, a.k))
                    v[j][b] = __ldcg((const uint4*)((const T*)a.x + (i64)b * a.k + column));
            }
#pragma unroll
        for (int together = 0; together < COLUMNS; together += AT_ONCE) {
            if (first - lane + together * STRIDE >= share.end) break;
#pragma unroll
            for (int j = together; j < together + AT_ONCE; j++)
#pragma unroll
                for (int b = 0; b < MAX_N; b++) {
                    float x[EACH];
#pragma unroll
                    for (int i = 0; i < EACH; i++) x[i] = to_float(((const T*)&v[j][b])[i]);
                    keep(x, b, first + j * STRIDE, a, share, to, stride);
                }
        }
    }
    named_barrier<1, CONSUMER_THREADS>();
}
#endif
