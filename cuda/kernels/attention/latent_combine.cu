// latent_combine: join the results of latent_attention's splits.
//
//   partials  fp32 [num_splits * num_rows * (rank + 2)]: sums [num_splits, num_rows, rank], then two statistics
//             [num_splits, num_rows], as latent_attention writes them; a row is a head of a sequence
//   out       T [num_seqs, num_heads, rank]: num_rows heads in all
//
// out = sum of 2^(max_s - max) · values_s over the splits s, divided by the same sum of their weights
// (Flash-Decoding; Dao et al., 2023). Without a token: 0.
//
// Algorithm: a block combines a row, a thread four of its elements; many loads are in flight.
// Requires: num_splits <= 64; rank a multiple of 4, at most 512.
// Launch: grid num_rows, block 128, no dynamic shared memory.
// Moves num_rows * num_splits * rank * 4 bytes, mostly from L2.
// Accuracy: fp32, one rounding to T. Test: tests/cuda/kernels/test_latent_combine.py
#include "common/pack.cuh"

constexpr int THREADS = 128, MAX_SPLITS = 64, BATCH = 16;

extern "C" __global__ void __launch_bounds__(THREADS)
latent_combine_kernel(const float* partials, T* out, int num_splits, int num_rows, int rank) {
    __shared__ float2 statistics[MAX_SPLITS];
    start_dependents();
    wait_for_upstream();
    i64 row = blockIdx.x;
    const float2* found = (const float2*)(partials + (i64)num_splits * num_rows * rank);
    if (threadIdx.x < num_splits) statistics[threadIdx.x] = __ldcg(found + threadIdx.x * (i64)num_rows + row);
    __syncthreads();
    float greatest = -infinity(), total = 0, sum[4] = {};
    for (int split = 0; split < num_splits; split++)
        if (statistics[split].y > 0) greatest = fmaxf(greatest, statistics[split].x);
    int column = threadIdx.x * 4;
    for (int first = 0; first < num_splits; first += BATCH) {
        float4 values[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int split = first + i;
            values[i] = {};
            if (split < num_splits && column < rank && statistics[split].y > 0)
                values[i] = __ldcg((const float4*)(partials + (split * (i64)num_rows + row) * rank + column));
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (first + i >= num_splits || !(statistics[first + i].y > 0)) continue;
            float weight = exp2f(statistics[first + i].x - greatest);
            total += weight * statistics[first + i].y;
            sum[0] += weight * values[i].x;
            sum[1] += weight * values[i].y;
            sum[2] += weight * values[i].z;
            sum[3] += weight * values[i].w;
        }
    }
    if (column >= rank) return;
    float by = total > 0 ? 1 / total : 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] *= by;
    Pack<T, 4> result;
    result = sum;
    store(out + row * rank + column, result);
}
