// router: norm of the residual stream, and the choice of each token's experts by it (MoE).
//
//   x              fp32 [n, hidden_size]
//   norm_weight    T [hidden_size]: RMSNorm, plus weight_offset
//   expert_norm    T [hidden_size] or null: the weight of the norm in `normed`, where it is another one (Gemma 4)
//   matrix         T [num_experts + shared_gate, hidden_size]
//   num_shared     after the chosen ones come the experts num_experts …, which all tokens choose, with the weight 1,
//                  or with shared_gate the sigmoid of the logit of the last row
//   bias           fp32 [num_experts] or null: added to the logits
//   correction     fp32 [num_experts] or null: as in route.cu
//   expert_scales  fp32 [num_experts] or null: as in route.cu
//   normed         T [n, hidden_size]
//   logits         fp32 [logits_size]: n rows of num_experts + shared_gate, used by the kernel
//   counters       u64 [max_rows]: 0 before and after
//   ids            int32 [n, experts_per_token + num_shared]: as in route.cu, like the other arguments
//   weights        fp32 [n, experts_per_token + num_shared]
//
// Algorithm: a warp computes an expert's logit; every block normalizes the row. The last block of a token chooses
// its experts. The matrix is requested before the upstream kernel ends.
//
// Requires: hidden_size * sizeof T a multiple of 16.
// Launch: grid (ceil((num_experts + shared_gate) / 8), n), block 256, dynamic shared memory
// max(hidden_size * sizeof T, that of route).
// Moves (num_experts + shared_gate) * hidden_size * sizeof T bytes.
// Accuracy: normed rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 2e-6 (fp32); ids and weights those of fp32
// logits. Test: tests/cuda/kernels/test_router.py
#include "common/pack.cuh"
#include "moe/choose.cuh"

constexpr int WARPS = 8, THREADS = WARPS * WARP;
constexpr int FRAGMENT = 16 / sizeof(T);  // elements of a load
constexpr int EARLY = 12;                 // loads of a lane before the upstream kernel ends

union Fragment {
    uint4 bits;
    T at[FRAGMENT];
};

// A thread's columns of a row, in vectors of four: columns that do not fit in registers are loaded twice.
struct Stream {
    static constexpr int VECTORS = 4;
    float4 x[VECTORS];
    Pack<T, 4> weight[VECTORS];

