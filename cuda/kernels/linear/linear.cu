// linear: matmul of 1 to 16 activation rows at the speed of the memory, fused with the operations before
// and after it in a decoder layer. y = x · weightᵀ (+ bias).
//
//   map, x_map   tensor maps of plain weights and, with STREAM_X, of x (ops/linear/layout.py)
//   weight       T [m, k] with SCHEME PLAIN, else u8 [row_blocks, block_bytes]: packed by SCHEME and GROUP_SIZE
//                (packed_layout.cuh)
//   bias         T [n, m], rows bias_stride elements apart, unaligned with ROW_BIAS, else T [m] or null
//   x            fp32 [n, k] with NORM, else T [n, k]
//   norm_weight  T [k] with NORM, else null: x is divided by its root mean square (+ eps) and multiplied by
//                norm_weight + weight_offset
//   row_scale    fp32 [m] or null: of a packed weight
//   x_scale      fp32 [n] or null: scale of each activation row, with a packed weight
//   out          fp32 [n, m] with FP32_OUT, fp32 [n, m] with EPILOGUE RESIDUAL, T [n, m / 2] with EPILOGUE ACT_AND_MUL,
//                u64 [world_size] with EPILOGUE SEND, T [n, query_heads, head_dim] with EPILOGUE ROPE_CACHE,
//                else T [n, m]
//     STORE        = y
//     RESIDUAL     in place: += y
//     ACT_AND_MUL  = ACTIVATION(y[i]) * y[m / 2 + i]
//     SEND         addresses in the ranks' peer buffers; y is sent to all, fp32 [n, m]
//     ROPE_CACHE   the weight rows are the query, key and value heads: out is the rotated queries; rotated keys
//                  and the values go to `cache` at `slot_mapping`
//   partial_sums  fp32 [num_sums]: of splits
//   counters     int32 [num_counters]: of splits; 0 before and after
//   cos_sin      fp32 [max_positions, head_dim] with EPILOGUE ROPE_CACHE, else null
//   positions, slot_mapping  int32 [n] with EPILOGUE ROPE_CACHE, else null
//   cache        T [num_blocks, 2 * num_kv_heads, block_size, head_dim] with EPILOGUE ROPE_CACHE, else null
//   table        int64 [num_sets, entry] with LOW_RANK, else null: changes by adapters, see low_rank.cuh
//   sets         int32 [n] with LOW_RANK, else null
//   narrow, next_narrow  fp32 [num_narrow] with LOW_RANK, else null
//
// Algorithm: one persistent block a multiprocessor streams the weights. A producer warp fills a ring of
// stages in shared memory, 16 weight rows × 1 KiB each, by tensor copies of boxes of 8 rows × 512 bytes, or
// bulk copies of packed tiles; it starts before the upstream kernel ends, because weights do not depend on
// it. Eight consumer warps divide the columns of a stage and multiply by mma: weight rows are M, activation
// rows are N, so 8 activation rows cost as much as one. Two epilogue warps take turns to add the eight partial
// sums in a fixed order and to write the output, so the consumers never wait for global memory. fp32 uses
// FMAs instead of mma.
// With CLUSTER 2 two blocks work together: each has half of the columns of every chunk of 1 KiB for two M
// tiles, so it loads half of x. Four warps multiply each tile; their sums go to the block that finishes the
// tile, by asynchronous stores. The sums have the order of a single block: a row's result does not depend on
// CLUSTER. With STREAM_X the columns of x come with each stage, instead of being resident.
// A work item is an M tile of 16 weight rows over the columns of a split. If the activations do not fit
// shared memory, k is divided into num_splits (RESIDUAL and SEND only), and the block that finishes a
// tile last adds the splits in order. The tile has eight rows and their partners pair_span / 2 further
// on: pair_span is 16 for independent rows, m for ACT_AND_MUL, head_dim for ROPE_CACHE.
// Packed values are converted to T exactly (schemes/), or, for one activation row of 16-bit T, are
// multiplied with int8 planes (int8_planes.cuh; schemes of integers). A row's scale is applied to its sum, a group's
// to the group's sum: scale * (products + minus_zero * sum of x). The column order within an mma is
// permuted for both operands in the same way: 16 bytes of a row are one thread's operands of two mmas.
// Rejected designs: docs/notes/kernels.md.
//
// Requires: pointers aligned to 16 bytes; k * sizeof T and, for 8-bit weights, k multiples of 16; for
// groups, k a multiple of GROUP_SIZE; head_dim of 8; for packed weights pair_span of 16.
// box_rows is 8, or 4 if the pairs of an M tile have no eight neighboring rows. STREAM_X: plain 16-bit weights
// without NORM.
// Launch: grid num_splits × blocks, at most one block a multiprocessor, clusters of CLUSTER; block 352, with
// few enough registers that a block of decode_attention fits beside it; dynamic shared memory: the stages and
// the activations, see ops/linear/layout.py.
// Moves the weights, their scales and the outputs once.
// Accuracy: fp32 sums, int32 within a group: relative 2^-8 (bf16), 2^-11 (fp16), 2e-6 (fp32): one rounding
// of normalized inputs and one of the result; int8 planes 2^-13.
// Test: tests/cuda/kernels/test_linear.py, test_linear_packed.py
#include "linear/epilogue.cuh"

