// latent_combine: join the results of latent_attention's splits.
//
//   partials  fp32 [num_splits, num_rows, rank] sums, then fp32 × 2 [num_splits, num_rows] statistics, as
//             latent_attention writes them; a row is a head of a sequence
//   out       T [num_rows, rank]
//
// out = sum of 2^(max_s - max) · values_s over the splits s, divided by the same sum of their weights
// (Flash-Decoding; Dao et al., 2023). Without a token: 0.
//
// Algorithm: a block combines a row. Its four groups of threads take every fourth split, a thread four elements; all
// loads are in flight together.
// Requires: num_splits <= 64; rank a multiple of 4, at most 512.
// Launch: grid num_rows, block 512, no dynamic shared memory.
// Moves num_rows * num_splits * rank * 4 bytes, mostly from L2.
// Accuracy: fp32, one rounding to T. Test: tests/cuda/kernels/test_latent_combine.py
#include "common/pack.cuh"
#include "common/reduce.cuh"

constexpr int GROUPS = 4, COLUMNS = 128, THREADS = GROUPS * COLUMNS, MAX_SPLITS = 64;
constexpr int BATCH = MAX_SPLITS / GROUPS;

extern "C" __global__ void __launch_bounds__(THREADS)
latent_combine_kernel(const float* partials, T* out, int num_splits, int num_rows, int rank) {
    __shared__ float weights[MAX_SPLITS], scratch[THREADS / WARP];
    __shared__ float4 sums[GROUPS][COLUMNS];
    start_dependents();
    wait_for_upstream();
    i64 row = blockIdx.x;
    int group = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS * 4;
    const float2* statistics = (const float2*)(partials + (i64)num_splits * num_rows * rank);
    float2 own = {-infinity(), 0};
    if (threadIdx.x < num_splits) own = __ldcg(statistics + threadIdx.x * (i64)num_rows + row);
    if (!(own.y > 0)) own = {-infinity(), 0};
    float greatest = block_reduce<THREADS>(own.x, Max(), scratch);
    float weight = own.y > 0 ? exp2f(own.x - greatest) : 0.f;
    if (threadIdx.x < MAX_SPLITS) weights[threadIdx.x] = weight;
    float total = block_reduce<THREADS>(weight * own.y, Sum(), scratch);
    float4 values[BATCH], sum = {};
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        int split = i * GROUPS + group;
        values[i] = {};
        if (weights[split] > 0 && column < rank)
            values[i] = __ldcg((const float4*)(partials + (split * (i64)num_rows + row) * rank + column));
    }
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        float by = weights[i * GROUPS + group];
        sum.x += by * values[i].x;
        sum.y += by * values[i].y;
        sum.z += by * values[i].z;
        sum.w += by * values[i].w;
    }
    sums[group][column / 4] = sum;
    __syncthreads();
    if (group != 0 || column >= rank) return;
    float by = total > 0 ? 1 / total : 0.f, joined[4] = {};
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        float4 part = sums[g][column / 4];
        joined[0] += part.x * by;
        joined[1] += part.y * by;
        joined[2] += part.z * by;
        joined[3] += part.w * by;
    }
    Pack<T, 4> result;
    result = joined;
    store(out + row * rank + column, result);
}
