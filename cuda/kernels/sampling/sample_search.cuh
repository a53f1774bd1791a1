// `sample`'s search of a whole row: finds the token at which the count or the mass of all tokens before
// it reaches a target. It uses a histogram, refines the bin that holds the target while the bin has too
// many tokens to sort, and then sorts the bin.
#pragma once
#include "sampling/sample_row.cuh"

// Calls act(id, logit, valid) for all tokens of the row. Whole warps call it together.
template <typename Act> __device__ __forceinline__ void for_each(const Row& row, Act act) {
    constexpr int WIDTH = 4, UNROLL = 4;
    using Access = Vec<float, WIDTH>;
    int thread = threadIdx.x;
    int head = (int)(-((u64)row.logits / sizeof(float)) & (WIDTH - 1));  // elements before 16-byte alignment
    head = head < row.vocab_size ? head : row.vocab_size;
    int num_vectors = (row.vocab_size - head) / WIDTH, tail = head + num_vectors * WIDTH;
    if (thread < WARP) {
        int id = thread < WIDTH ? thread : tail + thread - WIDTH;
        bool valid = thread < WIDTH ? thread < head : id < row.vocab_size;
        act(id, valid ? row.logits[id] : 0.f, valid);
    }
    const Access* vectors = (const Access*)(row.logits + head);
    for (int start = 0; start < num_vectors; start += UNROLL * THREADS) {
        Access loaded[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int i = start + u * THREADS + thread;
            if (i < num_vectors) loaded[u] = vectors[i];
            else loaded[u] = Access{};
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int i = start + u * THREADS + thread;
#pragma unroll
            for (int k = 0; k < WIDTH; k++)
                act(head + i * WIDTH + k, loaded[u].at[k], i < num_vectors);
        }
    }
}

// The tokens with keys from `high` down to `low` that are in one bin. The bins divide the logits, or the
// ids if `equal`.
struct Window {
    u64 low, high;
    float top, scale;
    bool equal;
    int first_id, shift, bin;

    __device__ __forceinline__ int place(float logit, int id) const {
        return equal ? (id - first_id) >> shift : bin_of(logit, top, scale);
    }
    __device__ __forceinline__ bool spans(float logit, int id) const {
        u64 key = sort_key(logit, id);
        return low <= key && key <= high;
    }
    __device__ __forceinline__ bool holds(float logit, int id) const {
        return place(logit, id) == bin && spans(logit, id);
    }
};

// Computes the cumulative counts and masses of all bins, from the histogram of the crowded chunks and
// the lists of the others.
__device__ __forceinline__ void count_bins(Shared& s, const Row& row, const Work& work, u64 total) {
    int thread = threadIdx.x, lane = thread % WARP;
    u64 mass = __ldcg(work.mass + thread);
    s.histogram.count[thread] = (u32)__ldcg(work.count + thread);
    s.histogram.low[thread] = (u32)mass;
    s.histogram.high[thread] = (u32)(mass >> 32);
    __syncthreads();
    for (int block = thread / WARP; block < gridDim.x; block += THREADS / WARP) {
        u64 count = __ldcg(work.counts + block);
        if (max(num_near(count), num_far(count)) > LIST_SIZE) continue;
        for (int far = 0; far < 2; far++) {
            int n = far ? num_far(count) : num_near(count);
            for (int i = lane; i - lane < n; i += WARP) {
                float logit = i < n ? key_logit(__ldcg(work.list(block, far) + i)) : row.max;
                int bin = bin_of(logit, row.max, row.scale);
                add_warp(s.histogram, bin, mass_of(row, logit), i < n);
            }
        }
    }
    __syncthreads();
    u64 counts = block_scan(s.histogram.count[thread], s.scratch[0]);
    u64 masses = block_scan(bin_mass(s.histogram, thread), s.scratch[0]);
    s.counts[thread] = thread == REST ? row.vocab_size : (u32)counts;
    s.masses[thread] = thread == REST ? total : masses;
    __syncthreads();
}

// Chooses the bin in which the count or the mass reaches the target. Each thread passes its bin:
// `count` and `mass` are cumulative, `members` and `own` are the bin's own.
__device__ __forceinline__ void pick_bin(Shared& s, bool by_count, u64 target, u64 count, u64 mass,
                                     u64 members, u64 own) {
    u64 through = by_count ? count : mass, before = through - (by_count ? members : own);
    if (before < target && target <= through) {
        s.bin = threadIdx.x;
        s.before_count = count - members;
        s.before_mass = mass - own;
        s.members = (int)members;
    }
    __syncthreads();
}

