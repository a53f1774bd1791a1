// packed_gate_up: first half of the MLPs of each token's experts (MoE): activation(gate) * up.
//
//   x          T [n, hidden_size]
//   values     u64 [num_experts]: address of each expert's matrix [2 * expert_size, hidden_size]: tiles of
//              linear/packed_layout.cuh
//   scales     u64 [num_experts] or null: address of its row scales fp32; null if the scheme has none
//   biases     u64 [num_experts] or null: each expert's bias T [2 * expert_size]
//   ids        int32 [n, experts_per_token]
//   input_weights  fp32 [n, experts_per_token] or null: the products are multiplied by them, before a bias is added:
//              the weight of a choice multiplies the expert's input (Llama 4)
//   out        T [n, experts_per_token, expert_size] = ACTIVATION(gate · x) * (up · x); with a `limit` > 0
//              gate is at most that, up is clamped to ±limit, and 1 is added to up (OpenAI gpt-oss, 2025)
//   num_routed, shared_size  the experts from num_routed on are parts of one expert of this size, which all tokens
//              choose: their up rows come shared_size after their gate rows
//
// Algorithm: a unit is eight outputs of a token's expert: eight gate rows and eight up rows. A block computes
// neighboring units of a token. Its warps divide the columns; their sums are added in the order of the warps. x is
// read first: behind the weights it would wait for all of them. The next kernel may start when the ids of the experts
// are known: see expert_down. The first blocks warm the instruction cache while they wait.
//
// Requires: packed layout: expert_size a multiple of 8;
// experts_per_token at most 32.
// Launch: grid (any number of blocks of a token, n), block 256, dynamic shared memory: see ops/moe/experts.py.
// Moves n * experts_per_token times the bytes of a matrix, less where tokens share experts that stay in L2.
// Accuracy: fp32 sums of exact weights, rounded once: relative 2^-8 (bf16), 2^-11 (fp16).
// Test: tests/cuda/kernels/test_packed_gate_up.py
#include "moe/expert_stream.cuh"
#include "moe/gated.cuh"

constexpr int WARPS = NUM_WARPS, DEPTH = NUM_SLOTS, ROWS = 8;

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
packed_gate_up_kernel(const T* x, const u64* values, const u64* scales, int num_experts, const u64* biases,
                      const int* ids, const float* input_weights, T* out, int num_routed, int shared_size, int hidden_size, int expert_size,
                      int experts_per_token, float limit) {
    extern __shared__ __align__(128) u8 dynamic[];
    __shared__ float sums[2][WARPS][2 * ROWS];
    __shared__ Chosen chosen;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int tiles = (expert_size + ROWS - 1) / ROWS, units = tiles * experts_per_token;
    int each = (units + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * each, end = min(begin + each, units);
    i64 token = blockIdx.y;
    u8* activations = dynamic + WARPS * DEPTH * SLOT_BYTES;
    float* activation_sums = (float*)(activations + activation_bytes(hidden_size));
    touch_tables(values, scales, num_experts);
    auto rows_of = [&](int unit, Row (&rows)[2]) {
        int choice = unit / tiles, first = (unit - choice * tiles) * ROWS;
        i64 row = min(first + lane / 4, expert_size - 1);
        i64 to_up = chosen.ids[choice] < num_routed ? expert_size : shared_size;
        u64 values_at = chosen.values[choice], scales_at = chosen.scales[choice];
        rows[0] = Row(values_at, scales_at, row, hidden_size, hidden_size);
        rows[1] = Row(values_at, scales_at, row + to_up, hidden_size, hidden_size);
    };
    Activations staged{{activations, activations}, {activation_sums, activation_sums}};
    x += token * hidden_size;
    ids += token * experts_per_token;
#pragma unroll 1
    for (bool is_real = !warms_instructions();; is_real = true) {
        if (is_real) {
            wait_for_upstream();
            start_dependents();
        }
        int id = is_real ? Chosen::own_id(ids, experts_per_token) : 0;
        stage_activations<WARPS>(activations, activation_sums, x, 1, hidden_size, is_real);
        chosen.look_up(id, experts_per_token, values, scales);
        __syncthreads();
        Stream<WARPS, DEPTH, decltype(rows_of)> stream(dynamic, hidden_size, begin, end, rows_of, is_real);
#pragma unroll 1
        for (int unit = begin; unit < end; unit++) {
            float (&partial)[WARPS][2 * ROWS] = sums[unit % 2];
            Row rows[2];
            rows_of(unit, rows);
            float gate_scale = row_scale(rows[0]), up_scale = row_scale(rows[1]);  // arrive before the products
            Sums own;
            stream.add(own, unit, rows, staged);
            float g = own.whole(0) * gate_scale, u = own.whole(1) * up_scale;
            if (lane % 4 == 0) {
                partial[warp][lane / 4] = g;
                partial[warp][ROWS + lane / 4] = u;
            }
            __syncthreads();
            int choice = unit / tiles, at = (unit - choice * tiles) * ROWS + threadIdx.x;
            if (threadIdx.x >= ROWS || at >= expert_size) continue;
            g = u = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                g += partial[w][threadIdx.x];
                u += partial[w][ROWS + threadIdx.x];
            }
            if (input_weights && is_real) {
                float weight = __ldcg(input_weights + token * experts_per_token + choice);
                g *= weight, u *= weight;
            }
            if (biases) {
                const T* bias = (const T*)biases[chosen.ids[choice]] + at;
                g += to_float(bias[0]), u += to_float(bias[expert_size]);
            }
            T result = from_float<T>(gated<ACTIVATION>(g, u, limit));
            if (is_real) out[(token * experts_per_token + choice) * expert_size + at] = result;
        }
        if (is_real) return;
        wait_for_copies<0>();
        __syncthreads();
    }
}
