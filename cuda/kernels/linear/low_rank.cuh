// Low-rank changes of the results of `linear` by adapters, with LOW_RANK: y += B · (A · x), with the
// matrices of each activation row's set.
//
//   table        i64 [num_sets, entry]: see low_rank_shrink.cu and low_rank_expand.cu
//   sets         int [n]: the set of a row; below 0: none
//   narrow       fp32 [n, num_slices, max_rank]: A · x over slices of the columns; all elements are the
//                sentinel before
//   next_narrow  fp32 [num_narrow]: set to the sentinel, for a later launch
//
// The epilogue warps have nothing else to do before the first partial sums are complete. Those of all
// blocks divide A · x: a warp multiplies four rows of A with a slice of an activation row. Every block
// then waits for all results in L2, adds the slices in order and keeps A · x in shared memory. The change
// of an M tile is computed while the consumers compute the tile. With NORM the factor of a row is applied
// to the change, since it is linear.
// A block waits for results of other blocks, so all blocks of the grid must be resident together: at
// most one block a multiprocessor. Dependents cannot take their place, because they start only after all
// blocks have begun.
//
// Requires: ranks % 8 == 0, k % 8 == 0, matrices aligned to 16 bytes; n * max_rank <= NARROW_ELEMENTS.
#pragma once
#include "comm/sentinel.cuh"
#include "common/pack.cuh"
#include "linear/load_activations.cuh"

struct LowRank {
    const i64* table;
    const int* sets;
    float* narrow;
    float* next_narrow;
    int max_rank, entry, num_slices, num_narrow;

    // The entry of an activation row's set, or null. Constant during a step.
    __device__ __forceinline__ const i64* entry_of(int row, int n) const {
        int set = row < n ? __ldg(sets + row) : -1;
        return set < 0 ? nullptr : table + (i64)set * entry;
    }
};

#if LOW_RANK
constexpr int QUAD = 4;  // rows of A that a warp multiplies together
constexpr int FIRST_PART = 3, PART = 5;
constexpr int EPILOGUE_THREADS = EPILOGUES * WARP;

// A warp's share of A · x: the rows from `a` on with the activation row `row`, over the columns
// begin … end.
struct ShrinkTask {
    const T* a = nullptr;  // null: nothing to compute
    int row, quad, slice, begin, end;

    __device__ __forceinline__ ShrinkTask(const Arguments& args, const LowRank& l, int task) {
        int quads = l.max_rank / QUAD, width = (args.k / 8 + l.num_slices - 1) / l.num_slices * 8;
        slice = task % l.num_slices;
        quad = task / l.num_slices % quads;
        row = task / l.num_slices / quads;
        begin = slice * width;
        end = min(begin + width, args.k);
        const i64* own = l.entry_of(row, args.n);
        if (own && quad * QUAD < (int)own[1])
            a = reinterpret_cast<const T*>(own[0]) + (i64)quad * QUAD * args.k;
    }
};

__device__ __forceinline__ int first_task(int warp) { return blockIdx.x * EPILOGUES + warp; }

// Fetches what the first task reads of A to L2. Needs nothing from upstream.
__device__ __forceinline__ void prefetch_shrink(const Arguments& args, const LowRank& l, int warp) {
    ShrinkTask task(args, l, first_task(warp));
    if (!task.a) return;
#pragma unroll
    for (int r = 0; r < QUAD; r++)
#pragma unroll 1
        for (int c = task.begin + threadIdx.x % WARP * (128 / (int)sizeof(T)); c < task.end;
             c += WARP * 128 / (int)sizeof(T))
            asm volatile("prefetch.global.L2 [%0];" ::"l"(task.a + (i64)r * args.k + c));
}

// Computes this warp's tasks; also makes `next_narrow` ready.
__device__ __forceinline__ void shrink(const Arguments& args, const LowRank& l, int warp) {
    int lane = threadIdx.x % WARP, num_tasks = args.n * (l.max_rank / QUAD) * l.num_slices;
#pragma unroll 1
    for (int i = first_task(warp); i < num_tasks; i += gridDim.x * EPILOGUES) {
        ShrinkTask task(args, l, i);
        if (!task.a) continue;
        float sums[QUAD] = {};
#pragma unroll 1
        for (int c = task.begin + lane * 8; c < task.end; c += WARP * 8) {
            Pack<T, 8> weights[QUAD];
#pragma unroll
            for (int r = 0; r < QUAD; r++) weights[r] = load<8>(task.a + (i64)r * args.k + c);
#if NORM
            Pack<float, 8> x = load_from_l2<8>((const float*)args.x + (i64)task.row * args.k + c);
            Pack<T, 8> scales = load<8>(args.norm_weight + c);
#else
            Pack<T, 8> x = load_from_l2<8>((const T*)args.x + (i64)task.row * args.k + c);
#endif
#pragma unroll
            for (int e = 0; e < 8; e++) {
                float value = x[e];
#if NORM
                value *= scales[e] + args.weight_offset;
#endif
#pragma unroll
                for (int r = 0; r < QUAD; r++) sums[r] += weights[r][e] * value;
            }
        }
#pragma unroll
        for (int r = 0; r < QUAD; r++) sums[r] = warp_reduce(sums[r], Sum());
        float* to = l.narrow + ((i64)task.row * l.num_slices + task.slice) * l.max_rank + task.quad * QUAD;
        if (lane == 0)
            asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(
                             __cvta_generic_to_global(to)),
                         "r"(not_sentinel(sums[0])), "r"(not_sentinel(sums[1])),
                         "r"(not_sentinel(sums[2])), "r"(not_sentinel(sums[3]))
                         : "memory");
    }
    int at = (blockIdx.x * EPILOGUES + warp) * WARP + lane;
