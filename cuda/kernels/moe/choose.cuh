// The choice of a token's experts by their logits.
#pragma once
#include "common/reduce.cuh"
#include "common/sort_key.cuh"

// How logits become ids and weights; see route.cu.
struct Routing {
    int num_experts, experts_per_token, sigmoid, by_logits, num_groups, top_groups, best_of_group, normalized;
    float eps, scale;
};

// A key in the order of values; 0 for NaN and -infinity, which cannot be chosen.
__device__ __forceinline__ u32 choice_key(float value) {
    return value > -infinity() ? (u32)(sort_key(value, 0) >> 32) : 0;
}

// The value of a key.
__device__ __forceinline__ float choice_value(u32 key) { return key ? key_logit((u64)key << 32) : -infinity(); }

// Parts of the dynamic shared memory in which a block chooses experts. ops/moe/route.py has its size.
struct Choice {
    u64* candidates;
    float *logits, *scores, *found;  // of all experts, of all, of the chosen ones
    u32 *keys, *totals;              // of all experts, of groups
    int *order, *num_candidates;     // the chosen experts

    __device__ __forceinline__ Choice(void* memory, const Routing& how) {
        candidates = (u64*)memory;
        logits = (float*)(candidates + how.num_experts);
        scores = logits + how.num_experts;
        keys = (u32*)(scores + how.num_experts);
        totals = keys + how.num_experts;
        order = (int*)(totals + how.num_groups);
        found = (float*)(order + how.experts_per_token);
        num_candidates = (int*)(found + how.experts_per_token);
    }
};

// The sum over all experts of the exponentials of their logits less `highest`.
template <int THREADS>
__device__ __forceinline__ float softmax_sum(const float* logits, int count, float highest, float* scratch) {
    float total = 0;
#pragma unroll 1
    for (int e = threadIdx.x; e < count; e += THREADS) total += exp2_fast((logits[e] - highest) * LOG2_E);
    return block_reduce<THREADS>(total, Sum(), scratch);
}

// Writes the scores of all experts, and the keys by which they are chosen.
template <int THREADS>
__device__ __forceinline__ void score_experts(const Choice& c, const float* correction, float* scratch,
                                              const Routing& how) {
    float highest = -infinity(), total = 1;
    if (!how.sigmoid) {
#pragma unroll 1
        for (int e = threadIdx.x; e < how.num_experts; e += THREADS) highest = fmaxf(highest, c.logits[e]);
        highest = block_reduce<THREADS>(highest, Max(), scratch);
        total = softmax_sum<THREADS>(c.logits, how.num_experts, highest, scratch);
    }
#pragma unroll 1
    for (int e = threadIdx.x; e < how.num_experts; e += THREADS) {
        float logit = c.logits[e], power = exp2_fast((how.sigmoid ? -logit : logit - highest) * LOG2_E);
        float score = how.sigmoid ? 1 / (1 + power) : power / total;
        c.scores[e] = score;
        c.keys[e] = choice_key((how.by_logits ? logit : score) + (correction ? correction[e] : 0));
    }
}

// Sets the keys of all experts outside the best groups to 0.
template <int THREADS> __device__ __forceinline__ void keep_top_groups(const Choice& c, const Routing& how) {
    int size = how.num_experts / how.num_groups, lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int group = threadIdx.x / WARP; group < how.num_groups; group += THREADS / WARP) {
        float best = -infinity(), second = -infinity();
#pragma unroll 1
        for (int i = lane; i < size; i += WARP) {
            float value = choice_value(c.keys[group * size + i]);
            second = fmaxf(second, fminf(best, value));
            best = fmaxf(best, value);
        }
#pragma unroll
        for (int offset = WARP / 2; offset; offset /= 2) {
            float other = __shfl_xor_sync(ALL, best, offset), next = __shfl_xor_sync(ALL, second, offset);
            second = fmaxf(fmaxf(second, next), fminf(best, other));
            best = fmaxf(best, other);
        }
        if (lane == 0) c.totals[group] = choice_key(best + (how.best_of_group > 1 && size > 1 ? second : 0));
    }
    __syncthreads();
    int group = threadIdx.x, rank = 0;  // of at most THREADS
    bool is_out = group < how.num_groups && c.totals[group] > 0;
    if (is_out) {
#pragma unroll 1
        for (int i = 0; i < how.num_groups; i++) rank += c.totals[i] > c.totals[group] - (i < group);
        is_out = rank >= how.top_groups;
    }
    __syncthreads();
    if (group < how.num_groups) c.totals[group] = !is_out;
    __syncthreads();
