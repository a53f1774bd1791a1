// The choice of a token's experts by their logits.
#pragma once
#include "common/reduce.cuh"
#include "common/sort_key.cuh"

// How logits become ids and weights; see route.cu.
struct Routing {
    int num_experts, experts_per_token, sigmoid, by_logits, num_groups, top_groups, best_of_group, normalized;
    float eps, scale;
};

// The number of elements in memory of `count` values that rank_of reads: whole warps, -infinity after the last.
__device__ __forceinline__ int padded(int count) { return (count + WARP - 1) / WARP * WARP; }

// How many of the values, of which there are padded(count), are greater than value i > -infinity, or equal and before
// it. NaN is never greater. The threads of a warp pass the same i / 32.
__device__ __forceinline__ int rank_of(const float* values, int count, int i) {
    float own = values[i];
    int ranks[4] = {}, chunk = i / WARP;
    for (int base = 0; base < count; base += WARP) {
#pragma unroll
        for (int j = 0; j < WARP; j += 4) {
            float4 v = *(const float4*)(values + base + j);
            float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                bool first = base / WARP < chunk || (base / WARP == chunk && base + j + k < i);
                ranks[k] += first ? four[k] >= own : four[k] > own;
            }
        }
    }
    return ranks[0] + ranks[1] + ranks[2] + ranks[3];
}

// Sets the values of all experts outside the best groups to -infinity. `totals` has padded(num_groups) elements.
template <int THREADS>
__device__ __forceinline__ void keep_top_groups(float* values, float* totals, const Routing& how) {
    int size = how.num_experts / how.num_groups, lane = threadIdx.x % WARP;
    for (int group = threadIdx.x / WARP; group < padded(how.num_groups); group += THREADS / WARP) {
        float best = -infinity(), second = -infinity();
        for (int i = lane; i < size && group < how.num_groups; i += WARP) {
            float value = values[group * size + i];
            second = fmaxf(second, fminf(best, value));
            best = fmaxf(best, value);
        }
#pragma unroll
        for (int offset = WARP / 2; offset; offset /= 2) {
            float other = __shfl_xor_sync(ALL, best, offset), next = __shfl_xor_sync(ALL, second, offset);
            second = fmaxf(fmaxf(second, next), fminf(best, other));
            best = fmaxf(best, other);
        }
        if (lane == 0) totals[group] = best + (how.best_of_group > 1 && size > 1 ? second : 0);
    }
    __syncthreads();
    int group = threadIdx.x;  // of at most THREADS
    bool is_out = group < how.num_groups && totals[group] > -infinity() &&
                  rank_of(totals, how.num_groups, group) >= how.top_groups;
    __syncthreads();
    if (group < how.num_groups) totals[group] = is_out ? 0 : 1;
    __syncthreads();
    for (int e = threadIdx.x; e < how.num_experts; e += THREADS)
        if (totals[e / size] == 0) values[e] = -infinity();
    __syncthreads();
}

// The largest key of a warp's threads.
__device__ __forceinline__ u64 warp_largest(u64 key) {
    u32 high = __reduce_max_sync(ALL, (u32)(key >> 32));
    u32 low = __reduce_max_sync(ALL, (u32)(key >> 32) == high ? (u32)key : 0);
    return (u64)high << 32 | low;
}

// Writes the keys of the `each` largest values > -infinity of each warp's part of the values, in descending order; 0
// after the last. Values that are found become -infinity.
template <int THREADS>
__device__ __forceinline__ void largest_of_warps(float* values, int count, int each, u64* keys) {
    constexpr int NUM_WARPS = THREADS / WARP;
    int part = (count + NUM_WARPS - 1) / NUM_WARPS, warp = threadIdx.x / WARP;
    int begin = warp * part + threadIdx.x % WARP, end = min((warp + 1) * part, count);
    for (int i = 0; i < each; i++) {
        u64 own = 0;
        for (int e = begin; e < end; e += WARP)
            if (values[e] > -infinity()) own = max(own, sort_key(values[e], e));
        u64 largest = warp_largest(own);
        if (threadIdx.x % WARP == 0) keys[warp * each + i] = largest;
        if (largest != 0 && own == largest) values[key_id(largest)] = -infinity();
        __syncwarp();
    }
}

// Writes the ids and weights of a token's experts, given its logits in scores[num_experts], which are visible to
// all threads of the block. ops/route.py has the size of `scores`, which is aligned to 16 bytes.
template <int THREADS>
__device__ __forceinline__ void choose_experts(float* scores, const float* correction, const float* expert_scales,
                                               int* ids, float* weights, float* scratch, const Routing& how) {
    constexpr int NUM_WARPS = THREADS / WARP;
    int end = padded(how.num_experts), each = min(how.experts_per_token, (how.num_experts + NUM_WARPS - 1) / NUM_WARPS);
    float *choice = scores + end, *totals = choice + end;
    u64* keys = (u64*)(totals + padded(how.num_groups));
    float* found = (float*)(keys + each * NUM_WARPS);
    float highest = -infinity(), total = 0;
    if (!how.sigmoid) {
        for (int e = threadIdx.x; e < how.num_experts; e += THREADS) highest = fmaxf(highest, scores[e]);
        highest = block_reduce<THREADS>(highest, Max(), scratch);
        for (int e = threadIdx.x; e < how.num_experts; e += THREADS)
            total += exp2_fast((scores[e] - highest) * LOG2_E);
        total = block_reduce<THREADS>(total, Sum(), scratch);
    }
    // A plain softmax does not change the order of the logits.
    bool choose_scores = !how.by_logits && (how.sigmoid || correction || how.num_groups > 1);
    for (int e = threadIdx.x; e < end; e += THREADS) {
        choice[e] = -infinity();  // such an expert cannot be chosen
        if (e >= how.num_experts) continue;
        float logit = scores[e];
        scores[e] = how.sigmoid ? 1 / (1 + expf(-logit)) : exp2_fast((logit - highest) * LOG2_E) / total;
        choice[e] = choose_scores ? scores[e] : logit;
        if (correction) choice[e] += correction[e];
    }
    for (int i = threadIdx.x; i < how.experts_per_token; i += THREADS) {
        ids[i] = how.num_experts - 1;  // unless enough experts can be chosen
        found[i] = __int_as_float(0x7fffffff);
    }
    __syncthreads();
    if (how.num_groups > 1) keep_top_groups<THREADS>(choice, totals, how);
    largest_of_warps<THREADS>(choice, how.num_experts, each, keys);
    __syncthreads();
    for (int i = threadIdx.x; i < each * NUM_WARPS; i += THREADS) {
        int rank = keys[i] == 0 ? how.experts_per_token : 0;
        for (int j = 0; j < each * NUM_WARPS; j++) rank += keys[j] > keys[i];
        if (rank >= how.experts_per_token) continue;
        ids[rank] = key_id(keys[i]);
        found[rank] = scores[ids[rank]];
    }
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < how.experts_per_token; i++) sum += found[i];
    float factor = how.normalized ? how.scale / (sum + how.eps) : how.scale;
    for (int i = threadIdx.x; i < how.experts_per_token; i += THREADS)
        weights[i] = found[i] * factor * (expert_scales ? expert_scales[ids[i]] : 1.f);
}
