// The end of an output tile of packed_gemm: sums of several blocks, scales, bias, stores.
//
// A thread's sums 4j … 4j + 3 are, with (g, t) = (lane / 4, lane % 4): MMA row g, activation rows 8j + 2t and
// 8j + 2t + 1; then the same of MMA row g + 8.
#pragma once
#include "linear/gemm_operands.cuh"

__device__ __forceinline__ void consumer_barrier() { named_barrier<1, CONSUMERS>(); }

// Transposes an 8 × 8 matrix of 16-bit elements: thread (g, t) passes row g, columns 2t and 2t + 1.
__device__ __forceinline__ u32 transpose(u32 pair) {
    u32 transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
    return transposed;
}

// Scales and stores a tile's results.
struct Output {
    const Arguments& a;
    int n, column;  // first activation row of the tile; first of this thread's four weight rows
    float scale[2], bias[2];

    __device__ __forceinline__ Output(const Arguments& a, const Segment& s) : a(a), n(s.n) {
        LaneRows lane;
        column = s.m + lane.first_result();
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            int row = s.m + lane.first() + 2 * upper;
            scale[upper] = row < a.m ? __ldg(a.row_scale + row) * (1 / GROUP_SHRINK) : 0;
            bias[upper] = a.bias && row < a.m ? to_float(a.bias[row]) : 0;
        }
    }
    // Stores the results of activation rows 8j … 8j + 7.
    __device__ __forceinline__ void store(int j, float4 sums) const {
        int lane = threadIdx.x % WARP, first = n + j * 8 + lane % 4 * 2;
        float x_scale[2] = {1, 1};
        if (a.x_scale) {
            x_scale[0] = first < a.n ? __ldg(a.x_scale + first) : 0;
            x_scale[1] = first + 1 < a.n ? __ldg(a.x_scale + first + 1) : 0;
        }
        Vec<u32, 2> four;
        four.at[0] = transpose(pair_bits(fmaf(sums.x * x_scale[0], scale[0], bias[0]),
                                         fmaf(sums.y * x_scale[1], scale[0], bias[0]), T()));
        four.at[1] = transpose(pair_bits(fmaf(sums.z * x_scale[0], scale[1], bias[1]),
                                         fmaf(sums.w * x_scale[1], scale[1], bias[1]), T()));
        int row = n + j * 8 + lane / 4;
        if (row >= a.n) return;
        T* to = a.out + (i64)row * a.m + column;
        if (a.m % 4 == 0 && column < a.m) {
            *(Vec<u32, 2>*)to = four;
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (column + i < a.m) to[i] = ((const T*)four.at)[i];
        }
    }
};

__device__ __forceinline__ float4 sums_of(const float (&sums)[BLOCK_N / 2], int j) {
    return make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
}

// A tile that several clusters share. They are participants 0, 1, …; the first one has it as its last tile, the others
// as their first one, so each has up to two tiles in `partial_sums`.
struct SharedTile {
    int first, last;  // clusters

    __device__ __forceinline__ SharedTile(const Segment& s) {
        int begin = s.at - s.first, end = begin + s.units;
        for (first = s.cluster; s.begin(first) > begin;) first--;
        for (last = s.cluster; s.begin(last + 1) < end;) last++;
    }
    __device__ __forceinline__ float4* sums(const Arguments& a, const Segment& s, int cluster) const {
        int slot = (cluster * CLUSTER + s.rank) * 2 + (cluster == first);
        return (float4*)(a.partial_sums + (i64)slot * BLOCK_M * BLOCK_N) + threadIdx.x;
    }
    __device__ __forceinline__ int* counter(const Arguments& a, const Segment& s) const {
        return a.counters + first * CLUSTER + s.rank;
    }
};

__device__ __forceinline__ int add_release_acquire(int* counter) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(counter))
                 : "memory");
    return before;
}

// Stores a tile, or this cluster's part of its sums.
__device__ __forceinline__ void finish(const Arguments& a, const Segment& s, const float (&sums)[BLOCK_N / 2]) {
    if (s.is_whole()) {
        Output output(a, s);
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; j++) output.store(j, sums_of(sums, j));
        return;
    }
    SharedTile tile(s);
    float4* to = tile.sums(a, s, s.cluster);
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; j++) __stcg(to + j * CONSUMERS, sums_of(sums, j));
    consumer_barrier();
    // Releases the stores of all threads, which the barrier orders before.
    if (threadIdx.x == 0) add_release_acquire(tile.counter(a, s));
}

// Finishes this cluster's share of a tile's activation rows when the sums of all participants are there, in their
// order. All clusters do this at their end, so that none waits for one that waits for it.
__device__ __forceinline__ void finish_shared(const Arguments& a, const Segment& s) {
    SharedTile tile(s);
    int participants = tile.last - tile.first + 1, *counter = tile.counter(a, s);
    if (threadIdx.x == 0) {
        int arrived;
        do {
            asm volatile("ld.acquire.gpu.global.b32 %0, [%1];"
                         : "=r"(arrived)
                         : "l"(__cvta_generic_to_global(counter))
                         : "memory");
        } while (arrived < participants);
        if (add_release_acquire(counter) == 2 * participants - 1) *counter = 0;  // the last one to leave
    }
    consumer_barrier();
    Output output(a, s);
    int rows = min(BLOCK_N, a.n - s.n), blocks = (rows + 7) / 8, self = s.cluster - tile.first;
    int end = blocks * (self + 1) / participants;
    constexpr int BATCH = 4;  // loads in flight: the latency of L2 is the limit
    for (int j = blocks * self / participants; j < end; j += BATCH) {
        float4 total[BATCH] = {};
#pragma unroll 2
        for (int cluster = tile.first; cluster <= tile.last; cluster++) {
            const float4* from = tile.sums(a, s, cluster) + j * CONSUMERS;
            float4 part[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) part[i] = j + i < end ? __ldcg(from + i * CONSUMERS) : float4{};
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                total[i].x += part[i].x, total[i].y += part[i].y;
                total[i].z += part[i].z, total[i].w += part[i].w;
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (j + i < end) output.store(j + i, total[i]);
    }
}