    __device__ __forceinline__ static int column(int v) { return (v * THREADS + threadIdx.x) * 4; }
    __device__ __forceinline__ void load_weight(const T* from, int hidden_size) {
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            if (column(v) < hidden_size) weight[v] = load<4>(from + column(v));
    }
    __device__ __forceinline__ float sum_squares(const float* from, int hidden_size) {
        float sum = 0;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            x[v] = {};
            if (column(v) < hidden_size) x[v] = __ldcg((const float4*)(from + column(v)));
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) sum += square(x[v]);
        for (int v = VECTORS; column(v) < hidden_size; v++) sum += square(__ldcg((const float4*)(from + column(v))));
        return sum;
    }
    // Calls store(column, normed values) for all columns of this thread.
    template <typename F>
    __device__ __forceinline__ void normalize(const float* from, const T* norm_weight, int hidden_size, float factor,
                                              float weight_offset, F store) const {
        auto one = [&](int column, const float4& v, const Pack<T, 4>& w) {
            float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++) values[j] *= factor * (w[j] + weight_offset);
            Pack<T, 4> result;
            result = values;
            store(column, result);
        };
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            if (column(v) < hidden_size) one(column(v), x[v], weight[v]);
        for (int v = VECTORS; column(v) < hidden_size; v++)
            one(column(v), __ldcg((const float4*)(from + column(v))), load<4>(norm_weight + column(v)));
    }
    __device__ __forceinline__ static float square(const float4& v) {
        return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
router_kernel(const float* x, const T* norm_weight, const T* expert_norm, const T* matrix, const float* bias,
              const float* correction, const float* expert_scales, T* normed, float* logits, u64* counters, int* ids, float* weights, int hidden_size, float norm_eps,
              float weight_offset, int num_shared, int shared_gate,
              int num_experts, int experts_per_token, int sigmoid, int by_logits,
              int num_groups, int top_groups, int best_of_group, int normalized, float eps, float scale) {
    extern __shared__ __align__(16) u8 dynamic[];
    __shared__ float scratch[WARPS];
    __shared__ bool is_last;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, expert = blockIdx.x * WARPS + warp;
    int fragments = hidden_size / FRAGMENT, num_rows = num_experts + shared_gate;
    i64 row = blockIdx.y;
    T* activations = (T*)dynamic;
    start_dependents();
    const uint4* own = (const uint4*)(matrix + (i64)min(expert, num_rows - 1) * hidden_size);
    Fragment early[EARLY];
#pragma unroll
    for (int i = 0; i < EARLY; i++) {
        early[i].bits = {};
        if (lane + i * WARP < fragments) early[i].bits = __ldg(own + lane + i * WARP);
    }
    Stream stream;
    stream.load_weight(norm_weight, hidden_size);
    x += row * hidden_size;
    logits += row * num_rows;
    ids += row * (experts_per_token + num_shared);
    weights += row * (experts_per_token + num_shared);

    auto normalize = [&] {
        float squares = block_reduce<THREADS>(stream.sum_squares(x, hidden_size), Sum(), scratch);
        float factor = rsqrtf(squares / hidden_size + norm_eps);
        T* to = normed + row * hidden_size;
        stream.normalize(x, norm_weight, hidden_size, factor, weight_offset, [&](int column, const Pack<T, 4>& values) {
            store(activations + column, values);
            if (blockIdx.x == 0 && !expert_norm) store(to + column, values);
        });
        if (blockIdx.x == 0 && expert_norm) {
            stream.load_weight(expert_norm, hidden_size);
            stream.normalize(x, expert_norm, hidden_size, factor, weight_offset,
                             [&](int column, const Pack<T, 4>& values) { store(to + column, values); });
        }
        __syncthreads();
    };
    auto write_logit = [&] {
        float sum = 0;
        auto add = [&](const Fragment& w, int at) {
            Fragment v;
            v.bits = ((const uint4*)activations)[at];
#pragma unroll
            for (int j = 0; j < FRAGMENT; j++) sum += to_float(w.at[j]) * to_float(v.at[j]);
        };
#pragma unroll
        for (int i = 0; i < EARLY; i++)
            if (lane + i * WARP < fragments) add(early[i], lane + i * WARP);
        for (int at = lane + EARLY * WARP; at < fragments; at += WARP) {
            Fragment w;
            w.bits = __ldg(own + at);
            add(w, at);
        }
        sum = warp_reduce(sum, Sum());
        if (lane == 0 && expert < num_rows)
            logits[expert] = sum + (bias && expert < num_experts ? bias[expert] : 0);
    };
    auto arrives_last = [&] {
        __syncthreads();
        if (threadIdx.x == 0) is_last = count_arrival(counters + row) == gridDim.x - 1;
        __syncthreads();
        return is_last;
    };
    auto read_logits = [&](float* to) {
        float shared_logit = shared_gate ? __ldcg(logits + num_experts) : 0;
        for (int e = threadIdx.x; e < num_experts; e += THREADS) to[e] = __ldcg(logits + e);
        if (threadIdx.x == 0) counters[row] = 0;
        if (threadIdx.x < num_shared) {
            ids[experts_per_token + threadIdx.x] = num_experts + threadIdx.x;
            weights[experts_per_token + threadIdx.x] = shared_gate ? 1 / (1 + expf(-shared_logit)) : 1;
        }
        __syncthreads();
    };

    wait_for_upstream();
    normalize();
    write_logit();
    if (!arrives_last()) return;
    Routing how{num_experts,   experts_per_token, sigmoid,    by_logits, num_groups,
                top_groups,    best_of_group,     normalized, eps,       scale};
    Choice choice(dynamic, how);
    read_logits(choice.logits);
    choose_experts<THREADS>(choice, correction, expert_scales, ids, weights, scratch, how);
}
