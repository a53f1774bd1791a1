// packed_gemm: matmul of many activation rows with a packed weight, on tensor cores. out = x · weightᵀ (+ bias).
//
//   x_map      tensor map of x, boxes of BLOCK_N (WGMMA_PATH: half of it) rows × 64 columns, 128-byte swizzle
//   weight_map tensor map of tiles, boxes of 16 row blocks × UNIT_BYTES. Both are for sm_90 and newer
//   x          T [n, k]
//   tiles      u8 [row_blocks, block_bytes]: packed by SCHEME and GROUP_SIZE (packed_layout.cuh)
//   row_scale  fp32 [m] or null: null if the scheme has none
//   bias       T [m] or null
//   x_scale    fp32 [n] or null: scale of each activation row
//   out        T [n, m]
//   partial_sums  fp32 [num_sums]: [blocks, 2, BLOCK_M * BLOCK_N]
//   counters   int32 [num_counters]: one for each block; zeros, and zeros again at the end
//
// Algorithm: the weight's rows are the M side of the MMA and the activation rows the N side. A work unit is an
// output tile of BLOCK_M weight rows × BLOCK_N activation rows times 128 columns. The units, columns innermost, are
// divided evenly among one persistent block for each multiprocessor ("stream-K"). A producer warp fills two rings
// in shared memory: packed weights, 128 columns a stage, and activations, 64 or 128 columns a stage. 8 or 16
// consumer warps convert 16 weight rows each to T in registers, which are the left operand of wgmma (WGMMA_PATH) or
// mma.sync (MMA_PATH). Blocks that share a tile divide its activation rows: each stores its sums of the others'
// rows, and adds theirs to those of its own. With WGMMA_PATH, clusters of two blocks compute neighboring tiles;
// each loads half of the activations for both, because L2 is the limit.
//
// Requires: pointers aligned to 16 bytes; k a multiple of 16, or of GROUP_SIZE; T of 16 bits.
// Launch: grid at most one block for each multiprocessor; block 32 * CONSUMER_WARPS + 128;
// dynamic shared memory: 1024 + x_stages * X_STAGE_BYTES + w_stages * W_STAGE_BYTES.
// Moves the weight once for every BLOCK_N activation rows.
// Accuracy: weights rounded to T (without groups they are exact), fp32 sums, one rounding of the result.
// Test: tests/cuda/kernels/test_packed_gemm.py
#define MMA_PATH 1
#define WGMMA_PATH 2
#if PATH == WGMMA_PATH && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#undef PATH
#define PATH MMA_PATH
#endif
#include "linear/gemm_work.cuh"
#if PATH == WGMMA_PATH
#include "linear/gemm_wgmma.cuh"
#else
#include "linear/gemm_mma.cuh"
#endif
#include "linear/gemm_epilogue.cuh"

#if PATH == WGMMA_PATH
#define CLUSTER_SIZE __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_SIZE
#endif

__device__ __forceinline__ void produce(const Arguments& a, Rings& rings) {
    int w = 0, xs = 0;
    u32 w_parity = 1, x_parity = 1;
    bool waited = false;
    for (Segment s(a); s.valid(); s.next()) {
        for (int unit = s.first; unit < s.last; unit++) {
            barrier_wait(&rings.w_empty[w], w_parity);
            load_weights(a, s, unit, rings.weights + w * W_STAGE_BYTES, &rings.w_full[w]);
            if (++w == a.w_stages) w = 0, w_parity ^= 1;
            if (!waited) wait_for_upstream();  // weights do not depend on it
            waited = true;
#pragma unroll 1
            for (int half = 0; half < 2; half += X_BOXES) {
                barrier_wait(&rings.x_empty[xs], x_parity);
                load_activations(a, s, unit * UNIT_COLUMNS + half * 64, rings.x + xs * X_STAGE_BYTES,
                                 &rings.x_full[xs]);
                if (++xs == a.x_stages) xs = 0, x_parity ^= 1;
            }
        }
    }
}

__device__ __forceinline__ void consume(const Arguments& a, Rings& rings) {
    RingState state;
    for (Segment s(a); s.valid(); s.next()) {
        float sums[BLOCK_N / 2] = {};
        add_units(a, s, rings, state, sums);
        finish(a, s, sums);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) CLUSTER_SIZE
packed_gemm_kernel(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map, const T* x,
                   const u8* tiles, const float* row_scale, const T* bias, const float* x_scale, T* out, int n, int m,
                   int k, int w_stages, int x_stages, float* partial_sums, int* counters) {
    extern __shared__ u8 shared[];
    __shared__ u64 barriers[4 * MAX_STAGES];
    start_dependents();
    Arguments a{x_map, weight_map, x,        tiles,    row_scale,    bias,    x_scale, out,
                n,     m,          k,        w_stages, x_stages,     partial_sums, counters};
    Rings rings;
    rings.x = shared + (-shared_address(shared) & 1023);
    rings.weights = rings.x + x_stages * X_STAGE_BYTES;
    rings.w_full = barriers;
    rings.w_empty = barriers + MAX_STAGES;
    rings.x_full = barriers + 2 * MAX_STAGES;
    rings.x_empty = barriers + 3 * MAX_STAGES;
    if (threadIdx.x < MAX_STAGES) {
        barrier_init(&rings.w_full[threadIdx.x], FULL_ARRIVALS);
        barrier_init(&rings.x_full[threadIdx.x], FULL_ARRIVALS);
        barrier_init(&rings.w_empty[threadIdx.x], CONSUMER_WARPS);
        barrier_init(&rings.x_empty[threadIdx.x], CONSUMER_WARPS * CLUSTER);
        barrier_init_fence();
    }
    __syncthreads();
    cluster_barrier();
    if (threadIdx.x >= CONSUMERS) {
        fewer_registers();
        if (threadIdx.x < CONSUMERS + COPYING) produce(a, rings);
    } else {
        more_registers();
        wait_for_upstream();  // which may still read `out`
        consume(a, rings);
    }
    __syncwarp();
    cluster_barrier();  // the other block may still write to this one
}