// Replaces a window with too many tokens by a finer bin: divides the range of its logits evenly, or of
// its ids if all logits are equal. The smallest and the largest token are in different bins.
__device__ __forceinline__ void refine_window(Shared& s, const Row& row, Window& window, bool by_count,
                                       u64 target) {
    u64 count = s.before_count, mass = s.before_mass, lowest = ~0ull, highest = 0;
    for_each(row, [&](int id, float logit, bool valid) {
        if (!valid || !window.holds(logit, id)) return;
        u64 key = sort_key(logit, id);
        lowest = min(lowest, key);
        highest = max(highest, key);
    });
    window.high = block_reduce<THREADS>(highest, Max(), s.scratch[0]);
    window.low = ~block_reduce<THREADS>(~lowest, Max(), s.scratch[0]);
    window.top = key_logit(window.high);
    float range = window.top - key_logit(window.low);
    window.equal = range == 0;
    window.scale = (REST + 0.5f) / fminf(range, 3.402823466e38f);
    window.first_id = key_id(window.high);
    int bits = 32 - __clz(key_id(window.low) - window.first_id);
    window.shift = max(bits - 9, 0);  // 2^9 = BINS
    clear(s.histogram);
    __syncthreads();
    for_each(row, [&](int id, float logit, bool valid) {
        valid = valid && window.spans(logit, id);
        int bin = valid ? window.place(logit, id) : 0;
        add_warp(s.histogram, bin, valid ? mass_of(row, logit) : 0, valid);
    });
    __syncthreads();
    u64 members = s.histogram.count[threadIdx.x], own = bin_mass(s.histogram, threadIdx.x);
    count += block_scan(members, s.scratch[0]);
    mass += block_scan(own, s.scratch[0]);
    pick_bin(s, by_count, target, count, mass, members, own);
    window.bin = s.bin;
}

struct Found {
    u64 key, mass;  // a token's key, and its cumulative mass
};

// The token of the row at which count or mass reaches the target, largest logits first.
__device__ __forceinline__ Found find(Shared& s, const Row& row, bool by_count, u64 target) {
    int thread = threadIdx.x;
    u64 count = s.counts[thread], mass = s.masses[thread];
    u64 members = count - (thread ? s.counts[thread - 1] : 0);
    u64 own = mass - (thread ? s.masses[thread - 1] : 0);
    __syncthreads();  // all threads have read the result of an earlier call
    pick_bin(s, by_count, target, count, mass, members, own);
    Window window = {0, ~0ull, row.max, row.scale, false, 0, 0, s.bin};
    while (s.members > MAX_CANDIDATES) refine_window(s, row, window, by_count, target);
    int n = s.members;
    __syncthreads();
    if (thread == 0) s.members = 0;
    __syncthreads();
    for_each(row, [&](int id, float logit, bool valid) {
        bool wanted = valid && window.holds(logit, id);
        int place = reserve_place(&s.members, wanted);
        if (wanted) s.list[place] = sort_key(logit, id);
    });
    sort_and_sum(s, row, n, n);
    target -= by_count ? s.before_count + 1 : s.before_mass;
    int i = by_count ? (int)target : first_at_least(s.sums, n, target);
    return {s.list[i], s.before_mass + s.sums[i]};
}

// Samples exactly: finds the mass that top-k and min-p keep, the mass that top-p keeps of it, and the
// token.
__device__ __forceinline__ void sample_from_row(Shared& s, const Row& row, const Work& work,
                                              u64 total, int* out) {
    count_bins(s, row, work, total);
    u64 mass = total;
#pragma unroll 1
    for (int step = 0; step < 3; step++) {
        if (step == 0 && row.top_k == row.vocab_size || step == 1 && row.top_p >= 1) continue;
        u64 target = step == 0   ? row.top_k
                     : step == 1 ? kept_mass(row, mass)
                                 : target_mass(row, mass);
        Found found = find(s, row, step == 0, target);
        mass = found.mass;
        if (step == 2 && threadIdx.x == 0) *out = key_id(found.key);
    }
}
