// expert_gated: the first half of a mixture's FFNs: gate and up products of the chosen experts.
//
//   x          T [n, k]
//   addresses  u64 [experts]: each expert's matrix T [2 * inner, k], the gate's rows first
//   ids        int32 [n, chosen]
//   out        T [n, chosen, inner] = ACTIVATION(gate · x) * (up · x)
//
// Grid (ceil(inner / 16), n * chosen), block 256, dynamic shared memory k * sizeof T. A warp takes
// two gate rows and their up rows, a lane 16 bytes of each at a time, four times that under way.
// Moves n * chosen * 2 * inner * k * sizeof T bytes, less where tokens share experts that stay in L2.
// Requires k * sizeof T to be a multiple of 16. Which experts is known only when everything upstream
// is done, so no weight comes before. Accumulates in fp32, rounded once.
// Test: tests/cuda/kernels/test_expert_gated.py, relative 2^-8 (bf16), 2^-11 (fp16), 1e-5 (fp32).
#include "common/activation.cuh"
#include "moe/expert_rows.cuh"

constexpr int PAIRS = 2;  // of a warp

extern "C" __global__ void __launch_bounds__(THREADS)
expert_gate_up_kernel(const T* x, const u64* addresses, const int* ids, T* out, int k, int inner,
                    int chosen) {
    extern __shared__ __align__(16) u8 dynamic[];
    T* vector = (T*)dynamic;
    start_dependents();
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    i64 place = blockIdx.y;
    int row = (blockIdx.x * WARPS + warp) * PAIRS, count = min(PAIRS, inner - row);
    wait_for_upstream();
    const T* gate = (const T*)addresses[ids[place]];
    fetch(vector, x + place / chosen * k, k);
    __syncthreads();
    if (count <= 0) return;
    float gates[PAIRS] = {}, ups[PAIRS] = {};
    add_products(gates, gate + (i64)row * k, k, count, vector, k, lane, WARP);
    add_products(ups, gate + ((i64)inner + row) * k, k, count, vector, k, lane, WARP);
#pragma unroll
    for (int r = 0; r < PAIRS; r++) {
        float g = warp_reduce(gates[r], Sum()), u = warp_reduce(ups[r], Sum());
        if (lane == 0 && r < count)
            out[place * inner + row + r] = from_float<T>(activate<ACTIVATION>(g) * u);
    }
}
