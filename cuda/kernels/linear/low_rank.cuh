// Low-rank changes of the results of `linear` by adapters, with LOW_RANK: y += B · (A · x), with the
// matrices of each activation row's set.
//
//   table        i64 [num_sets, entry]: see low_rank_shrink.cu and low_rank_expand.cu
//   sets         int [n]: the set of a row; below 0: none
//   narrow       fp32 [n, num_slices, max_rank]: A · x over slices of the columns; all elements are the
//                sentinel before
//   next_narrow  fp32 [num_narrow]: set to the sentinel, for a later launch
//
// HELPERS more warps of every block compute the changes. Together they compute A · x: a warp multiplies four
// rows of A with a slice of an activation row. Every block then waits for all results in L2, adds the
// slices in order and keeps A · x in shared memory. The helpers compute the changes of the block's M tiles
// ahead of the consumers, in a ring of CHANGE_SLOTS tiles, and the epilogue adds them. With NORM it first
// multiplies them by the row's factor, which is linear.
// Before the upstream kernel ends the helpers load their first rows of A to registers and their first rows
// of B to L1.
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

// What a lane multiplies with eight elements of x.
struct ShrinkFactors {
    Pack<T, 8> weights[QUAD], scales;

    __device__ __forceinline__ void load_at(const Arguments& args, const ShrinkTask& task, int column) {
        if (!task.a || column >= task.end) return;
#pragma unroll
        for (int r = 0; r < QUAD; r++) weights[r] = load<8>(task.a + (i64)r * args.k + column);
        if (NORM) scales = load<8>(args.norm_weight + column);
    }
};

// Computes the tasks of a helper; also makes `next_narrow` ready. Waits for upstream.
__device__ __forceinline__ void shrink(const Arguments& args, const LowRank& l, int helper) {
    int lane = threadIdx.x % WARP, num_tasks = args.n * (l.max_rank / QUAD) * l.num_slices;
    int i = helper * gridDim.x + blockIdx.x;
    ShrinkTask task(args, l, i);
    ShrinkFactors factors;
    factors.load_at(args, task, task.begin + lane * 8);
    if (task.a)
#pragma unroll 1
        for (int c = task.begin + lane * (128 / (int)sizeof(T)); c < task.end; c += WARP * 128 / (int)sizeof(T))
#pragma unroll
            for (int r = 0; r < QUAD; r++)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(task.a + (i64)r * args.k + c));
    wait_for_upstream();
#pragma unroll 1
    while (true) {
        float sums[QUAD] = {};
        if (task.a) {
#pragma unroll 1
            for (int c = task.begin + lane * 8; c < task.end; c += WARP * 8) {
#if NORM
                Pack<float, 8> x = load_from_l2<8>((const float*)args.x + (i64)task.row * args.k + c);
#else
                Pack<T, 8> x = load_from_l2<8>((const T*)args.x + (i64)task.row * args.k + c);
#endif
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    float value = x[e];
                    if (NORM) value *= factors.scales[e] + args.weight_offset;
#pragma unroll
                    for (int r = 0; r < QUAD; r++) sums[r] += factors.weights[r][e] * value;
                }
                factors.load_at(args, task, c + WARP * 8);
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
        i += gridDim.x * HELPERS;
        if (i >= num_tasks) break;
        task = ShrinkTask(args, l, i);
        factors.load_at(args, task, task.begin + lane * 8);
    }
    int at = ((helper * (int)gridDim.x + blockIdx.x) * WARP + lane) * QUAD;
#pragma unroll 1
    for (; at < l.num_narrow; at += gridDim.x * HELPERS * WARP * QUAD)
        *(uint4*)(l.next_narrow + at) = {SENTINEL, SENTINEL, SENTINEL, SENTINEL};
}

