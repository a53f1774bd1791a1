// low_rank_shrink: the first half of LoRA for decode rows. narrow = x · Aᵀ with the matrix A of each
// row's set of adapters.
//
//   table        int64 [num_sets, entry]: for each set the address of A, T [rank, k], and its rank; what
//                follows is for low_rank_expand
//   sets         int32 [n]: the set of a row; below 0: none
//   x            fp32 [n, k] with NORM, else T [n, k]
//   norm_weight  T [k] with NORM, else null: x is divided by its root mean square (+ eps) and multiplied by
//                norm_weight + weight_offset, as in `linear`
//   narrow       fp32 [n, max_rank]; elements behind a row's rank are not written
//
// Algorithm: a block computes one element, so that few rows of A are read by many multiprocessors. The
// row of A is fetched to L2 before the upstream kernel ends. With NORM the sum of squares is computed in
// the same pass. x is read from L2: this kernel needs little shared memory and may begin while an earlier
// matmul still brings older values of the residual stream to L1.
//
// Requires: k % 8 == 0; addresses aligned to 16 bytes; no row's rank above max_rank.
// Launch: grid (max_rank, n), block 256, no dynamic shared memory.
// Moves the matrices A of the rows' sets.
// Accuracy: fp32 sums.
// Test: tests/cuda/kernels/test_low_rank_shrink.py
#include "common/reduce.cuh"
#include "common/pack.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
low_rank_shrink_kernel(const i64* table, const int* sets, const void* x, const T* norm_weight,
                       float* narrow, int k, int max_rank, int entry, float eps, float weight_offset) {
    __shared__ float scratch[THREADS / WARP];
    start_dependents();
    int rank = blockIdx.x, row = blockIdx.y, set = sets[row];
    const i64* own = table + (i64)max(set, 0) * entry;
    const T* a = reinterpret_cast<const T*>(own[0]) + (i64)rank * k;
    bool is_used = set >= 0 && rank < own[1];
    if (is_used)
        for (i64 i = (i64)threadIdx.x * 128; i < (i64)k * (int)sizeof(T); i += THREADS * 128)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const u8*>(a) + i));
    wait_for_upstream();
    if (!is_used) return;
    float sum = 0, squares = 0;
    for (int c = threadIdx.x * 8; c < k; c += THREADS * 8) {
        Pack<T, 8> weights = load<8>(a + c);
#if NORM
        Pack<float, 8> values = load_from_l2<8>(static_cast<const float*>(x) + (i64)row * k + c);
        Pack<T, 8> scales = load<8>(norm_weight + c);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum += weights[i] * values[i] * (scales[i] + weight_offset);
            squares += values[i] * values[i];
        }
#else
        Pack<T, 8> values = load_from_l2<8>(static_cast<const T*>(x) + (i64)row * k + c);
#pragma unroll
        for (int i = 0; i < 8; i++) sum += weights[i] * values[i];
#endif
    }
    sum = block_reduce<THREADS>(sum, Sum(), scratch);
#if NORM
    squares = block_reduce<THREADS>(squares, Sum(), scratch);
    sum *= rsqrtf(squares / k + eps);
#endif
    if (threadIdx.x == 0) narrow[(i64)row * max_rank + rank] = sum;
}