#pragma unroll 1
    for (int e = threadIdx.x; e < how.num_experts; e += THREADS)
        if (c.totals[e / size] == 0) c.keys[e] = 0;
    __syncthreads();
}

// A key that at least `chosen` keys reach, if so many are greater than 0, and few more: of 32 interleaved parts of the
// keys, it is the `chosen`-th of their maxima. Every warp computes it.
__device__ __forceinline__ u32 least_key(const u32* keys, int count, int chosen) {
    if (chosen > WARP) return 0;
    int lane = threadIdx.x % WARP, rank = 0;
    u32 own = 0;
#pragma unroll 4
    for (int e = lane; e < count; e += WARP) own = max(own, keys[e]);
#pragma unroll 8
    for (int i = 0; i < WARP; i++) {
        u32 other = __shfl_sync(ALL, own, i);
        rank += other > own || (other == own && i < lane);
    }
    return __shfl_sync(ALL, own, __ffs(__ballot_sync(ALL, rank == chosen - 1)) - 1);
}

// Writes the ids and weights of a token's experts, given its logits in c.logits, which are visible to all threads of
// the block. `scratch` has an element for each warp.
//
// A block does this once a launch, so that time is latency: of barriers, of shared memory and of instructions, which
// are not in cache.
template <int THREADS>
__device__ __forceinline__ void choose_experts(const Choice& c, const float* correction, const float* expert_scales,
                                               int* ids, float* weights, float* scratch, const Routing& how) {
    int lane = threadIdx.x % WARP, chosen = how.experts_per_token;
    // A softmax does not change the order of the logits, and often only the chosen ones count.
    bool is_plain = !how.sigmoid && !correction && how.num_groups == 1;
    if (is_plain) {
#pragma unroll 1
        for (int e = threadIdx.x; e < how.num_experts; e += THREADS) c.keys[e] = choice_key(c.logits[e]);
    } else {
        score_experts<THREADS>(c, correction, scratch, how);
    }
    if (threadIdx.x == 0) *c.num_candidates = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < chosen; i += THREADS) {
        c.order[i] = how.num_experts - 1;  // unless enough experts can be chosen
        c.found[i] = __int_as_float(0x7fffffff);
    }
    __syncthreads();
    if (how.num_groups > 1) keep_top_groups<THREADS>(c, how);
    u32 least = max(least_key(c.keys, how.num_experts, chosen), 1);
#pragma unroll 1
    for (int e = threadIdx.x; e < how.num_experts; e += THREADS) {
        u32 key = c.keys[e];
        if (key >= least) c.candidates[atomicAdd(c.num_candidates, 1)] = (u64)key << 32 | (u32)~e;
    }
    __syncthreads();
    int count = *c.num_candidates;
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += THREADS) {
        u64 own = c.candidates[i];
        int rank = 0, id = key_id(own);
#pragma unroll 4
        for (int j = 0; j < count; j++) rank += c.candidates[j] > own;
        if (rank >= chosen) continue;
        c.order[rank] = id;
        c.found[rank] = is_plain ? c.logits[id] : c.scores[id];
    }
    __syncthreads();
    float highest = c.found[0], total = 1, sum = 0;
    bool is_whole = is_plain && !(how.normalized && how.eps == 0);  // else the total cancels out
    if (is_whole) total = softmax_sum<THREADS>(c.logits, how.num_experts, highest, scratch);
    auto score = [&](int i) { return is_plain ? exp2_fast((c.found[i] - highest) * LOG2_E) / total : c.found[i]; };
#pragma unroll 1
    for (int i = lane; i < chosen; i += WARP) sum += score(i);
    sum = warp_reduce(sum, Sum());
    float factor = how.normalized ? how.scale / (sum + how.eps) : how.scale;
#pragma unroll 1
    for (int i = threadIdx.x; i < chosen; i += THREADS) {
        int id = c.order[i];
        ids[i] = id;
        weights[i] = score(i) * factor * (expert_scales ? expert_scales[id] : 1.f);
    }
}