__device__ void consume(const Arguments& a, const Work& work, Shared& shared, const u8* ring,
                        u8* activations, int stride) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, stage = 0, item = 0;
    u32 parity = 0, full = shared_address(shared.full);
    asm("" : "+r"(full));  // otherwise the compiler recomputes the address for every stage
    const u8* own_ring = ring + first_step_bytes();
    WarpAccumulator accumulator;
    for (int tile = work.first; tile < work.tiles; tile += work.step, item++) {
        for (int own = 0; own < work.columns; own += OWN) {
            barrier_wait(full + stage * 8, parity);
#if STREAM_X
            activations = (u8*)ring + stage * STAGE_BYTES + WEIGHT_BYTES + warp % SHARERS * (MAX_N * PANEL_BYTES);
#endif
            add_chunk(accumulator, own_ring + stage * STAGE_BYTES, activations, stride, a.n, work, own);
            __syncwarp();
            if (lane == 0) barrier_arrive(&shared.empty[stage]);
            if (++stage == a.num_stages) stage = 0, parity ^= 1;
        }
        int buffer = item % EPILOGUES, place = work.rank * SHARERS + warp % SHARERS;
        u32 used = (item / EPILOGUES & 1) ^ 1;
#if CLUSTER > 1
        int owner = warp / SHARERS;
        if (owner != work.rank) {
            if (tile + owner >= work.tiles) break;
            barrier_wait_cluster(&shared.peer_empty[buffer], used);
            u32 to = address_in(owner, shared.sums[buffer][place]);
            u32 barrier = address_in(owner, &shared.sums_full[buffer]);
            accumulator.store([&](int b, int r, float v) { store_async(to + (b * SUMS_STRIDE + r) * 4, v, barrier); },
                              a.n);
            continue;
        }
#endif
        barrier_wait(&shared.sums_empty[buffer], used);
        float(*sums)[SUMS_STRIDE] = shared.sums[buffer][place];
        accumulator.store([&](int b, int r, float v) { sums[b][r] = v; }, a.n);
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.sums_full[buffer]);
    }
}

// Launch bounds that leave 72 registers a thread: then two blocks fit a multiprocessor. Those that cannot share one
// have more loads of x in flight.
constexpr int BOUND_THREADS = SHARES_MULTIPROCESSOR ? 448 : THREADS;