// Waits for A · x of all rows; stores the sums over the slices in shared memory. Neighboring lanes, a
// power of two, share the slices of four elements, so that most have all their loads in flight together.
__device__ __forceinline__ void gather(const Arguments& args, const LowRank& l, Shared& shared, int helper) {
    constexpr int AT_ONCE = 4;
    int thread = helper * WARP + threadIdx.x % WARP, together = 1;
    while (together < 16 && together * AT_ONCE < l.num_slices) together *= 2;
    int quads = l.max_rank / QUAD, items = args.n * quads;
#pragma unroll 1
    for (int first = 0; first < items; first += HELPERS * WARP / together) {
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
    named_barrier<4, HELPERS * WARP>();
}

// One activation row has one lane in four of the warp; then four lanes share the ranks of a result.
constexpr int LANES_PER_PAIR = MAX_N == 1 ? WARP / (M_TILE / 2) : 1;

// Calls use(part's first factor in shared.narrow + r, address of the r-th octet of the row of B for weight
// row low, the same for high) for this lane's octets; a row that is not in the part is null.
template <typename Use>
__device__ __forceinline__ void for_factors(const LowRank& l, const i64* own, int low, int high, Use use) {
    int octet = MAX_N == 1 ? threadIdx.x % WARP / (M_TILE / 2) : 0;
    int num_parts = own ? (int)own[2] : 0;
#pragma unroll 1
    for (int p = 0; p < num_parts; p++) {
        const i64* part = own + FIRST_PART + p * PART;
        int first = (int)part[0], columns = (int)part[1], rank = (int)part[2], start = (int)part[3];
        const T* b = reinterpret_cast<const T*>(part[4]);
        bool has_low = low >= first && low - first < columns, has_high = high >= first && high - first < columns;
        if (!has_low && !has_high) continue;
        const T *at_low = b + (i64)(low - first) * rank, *at_high = b + (i64)(high - first) * rank;
#pragma unroll 2
        for (int r = octet * 8; r < rank; r += LANES_PER_PAIR * 8)
            use(start + r, has_low ? at_low + r : nullptr, has_high ? at_high + r : nullptr);
    }
}

// Fetches the rows of B for a tile to L2.
__device__ __forceinline__ void prefetch_expand(const Arguments& args, const LowRank& l, int tile) {
    constexpr int PAIRS = M_TILE / 2;
    int lane = threadIdx.x % WARP;
    int low = row_of(args, tile, lane % PAIRS), high = row_of(args, tile, lane % PAIRS + PAIRS);
#pragma unroll 1
    for (int b = MAX_N == 1 ? 0 : lane / PAIRS; b < args.n; b += WARP / PAIRS)
        for_factors(l, l.entry_of(b, args.n), low, high, [](int, const T* for_low, const T* for_high) {
            if (for_low) asm volatile("prefetch.global.L2 [%0];" ::"l"(for_low));
            if (for_high) asm volatile("prefetch.global.L2 [%0];" ::"l"(for_high));
        });
}

// Returns the changes of activation row b at weight rows low and high, before the norm's factor. The
// lanes of a warp call it together.
__device__ __forceinline__ float2 expand(const Arguments& args, const LowRank& l, const Shared& shared,
                                         int b, int low, int high) {
    float y[2] = {};
    int row = MAX_N == 1 ? 0 : b;
    for_factors(l, l.entry_of(row, args.n), low, high, [&](int r, const T* for_low, const T* for_high) {
        Pack<T, 8> rows[2] = {};
        if (for_low) rows[0] = load<8>(for_low);
        if (for_high) rows[1] = load<8>(for_high);
        const float4* narrow = (const float4*)(shared.narrow + row * l.max_rank + r);
        float4 u = narrow[0], v = narrow[1];
#pragma unroll
        for (int i = 0; i < 2; i++)
            y[i] += rows[i][0] * u.x + rows[i][1] * u.y + rows[i][2] * u.z + rows[i][3] * u.w +
                    rows[i][4] * v.x + rows[i][5] * v.y + rows[i][6] * v.z + rows[i][7] * v.w;
    });
#pragma unroll
    for (int offset = WARP / 2; offset >= WARP / LANES_PER_PAIR; offset /= 2)
#pragma unroll
        for (int i = 0; i < 2; i++) y[i] += __shfl_xor_sync(ALL, y[i], offset);
    return {y[0], y[1]};
}

// Computes the changes of the block's M tiles helper, helper + HELPERS …
__device__ void compute_changes(const Arguments& args, const Work& work, const LowRank& l, Shared& shared,
                                int helper) {
    constexpr int PAIRS = M_TILE / 2, ROWS = MAX_N == 1 ? 1 : WARP / PAIRS;  // at a time
    int lane = threadIdx.x % WARP;
    bool is_ready = false;  // at first the changes are computed in vain, which brings B to L1
#pragma unroll 1
    for (int item = helper;; item += HELPERS) {
        int tile = work.first + item * work.step, slot = item % CHANGE_SLOTS;
        if (is_ready && tile >= work.tiles) return;
        int low = row_of(args, tile, lane % PAIRS), high = row_of(args, tile, lane % PAIRS + PAIRS);
        if (is_ready) barrier_wait(&shared.changes_empty[slot], (item / CHANGE_SLOTS & 1) ^ 1);
#pragma unroll 1
        for (int first = 0; first < args.n; first += ROWS) {
            int b = first + (MAX_N == 1 ? 0 : lane / PAIRS);
            float2 y = expand(args, l, shared, b, low, high);
            asm volatile("" ::"f"(y.x), "f"(y.y));  // also wanted in vain
            if (is_ready && b < args.n && (MAX_N > 1 || lane < PAIRS)) {
                shared.changes[slot][b][lane % PAIRS] = y.x;
                shared.changes[slot][b][lane % PAIRS + PAIRS] = y.y;
            }
        }
        if (!is_ready) {
            shrink(args, l, helper);
            gather(args, l, shared, helper);
            is_ready = true;
            item -= HELPERS;
            continue;
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.changes_full[slot]);
        prefetch_expand(args, l, tile + HELPERS * work.step);
    }
}
#endif
