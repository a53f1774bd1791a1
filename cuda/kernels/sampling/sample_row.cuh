// Definitions for `sample`: a row's parameters, integer masses, histogram bins, the sorted list.
#pragma once
#include "common/sort_key.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 512, PER_THREAD = 8, CHUNK = THREADS * PER_THREAD;
constexpr int LIST_SIZE = 512;                  // near, and far, candidates that a block can list
constexpr int MAX_CANDIDATES = 2048;            // tokens that are sorted at once
constexpr int BINS = THREADS, REST = BINS - 1;  // the last bin has all smaller logits
constexpr int NEAR = BINS * 5 / 8;              // bins of near candidates
constexpr float REACH = 12;                     // range of exponents that the bins cover
constexpr u64 ONE = 1ull << 44;                 // the mass of the largest logit
constexpr u64 FAR = ONE >> 17;  // above any mass in the bin REST: e^(-12 * 511 / 512) < 2^-17.2

// One row's parameters, the same in all threads.
struct Row {
    const float* logits;
    float max, sharpness;  // 1 / temperature
    float scale;           // bins of a logit's distance from the maximum
    float top_p;
    int vocab_size, top_k;  // top_k = vocab_size: off
    u64 floor;         // the smallest mass that min-p keeps
    u64 uniform;       // 53 random bits
    bool whole;        // no truncation
};

// One row's workspace.
struct Work {
    u64* finished;         // number of finished blocks
    u64 *mass, *count;     // [BINS] each: a histogram of the crowded chunks
    u64 *masses, *nearby;  // [blocks] each: the mass of a chunk, and that of its near candidates
    u64* counts;           // [blocks]: a chunk's near candidates times 2^32, plus its far ones
    u64* keys;             // [blocks, 2, LIST_SIZE]: near and far candidates, as `sort_key`s
    __device__ Work(u64* row, int blocks) {
        finished = row;
        mass = finished + 1;
        count = mass + BINS;
        masses = count + BINS;
        nearby = masses + blocks;
        counts = nearby + blocks;
        keys = counts + blocks;
    }
    // A chunk's list of candidates. The chunk is crowded if one of its lists is too short.
    __device__ __forceinline__ u64* list(int block, int far) const {
        return keys + (2 * block + far) * LIST_SIZE;
    }
};
// A chunk's results, loaded by one thread of the last block each.
struct Chunk {
    u64 mass, near_mass, count;
    __device__ Chunk(const Work& work, bool valid) : mass(0), near_mass(0), count(0) {
        if (!valid) return;
        mass = __ldcg(work.masses + threadIdx.x);
        near_mass = __ldcg(work.nearby + threadIdx.x);
        count = __ldcg(work.counts + threadIdx.x);
    }
};
__device__ __forceinline__ int num_near(u64 count) { return (int)(count >> 32); }
__device__ __forceinline__ int num_far(u64 count) { return (int)(u32)count; }

struct Histogram {
    u32 count[BINS], low[BINS], high[BINS];  // tokens, and the two words of their mass
};

struct Shared {
    // Sort keys, largest first, and the cumulative masses.
    u64 list[MAX_CANDIDATES], sums[MAX_CANDIDATES];
    Histogram histogram;
    u64 masses[BINS];  // cumulative masses and counts of the bins
    u32 counts[BINS];
    u64 scratch[3][THREADS / WARP];
    u64 before_count, before_mass;  // of the bins before the one that `pick_bin` chose
    int members, bin, taken[2], choice[2];
    bool last;
};

// A token's mass; 0 if min-p drops it.
__device__ __forceinline__ u64 mass_of(const Row& row, float logit) {
    float exponent = __fmul_rn(__fsub_rn(row.max, logit), row.sharpness);
    u64 mass = __float2ull_rn(expf(-exponent) * (float)ONE);
    return mass >= row.floor ? mass : 0;
}

// A logit's bin; bins do not decrease for smaller logits. With an infinite scale all logits but `top`
// are in the last bin.
__device__ __forceinline__ int bin_of(float logit, float top, float scale) {
    float place = __fmul_rn(__fsub_rn(top, logit), scale);
    return (int)fminf(fmaxf(place, 0.f), (float)REST);  // 0 * infinity becomes 0
}

// The cumulative mass that the sampled token is the first to reach: 1 + floor(uniform * mass).
__device__ __forceinline__ u64 target_mass(const Row& row, u64 mass) {
    return (__umul64hi(row.uniform, mass) << 11 | row.uniform * mass >> 53) + 1;
}

// The mass that top-p keeps.
__device__ __forceinline__ u64 kept_mass(const Row& row, u64 mass) {
    if (row.top_p >= 1) return mass;
    u64 part = __double2ull_ru((double)row.top_p * (double)mass);
    return part < 1 ? 1 : part < mass ? part : mass;
}