extern "C" __global__ void __launch_bounds__(BOUND_THREADS, SHARES_MULTIPROCESSOR ? 2 : 1)
linear_kernel(
#if SCHEME == PLAIN
              const __grid_constant__ TensorMap map,
#endif
#if STREAM_X
              const __grid_constant__ TensorMap x_map,
#endif
              const WeightElement* weight, const T* bias, const void* x, const T* norm_weight, void* out,
              float eps, float weight_offset, int n, int m, int k, int pair_span, int num_splits,
              int num_stages, float* partial_sums, u32* counters, const float* cos_sin,
              const int* positions, const int* slot_mapping, T* cache, int num_heads, int num_kv_heads,
              int head_dim, int log2_block_size, int world_size, const float* row_scale,
              const float* x_scale, int bias_stride, int box_rows, const i64* table, const int* sets, float* narrow,
              float* next_narrow, int max_rank, int entry, int num_slices, int num_narrow) {
    extern __shared__ __align__(STREAM_X ? 1024 : 128) u8 dynamic[];
    __shared__ Shared shared;
    Arguments a = {weight,       bias,      x,            norm_weight, out,          eps,
                   weight_offset, n,        m,            k,           pair_span,    num_splits,
                   num_stages,   partial_sums, counters,  cos_sin,     positions,    slot_mapping,
                   cache,        num_heads, num_kv_heads, head_dim,    log2_block_size,
                   world_size,   row_scale, x_scale,     bias_stride, box_rows};
    LowRank low_rank = {table, sets, narrow, next_narrow, max_rank, entry, num_slices, num_narrow};
    Maps maps;
#if SCHEME == PLAIN
    maps.weight = &map;
#endif
#if STREAM_X
    maps.x = &x_map;
#endif
    Work work(a);
    u8* ring = dynamic;
    u8* activations = dynamic + num_stages * STAGE_BYTES;
    int warp = threadIdx.x / WARP, stride = activation_stride(work);
    start_dependents();
    if (warp == CONSUMERS) {
        int lane = threadIdx.x % WARP;
        if (lane < num_stages) {
            barrier_init(&shared.full[lane], COPY_ARRIVALS);
            barrier_init(&shared.empty[lane], CONSUMERS);
        } else if (lane >= WARP - EPILOGUES) {
            int buffer = WARP - 1 - lane;
            // In a cluster the epilogue arrives, too, and expects the other block's sums.
            barrier_init(&shared.sums_full[buffer], SHARERS + (CLUSTER > 1));
            barrier_init(&shared.sums_empty[buffer], 1);
#if CLUSTER > 1
            barrier_init(&shared.peer_empty[buffer], 1);
            if (buffer == 0) barrier_init(&shared.squares_full, CLUSTER * CONSUMERS);
#endif
        }
#if __CUDA_ARCH__ >= 900
        if (maps.weight) prefetch_map(*maps.weight);
        if (maps.x) prefetch_map(*maps.x);
#endif
        barrier_init_fence();
        __syncwarp();
        named_arrive<2, THREADS>();
#if CLUSTER > 1
        cluster_arrive();
#endif
        produce(a, maps, work, shared, ring);  // reads only weights, so it need not wait for upstream
#if CLUSTER > 1
        __syncwarp();
        cluster_wait();
#endif
        return;
    }
    named_barrier<2, THREADS>();  // the mbarriers are initialized
#if CLUSTER > 1
    cluster_arrive();  // the other block waits before it stores to this one
#endif
    if (warp < CONSUMERS) {
        if (NORM && threadIdx.x * 128 < k * (int)sizeof(T))  // constant too, and not yet in L2
            asm volatile("prefetch.global.L2 [%0];" ::"l"((const u8*)norm_weight + threadIdx.x * 128));
#if !STREAM_X
        if constexpr (INT8_PLANES) {
#pragma unroll 1
            for (a.n = warms_instructions() ? 0 : n;; a.n = n) {  // no row: nothing is loaded
                if (a.n > 0) wait_for_upstream();
                load_activations(a, work, shared, activations, stride);
                if (a.n > 0) break;
            }
        } else {
            wait_for_upstream();
            load_activations(a, work, shared, activations, stride);
            sum_groups(work, activations, stride, a.n);
        }
#endif
#if CLUSTER > 1
        if (!NORM) cluster_wait();  // see store_squares
#endif
        consume(a, work, shared, ring, activations, stride);
    } else {
        int buffer = warp - CONSUMERS - 1;
#if LOW_RANK
        prefetch_shrink(a, low_rank, buffer);
        prefetch_expand(a, low_rank, work.first + buffer * work.step);
#endif
#if CLUSTER > 1
        cluster_wait();
#endif
        wait_for_upstream();
        epilogue(a, work, shared, buffer, low_rank);
    }
}