#pragma unroll 1
    for (at *= QUAD; at < l.num_narrow; at += gridDim.x * EPILOGUE_THREADS * QUAD)
        *(uint4*)(l.next_narrow + at) = {SENTINEL, SENTINEL, SENTINEL, SENTINEL};
}

// Waits for A · x of all rows; stores the sums over the slices in shared memory.
__device__ __forceinline__ void gather(const Arguments& args, const LowRank& l, Shared& shared,
                                       int warp) {
    constexpr int AT_ONCE = 4;
    int thread = warp * WARP + threadIdx.x % WARP;
    int together = 1;  // neighboring lanes that add the slices of the same four elements
    while (together < min(l.num_slices, 8)) together *= 2;
    int quads = l.max_rank / QUAD, items = args.n * quads;
#pragma unroll 1
    for (int first = 0; first < items; first += EPILOGUE_THREADS / together) {
        int item = first + thread / together, row = item / quads, quad = item % quads;
        const i64* own = l.entry_of(row, args.n);
        bool is_used = own && quad * QUAD < (int)own[1];
        const float* from = l.narrow + (i64)row * l.num_slices * l.max_rank + quad * QUAD;
        float sum[QUAD] = {};
#pragma unroll 1
        for (int s = thread % together; s - thread % together < l.num_slices; s += AT_ONCE * together) {
            u32 v[AT_ONCE][QUAD];
            bool is_complete;
            do {  // the warp polls together
                is_complete = true;
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++) {
                    int slice = s + j * together;
#pragma unroll
                    for (int e = 0; e < QUAD; e++) v[j][e] = 0;
                    if (is_used && slice < l.num_slices)
                        asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                                     : "=r"(v[j][0]), "=r"(v[j][1]), "=r"(v[j][2]), "=r"(v[j][3])
                                     : "l"(__cvta_generic_to_global(from + (i64)slice * l.max_rank))
                                     : "memory");
                }
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++)
#pragma unroll
                    for (int e = 0; e < QUAD; e++) is_complete &= v[j][e] != SENTINEL;
            } while (!__all_sync(ALL, is_complete));
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
#pragma unroll
                for (int e = 0; e < QUAD; e++) sum[e] += __uint_as_float(v[j][e]);
        }
#pragma unroll 1
        for (int offset = together / 2; offset; offset /= 2)
#pragma unroll
            for (int e = 0; e < QUAD; e++) sum[e] += __shfl_xor_sync(ALL, sum[e], offset);
        if (is_used && thread % together == 0)
            *(float4*)(shared.narrow + row * l.max_rank + quad * QUAD) = {sum[0], sum[1], sum[2], sum[3]};
    }
    named_barrier<3, EPILOGUE_THREADS>();
}

// One activation row has one lane in four of the warp; then four lanes share the ranks of a result.
constexpr int LANES_PER_PAIR = MAX_N == 1 ? WARP / (M_TILE / 2) : 1;

// Calls use(part's first factor in shared.narrow + r, r-th octet of a row of B, which of the two rows)
// for this lane's octets of the rows of B that change weight rows low and high.
template <typename Use>
__device__ __forceinline__ void for_factors(const LowRank& l, const i64* own, int low, int high, Use use) {
    int octet = MAX_N == 1 ? threadIdx.x % WARP / (M_TILE / 2) : 0;
    int num_parts = own ? (int)own[2] : 0;
#pragma unroll 1
    for (int p = 0; p < num_parts; p++) {
        const i64* part = own + FIRST_PART + p * PART;
        int first = (int)part[0], columns = (int)part[1], rank = (int)part[2], start = (int)part[3];
        const T* b = reinterpret_cast<const T*>(part[4]);
        int at[2] = {low - first, high - first};
#pragma unroll 1
        for (int r = octet * 8; r < rank; r += LANES_PER_PAIR * 8)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (at[i] >= 0 && at[i] < columns) use(start + r, b + (i64)at[i] * rank + r, i);
    }
}

// Fetches the rows of B for a tile to L2.
__device__ __forceinline__ void prefetch_expand(const Arguments& args, const LowRank& l, int tile) {
    constexpr int PAIRS = M_TILE / 2;
    int lane = threadIdx.x % WARP;
    int low = row_of(args, tile, lane % PAIRS), high = row_of(args, tile, lane % PAIRS + PAIRS);
#pragma unroll 1
    for (int b = MAX_N == 1 ? 0 : lane / PAIRS; b < args.n; b += WARP / PAIRS)
        for_factors(l, l.entry_of(b, args.n), low, high, [](int, const T* factors, int) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(factors));
        });
}

// Returns the changes of activation row b at weight rows low and high, before the norm's factor. The
// lanes of a warp call it together.
__device__ __forceinline__ float2 expand(const Arguments& args, const LowRank& l, const Shared& shared,
                                         int b, int low, int high) {
    float y[2] = {};
    int row = MAX_N == 1 ? 0 : b;
    for_factors(l, l.entry_of(row, args.n), low, high, [&](int r, const T* factors, int i) {
        Pack<T, 8> weights = load<8>(factors);
        const float4* narrow = (const float4*)(shared.narrow + row * l.max_rank + r);
        float4 u = narrow[0], v = narrow[1];
        y[i] += weights[0] * u.x + weights[1] * u.y + weights[2] * u.z + weights[3] * u.w +
                weights[4] * v.x + weights[5] * v.y + weights[6] * v.z + weights[7] * v.w;
    });
#pragma unroll
    for (int offset = WARP / 2; offset >= WARP / LANES_PER_PAIR; offset /= 2)
#pragma unroll
        for (int i = 0; i < 2; i++) y[i] += __shfl_xor_sync(ALL, y[i], offset);
    return {y[0], y[1]};
}
#endif
