// count_nonfinite: adds the number of NaN and infinite elements of a tensor to a counter.
//
//   x    T [size]
//   out  int64 [1]: grows by the number of elements that are NaN or infinite
//
// Grid as many blocks as fill the GPU, at most one for 16 KiB; block 256, no dynamic shared
// memory. Moves size * sizeof T bytes, 16 of them an access. Any size. Integer sums.
// Test: tests/cuda/kernels/test_count_nonfinite.py: equal.
#include "common/reduce.cuh"

constexpr int THREADS = 256, UNROLL = 4;
constexpr int WIDTH = 16 / sizeof(T);
using Access = Vec<T, WIDTH>;

__device__ __forceinline__ int is_nonfinite(T value) {
    return !(fabsf(to_float(value)) <= 3.402823466e38f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
count_nonfinite_kernel(const T* x, u64* out, i64 size) {
    __shared__ u64 scratch[THREADS / WARP];
    start_dependents();
    wait_for_upstream();
    const Access* vectors = (const Access*)x;
    i64 num_vectors = size / WIDTH, step = (i64)gridDim.x * THREADS * UNROLL;
    u64 count = 0;
    for (i64 start = (i64)blockIdx.x * THREADS * UNROLL; start < num_vectors; start += step) {
        Access held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            i64 i = start + u * THREADS + threadIdx.x;
            if (i < num_vectors) held[u] = vectors[i];
            else held[u] = Access{};
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int k = 0; k < WIDTH; k++) count += is_nonfinite(held[u].at[k]);
    }
    i64 tail = num_vectors * WIDTH + threadIdx.x;
    if (blockIdx.x == 0 && tail < size) count += is_nonfinite(x[tail]);
    count = block_reduce<THREADS>(count, Sum(), scratch);
    if (threadIdx.x == 0 && count) atomicAdd(out, count);
}
