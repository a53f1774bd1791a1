// combine_splits: join the results of prefill_attention's splits of the keys.
//
//   partials      fp32 [num_splits * num_tokens * num_heads * (head_dim + 2)]: sums [num_splits, num_tokens,
//                 num_heads, head_dim], then two statistics [num_splits, num_tokens, num_heads]: see
//                 prefill_splits.cuh
//   query_starts  int32 [num_seqs + 1]; only tokens below its last element are written
//   out           T [num_tokens, num_heads, head_dim]
//
// out = sum of 2^(max_s - max) · values_s over the splits s, divided by the same sum of their weights
// (Flash-Decoding; Dao et al., 2023). Without a visible key: 0.
//
// Algorithm: a warp combines a head of a token; lane s holds the statistics of split s. The values of
// eight splits are requested together: one after the other, each would take a trip to L2.
// Requires: num_splits <= 32; head_dim % 8 == 0.
// Launch: grid ceil(num_tokens * num_heads / 4), block 128, no shared memory.
// Moves num_splits * head_dim * 4 bytes for each head of a token, mostly from L2.
// Accuracy: fp32, one rounding to T. Test: tests/cuda/kernels/test_combine_splits.py
#include "common/pack.cuh"

constexpr int THREADS = 128;
constexpr int TOGETHER = 8;  // splits whose loads are in flight at a time

extern "C" __global__ void __launch_bounds__(THREADS)
combine_splits_kernel(const float* partials, const int* query_starts, T* out, int num_seqs, int num_splits,
                      int num_tokens, int num_heads, int head_dim) {
    start_dependents();
    wait_for_upstream();
    int lane = threadIdx.x % WARP, rows = num_tokens * num_heads;
    int row = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (row >= query_starts[num_seqs] * num_heads) return;
    const float2* statistics = (const float2*)(partials + (i64)num_splits * rows * head_dim);
    float2 own = {-infinity(), 0};
    if (lane < num_splits) own = statistics[(i64)lane * rows + row];
    if (own.y == 0) own.x = -infinity();
    float greatest = own.x;
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2)
        greatest = fmaxf(greatest, __shfl_xor_sync(ALL, greatest, offset));
    float weight = own.y > 0 ? exp2f(own.x - greatest) : 0.f, total = weight * own.y;
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2) total += __shfl_xor_sync(ALL, total, offset);
    float by = total > 0 ? 1 / total : 0.f;
    for (int first = 0; first < head_dim; first += 4 * WARP) {
        int column = first + 4 * lane;
        float sum[4] = {};
        for (int begin = 0; begin < num_splits; begin += TOGETHER) {
            float4 values[TOGETHER];
            float factors[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                int split = begin + i;
                factors[i] = __shfl_sync(ALL, weight, split);  // 0 from num_splits on
                values[i] = {};
                if (factors[i] != 0 && column < head_dim)
                    values[i] = *(const float4*)(partials + ((i64)split * rows + row) * head_dim + column);
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                sum[0] += factors[i] * values[i].x;
                sum[1] += factors[i] * values[i].y;
                sum[2] += factors[i] * values[i].z;
                sum[3] += factors[i] * values[i].w;
            }
        }
        if (column >= head_dim) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] *= by;
        Pack<T, 4> result;
        result = sum;
        store(out + (i64)row * head_dim + column, result);
    }
}
