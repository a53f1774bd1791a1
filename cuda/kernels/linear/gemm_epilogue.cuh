// The end of an output tile of packed_gemm: sums of several blocks, scales, bias, stores.
//
// A thread's sums 4j … 4j + 3 are, with (g, t) = (lane / 4, lane % 4): MMA row g, activation rows 8j + 2t and
// 8j + 2t + 1; then the same of MMA row g + 8.
#pragma once
#include "common/mma.cuh"
#include "linear/gemm_work.cuh"

__device__ __forceinline__ void consumer_barrier() { named_barrier<1, CONSUMERS>(); }

// Scales and stores a tile's results.
struct Output {
    const Arguments& a;
    int n, column;  // first activation row of the tile; first of this thread's four weight rows
    float scale[2], bias[2];

    __device__ __forceinline__ Output(const Arguments& a, const Segment& s) : a(a), n(s.n) {
        LaneRows lane(UNIT_BYTES);
        column = s.m + lane.first_result();
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            int row = s.m + lane.first() + 2 * upper;
            scale[upper] = row < a.m ? (ROW_SCALES ? __ldg(a.row_scale + row) : 1) * (1 / GROUP_SHRINK) : 0;
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

// A tile that several clusters share, participants 0, 1, …. Those that have no tile after this one own its activation
// rows: all but the last participant, or all. Each owner keeps the sums of its rows in registers, and stores those of
// other rows.
struct SharedTile {
    int first, last;  // clusters
    int owners;

    __device__ __forceinline__ SharedTile(const Segment& s) {
        int begin = s.at - s.first, end = begin + s.units;
        for (first = s.cluster; s.begin(first) > begin;) first--;
        for (last = s.cluster; s.begin(last + 1) < end;) last++;
        owners = last - first + (s.begin(last + 1) == end);
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

// Waits until all participants have stored their sums.
__device__ __forceinline__ void wait_for_sums(int* counter, int participants, int owners) {
    if (threadIdx.x == 0) {
        int arrived;
        do {
            asm volatile("ld.acquire.gpu.global.b32 %0, [%1];"
                         : "=r"(arrived)
                         : "l"(__cvta_generic_to_global(counter))
                         : "memory");
        } while (arrived < participants);
        if (add_release_acquire(counter) == participants + owners - 1) *counter = 0;  // the last one to leave
    }
    consumer_barrier();
}

// Finishes a tile that other clusters share. An owner waits for the sums of the others. It has no tile after this one,
// so none waits for one that waits for it.
__device__ __forceinline__ void finish_shared(const Arguments& a, const Segment& s, const Output& output,
                                              float (&sums)[BLOCK_N / 2]) {
    SharedTile tile(s);
    int owners = tile.owners, self = s.cluster - tile.first, *counter = tile.counter(a, s);
    int blocks = (min(BLOCK_N, a.n - s.n) + 7) / 8;  // of eight activation rows
    bool is_owner = self < owners;
    int begin = is_owner ? blocks * self / owners : 0, end = is_owner ? blocks * (self + 1) / owners : 0;
    float4* to = tile.sums(a, s, s.cluster);
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; j++)
        if (j < blocks && (j < begin || j >= end)) __stcg(to + j * CONSUMERS, sums_of(sums, j));
    consumer_barrier();
    // Releases the stores of all threads, which the barrier orders before.
    if (threadIdx.x == 0) add_release_acquire(counter);
    if (!is_owner) return;
    wait_for_sums(counter, tile.last - tile.first + 1, owners);
    constexpr int BATCH = BLOCK_N / 8 % 8 == 0 ? 8 : 4;  // loads in flight: the latency of L2 is the limit
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; j += BATCH) {
        if (j + BATCH <= begin || j >= end) continue;
#pragma unroll 1
        for (int cluster = tile.first; cluster <= tile.last; cluster++) {
            if (cluster == s.cluster) continue;
            const float4* from = tile.sums(a, s, cluster) + j * CONSUMERS;
            float4 part[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                part[i] = j + i >= begin && j + i < end ? __ldcg(from + i * CONSUMERS) : float4{};
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                float* sum = sums + 4 * (j + i);
                sum[0] += part[i].x, sum[1] += part[i].y, sum[2] += part[i].z, sum[3] += part[i].w;
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (j + i >= begin && j + i < end) output.store(j + i, sums_of(sums, j + i));
    }
}

// Stores a tile's results, unless another cluster does.
__device__ __forceinline__ void finish(const Arguments& a, const Segment& s, float (&sums)[BLOCK_N / 2]) {
    Output output(a, s);
    if (!s.is_whole()) {
        finish_shared(a, s, output, sums);
        return;
    }
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; j++) output.store(j, sums_of(sums, j));
}
