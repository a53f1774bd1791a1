// expert_down: second half of the MLPs of each token's experts (MoE), weighted and summed.
//
//   x           T [n, experts_per_token, expert_size]
//   values      u64 [num_experts]: address of each expert's matrix [hidden_size, expert_size], as in packed_gate_up, or
//               elements of T (PLAIN)
//   scales      u64 [num_experts] or null: address of its row scales, as in packed_gate_up; null if the scheme has none
//   biases      u64 [num_experts] or null: each expert's bias T [hidden_size]
//   ids         int32 [n, experts_per_token]
//   weights     fp32 [n, experts_per_token] or null: routing weights; null: 1
//   out         fp32 [n, hidden_size] = sum over a token's experts of weight * (matrix · x + bias)
//   num_routed, shared_size  the experts from num_routed on are parts of one expert of this size: expert_size columns
//               of its matrix [hidden_size, shared_size]
//   accumulate  1: the sum is added to out
//
// Algorithm: a block computes tiles of eight rows of one token. A unit is a tile of two experts, which are the low
// and the high rows; the warps divide the columns of all experts. Their sums are added in the order of the warps. The weights are
// requested before the upstream kernel ends: it must be expert_gate_up, packed_gate_up or bulk_gate_up, or leave ids and
// weights as they are.
//
// Requires: rows of whole 16 bytes; experts_per_token at most 32.
// Launch: grid (any number of blocks of a token, n), block 256, dynamic shared memory: see ops/moe/experts.py.
// Moves n * experts_per_token times the bytes of a matrix.
// Accuracy: fp32 sums of exact weights: relative 1e-5. Test: tests/cuda/kernels/test_expert_down.py
#include "moe/expert_stream.cuh"

constexpr int WARPS = NUM_WARPS, DEPTH = NUM_SLOTS, ROWS = 8;

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
expert_down_kernel(const T* x, const u64* values, const u64* scales, const u64* biases, const int* ids,
                   const float* weights, float* out, int num_routed, int shared_size, int hidden_size,
                   int expert_size, int experts_per_token, int accumulate) {
    extern __shared__ __align__(128) u8 dynamic[];
    __shared__ float sums[2][WARPS][ROWS], row_weights[2][WARPS * WARP];
    __shared__ Chosen chosen;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int pairs = (experts_per_token + 1) / 2, tiles = (hidden_size + ROWS - 1) / ROWS;
    int each = (tiles + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * each, end = min(begin + each, tiles);
    i64 token = blockIdx.y;
    u8* activations = dynamic + WARPS * DEPTH * SLOT_BYTES;
    int stride = activation_bytes(expert_size), sums_stride = num_sums(expert_size);
    float* activation_sums = (float*)(activations + experts_per_token * stride);
    start_dependents();
    ids += token * experts_per_token;
    chosen.look_up(Chosen::own_id(ids, experts_per_token), experts_per_token, values, scales);
    if (weights) weights += token * experts_per_token;
    __syncthreads();
    // What multiplies this thread's row of this thread's expert in a tile: routing weight times scale of the row.
    auto row_weight = [&](int tile) {
        if (threadIdx.x >= experts_per_token * ROWS || tile >= end) return 0.f;
        int c = threadIdx.x / ROWS, row = min(tile * ROWS + (int)threadIdx.x % ROWS, hidden_size - 1);
        float weight = weights ? __ldcg(weights + c) : 1.f;
        return ROW_SCALES ? weight * __ldg((const float*)chosen.scales[c] + row) : weight;
    };
    auto rows_of = [&](int unit, Row (&rows)[2]) {
        int tile = unit / pairs, choice = (unit - tile * pairs) * 2;
        i64 row = min(tile * ROWS + lane / 4, hidden_size - 1);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int c = min(choice + i, experts_per_token - 1), columns = expert_size;
            if (chosen.ids[c] >= num_routed) columns = shared_size;
            rows[i] = Row(chosen.values[c], chosen.scales[c], row, expert_size, columns);
        }
    };
    Stream<WARPS, DEPTH, decltype(rows_of)> stream(dynamic, expert_size, begin * pairs, end * pairs, rows_of);
    row_weights[begin % 2][threadIdx.x] = row_weight(begin);
    wait_for_upstream();
    stage_activations<WARPS>(activations, activation_sums, x + token * experts_per_token * expert_size,
                             experts_per_token, expert_size);
    __syncthreads();
    for (int tile = begin; tile < end; tile++) {
        int at = tile * ROWS + threadIdx.x;
        bool is_own = threadIdx.x < ROWS && at < hidden_size;
        float* to = out + token * hidden_size + at;
        float total = 0, sum = is_own && accumulate ? __ldcg(to) : 0;
        float next_weight = row_weight(tile + 1);
        for (int pair = 0; pair < pairs; pair++) {
            if (!stream.has(tile * pairs + pair)) continue;
            int low = 2 * pair, high = min(low + 1, experts_per_token - 1);
            const float* row_weight_at = row_weights[tile % 2] + lane / 4;
            Activations staged{{activations + low * stride, activations + high * stride},
                               {activation_sums + low * sums_stride, activation_sums + high * sums_stride}};
            Row rows[2];
            rows_of(tile * pairs + pair, rows);
            Sums own;
            stream.add(own, tile * pairs + pair, rows, staged);
            total += row_weight_at[low * ROWS] * own.whole(0);
            if (high > low) total += row_weight_at[high * ROWS] * own.whole(1);
        }
        if (lane % 4 == 0) sums[tile % 2][warp][lane / 4] = total;
        row_weights[(tile + 1) % 2][threadIdx.x] = next_weight;
        __syncthreads();
        if (!is_own) continue;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += sums[tile % 2][w][threadIdx.x];
        if (biases)
            for (int c = 0; c < experts_per_token; c++)
                sum += (weights ? __ldcg(weights + c) : 1.f) * to_float(((const T*)biases[chosen.ids[c]])[at]);
        *to = sum;
    }
}