// The index of the first of n increasing numbers that is at least `target`; n if there is none.
template <typename A>
__device__ __forceinline__ int first_at_least(const A* rising, int n, u64 target) {
    int low = 0, high = n;
    while (low < high) {
        int middle = (low + high) / 2;
        if (rising[middle] >= target) high = middle;
        else low = middle + 1;
    }
    return low;
}

// Inclusive prefix sum over the block; `scratch` as for `block_reduce`.
__device__ __forceinline__ u64 block_scan(u64 value, u64* scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
        u64 before = __shfl_up_sync(ALL, value, offset);
        if (lane >= offset) value += before;
    }
    __syncthreads();
    if (lane == WARP - 1) scratch[warp] = value;
    __syncthreads();
    for (int i = 0; i < warp; i++) value += scratch[i];
    return value;
}

// Reserves a distinct place for each thread with `wanted`; -1 for others. Whole warps call it.
__device__ __forceinline__ int reserve_place(int* taken, bool wanted) {
    u32 lanes = __ballot_sync(ALL, wanted);
    if (!lanes) return -1;
    int lane = threadIdx.x % WARP, base = 0;
    if (lane == 0) base = atomicAdd(taken, __popc(lanes));
    base = __shfl_sync(ALL, base, 0);
    return wanted ? base + __popc(lanes & ((1u << lane) - 1)) : -1;
}

__device__ __forceinline__ void add(Histogram& to, int bin, u32 count, u64 mass) {
    atomicAdd(&to.count[bin], count);
    // Two 32-bit additions are native; a 64-bit one in shared memory is a loop.
    u32 low = (u32)mass, before = atomicAdd(&to.low[bin], low);
    atomicAdd(&to.high[bin], (u32)(mass >> 32) + (before + low < before));
}

// Adds the tokens of a whole warp. Those in the first token's bin are added at once, so that equal
// logits do not serialize.
__device__ __forceinline__ void add_warp(Histogram& to, int bin, u64 mass, bool valid) {
    u32 valids = __ballot_sync(ALL, valid);
    if (!valids) return;
    int leader = __ffs(valids) - 1, first_bin = __shfl_sync(ALL, bin, leader);
    bool same = valid && bin == first_bin;
    u32 count = __popc(__ballot_sync(ALL, same));
    u32 low = __reduce_add_sync(ALL, same ? (u32)mass & 0x3fffff : 0);
    u32 high = __reduce_add_sync(ALL, same ? (u32)(mass >> 22) : 0);
    if (threadIdx.x % WARP == leader) add(to, bin, count, ((u64)high << 22) + low);
    else if (valid && !same) add(to, bin, 1, mass);
}

__device__ __forceinline__ void clear(Histogram& histogram) {
    histogram.count[threadIdx.x] = histogram.low[threadIdx.x] = histogram.high[threadIdx.x] = 0;
}
__device__ __forceinline__ u64 bin_mass(const Histogram& histogram, int bin) {
    return (u64)histogram.high[bin] << 32 | histogram.low[bin];
}

// Sorts the list's n keys, largest first: Batcher's bitonic network (1968).
__device__ __forceinline__ void sort_list(Shared& s, int n) {
    int padded = n > 1 ? 1 << (32 - __clz(n - 1)) : 1;
    for (int i = n + threadIdx.x; i < padded; i += THREADS) s.list[i] = 0;
    __syncthreads();
    for (int run = 2; run <= padded; run *= 2) {
        for (int stride = run / 2; stride; stride /= 2) {
            for (int i = threadIdx.x; i < padded / 2; i += THREADS) {
                int first = 2 * i - (i & (stride - 1)), second = first + stride;
                u64 a = s.list[first], b = s.list[second];
                if ((a < b) == ((first & run) == 0)) {
                    s.list[first] = b;
                    s.list[second] = a;
                }
            }
            // Up to a stride of 32, each warp works on 64 keys of its own.
            int next = stride > 1 ? stride / 2 : run;
            if (max(stride, next) > WARP) __syncthreads();
            else __syncwarp();
        }
    }
    __syncthreads();
}

// Sorts the list's n keys and computes their cumulative masses; keys after the first `top_k` have no
// mass.
__device__ __forceinline__ void sort_and_sum(Shared& s, const Row& row, int n, int top_k) {
    constexpr int EACH = MAX_CANDIDATES / THREADS;
    sort_list(s, n);
    int first = threadIdx.x * EACH;
    u64 mass[EACH], sum = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = first + j;
        mass[j] = i < n && i < top_k ? mass_of(row, key_logit(s.list[i])) : 0;
        sum += mass[j];
    }
    u64 before = block_scan(sum, s.scratch[0]) - sum;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        before += mass[j];
        if (first + j < n) s.sums[first + j] = before;
    }
    __syncthreads();
}
