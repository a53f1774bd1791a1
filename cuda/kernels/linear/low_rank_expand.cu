// low_rank_expand: the second half of LoRA for decode rows. out = bias + narrow · Bᵀ with the matrices B
// of each row's set of adapters: the bias of every row for the matmul that follows.
//
//   table   int64 [num_sets, entry]: for each set, from element 2 on, the number of parts, and for each part
//           its first column of out, its number of columns, its rank, its first element of narrow, and
//           the address of B, T [columns, rank]
//   sets    int32 [n]: the set of a row; below 0: none
//   bias    T [m] or null
//   narrow  fp32 [n, max_rank], from low_rank_shrink
//   out     T [n, m]
//
// Algorithm: a thread computes one column. Its rows of B are fetched to L2 before the upstream kernel
// ends.
//
// Requires: ranks % 8 == 0; addresses aligned to 16 bytes.
// Launch: grid (ceil(m / 256), n), block 256, no dynamic shared memory.
// Moves the matrices B of the rows' sets, and out.
// Accuracy: fp32 sums, rounded once.
// Test: tests/cuda/kernels/test_low_rank_expand.py
#include "common/pack.cuh"

constexpr int THREADS = 256, PART = 5, FIRST_PART = 3;

extern "C" __global__ void __launch_bounds__(THREADS)
low_rank_expand_kernel(const i64* table, const int* sets, const T* bias, const float* narrow, T* out,
                       int m, int max_rank, int entry) {
    start_dependents();
    int row = blockIdx.y, column = blockIdx.x * THREADS + threadIdx.x, set = sets[row];
    const i64* own = table + (i64)max(set, 0) * entry;
    int num_parts = set < 0 || column >= m ? 0 : (int)own[2];
    for (int p = 0; p < num_parts; p++) {
        const i64* part = own + FIRST_PART + p * PART;
        i64 local = column - part[0], rank = part[2];
        if (local < 0 || local >= part[1]) continue;
        const T* b = reinterpret_cast<const T*>(part[4]) + local * rank;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(b));
    }
    float sum = bias && column < m ? to_float(bias[column]) : 0.f;
    wait_for_upstream();
    if (column >= m) return;
    for (int p = 0; p < num_parts; p++) {
        const i64* part = own + FIRST_PART + p * PART;
        i64 local = column - part[0];
        int rank = (int)part[2];
        if (local < 0 || local >= part[1]) continue;
        const T* b = reinterpret_cast<const T*>(part[4]) + local * rank;
        const float* factors = narrow + (i64)row * max_rank + part[3];
        for (int r = 0; r < rank; r += 8) {
            Pack<T, 8> weights = load<8>(b + r);
#pragma unroll
            for (int i = 0; i < 8; i++) sum += weights[i] * __ldcg(factors + r + i);
        }
    }
    out[(i64)row * m + column] = from_float<T>(sum);
}
