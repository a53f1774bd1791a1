// expert_down: the second half of a mixture's FFNs, weighted and added up.
//
//   x          T [n, chosen, inner]
//   addresses  u64 [experts]: each expert's matrix T [rows, inner]
//   ids        int32 [n, chosen]
//   shares     fp32 [n, chosen]
//   out        fp32 [n, rows] = sum over a token's experts of share * (matrix · x)
//
// Grid (ceil(rows / 4), n), block 256, dynamic shared memory chosen * inner * sizeof T. A block has
// four rows of one token. Its warps divide the experts among them, and where these are fewer, the
// columns; their sums are added in the order of the warps. Moves n * chosen * rows * inner * sizeof T
// bytes. Requires inner * sizeof T to be a multiple of 16. Accumulates in fp32.
// Test: tests/cuda/kernels/test_expert_down.py, relative 1e-5: results are fp32.
#include "moe/expert_rows.cuh"

constexpr int ROWS = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
expert_down_kernel(const T* x, const u64* addresses, const int* ids, const float* shares, float* out,
                   int rows, int inner, int chosen) {
    extern __shared__ __align__(16) u8 dynamic[];
    __shared__ float sums[WARPS][ROWS];
    T* vectors = (T*)dynamic;
    start_dependents();
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int parts = max(1, WARPS / chosen), part = warp % parts, at_once = WARPS / parts;
    i64 token = blockIdx.y;
    int row = blockIdx.x * ROWS, count = min(ROWS, rows - row);
    wait_for_upstream();
    fetch(vectors, x + token * chosen * inner, chosen * inner);
    __syncthreads();
    float total[ROWS] = {};
    for (int slot = warp / parts; slot < chosen && warp / parts < at_once; slot += at_once) {
        const T* matrix = (const T*)addresses[ids[token * chosen + slot]];
        float share = shares[token * chosen + slot], own[ROWS] = {};
        add_products(own, matrix + (i64)row * inner, inner, count, vectors + slot * inner, inner,
                     part * WARP + lane, parts * WARP);
#pragma unroll
        for (int r = 0; r < ROWS; r++) total[r] += share * own[r];
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = warp_reduce(total[r], Sum());
        if (lane == 0) sums[warp][r] = sum;
    }
    __syncthreads();
    if (threadIdx.x < count) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += sums[w][threadIdx.x];
        out[token * rows + row + threadIdx.x] = sum;
    }
}
