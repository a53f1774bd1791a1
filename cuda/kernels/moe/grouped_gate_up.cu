// grouped_gate_up: first half of the MLPs of the experts of many tokens (MoE): activation(gate) * up.
//
//   x       T [n, hidden_size]
//   values  u64 [num_matrices]: addresses of each expert's matrix [2 * expert_size, hidden_size]: of its elements T,
//           or of its packed tiles (linear/packed_layout.cuh)
//   scales  u64 [num_matrices] or null: null if the scheme has none; addresses of row scales fp32 [2 * expert_size]
//   biases  u64 [num_matrices] or null: addresses of biases T [2 * expert_size]
//   input_weights  fp32 [n, experts_per_token] or null: of the choices in the order of the tokens; as in
//           expert_gate_up
//   order   int32 [n * experts_per_token]: of expert_order
//   starts  int32 [num_experts + 1]
//   out     T [n * experts_per_token, expert_size]: rows in that order; as in expert_gate_up, with limit
//
// Algorithm: grouped.cuh. A block has 64 gate rows and the 64 up rows that belong to them, in turns of eight, so that
// a thread has both sums of an output.
//
// Requires: hidden_size * sizeof T a multiple of 16; expert_size even; for packed
// matrices a multiple of 8.
// Launch: grid (ceil(expert_size / 64), most tiles of rows), block 256, dynamic shared memory as in compute_tile.
// Moves the matrices of all chosen experts, and x once for each.
// Accuracy: fp32 sums of weights rounded to T, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 1e-5 (fp32).
// Test: tests/cuda/kernels/test_grouped_gate_up.py
#include "moe/gated.cuh"
#include "moe/grouped.cuh"

constexpr int PAIRS = TILE_COLUMNS / 2;

// Writes a block's outputs: those from `first` on, of the rows from first_row on.
struct Outputs {
    u64 scales;
    const T* bias;
    const float* input_weights;
    const int* order;
    T* out;
    int first_row, num_rows, first, expert_size;
    float limit;

    __device__ __forceinline__ float weight_of(int row) const {
        return input_weights && row < num_rows ? input_weights[order[first_row + row]] : 1.f;
    }
    // What the sum of gate (0) or up (1) of an output is multiplied by; its bias.
    __device__ __forceinline__ float factor(int output, int which) const {
        return Matrix::scale(scales, output + which * expert_size);
    }
    __device__ __forceinline__ float shift(int output, int which) const {
        return bias ? to_float(bias[output + which * expert_size]) : 0.f;
    }
    __device__ __forceinline__ T* place(int row, int output) const {
        return out + (i64)(first_row + row) * expert_size + output;
    }

#if TRANSPOSED
    // A thread has four sums at a time, for two rows: of two gate rows of the matrix, or of the up rows of the same two
    // outputs. It exchanges two of them with the thread that has the others (g and g ^ 2), and then has both sums of
    // output g of the warp's eight.
    __device__ __forceinline__ void store(const Sums& sums) const {
        int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4, own = first + threadIdx.x / WARP * 8, output = own + g;
        bool has_up = g / 2 % 2;
        float factors[2] = {}, shifts[2] = {};
#pragma unroll
        for (int i = 0; i < 2 && output < expert_size; i++) {
            factors[i] = factor(output, i) * (1 / GROUP_SHRINK);
            shifts[i] = shift(output, i);
        }
#pragma unroll
        for (int j = 0; j < BLOCK_ROWS / 8; j++) {
            if (j * 8 >= num_rows) break;
            const float* four = (const float*)sums.at + 4 * j;
            float results[2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float received = __shfl_xor_sync(ALL, has_up ? four[c] : four[2 + c], 8);
                float weight = weight_of(j * 8 + 2 * t + c);
                float gate = (has_up ? received : four[c]) * weight, up = (has_up ? four[2 + c] : received) * weight;
                results[c] = gated<ACTIVATION>(gate * factors[0] + shifts[0], up * factors[1] + shifts[1], limit);
            }
            u32 pair = transpose(pair_bits(results[0], results[1], T()));
            int row = j * 8 + g;
            if (row < num_rows && own + 2 * t < expert_size) *(u32*)place(row, own + 2 * t) = pair;
        }
    }
#else
    __device__ __forceinline__ void store(const Sums& sums) const {
        int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int j = 0; j < MMA_COLUMNS / 2; j++) {
            int output = first + warp / ROW_WARPS * (OWN_COLUMNS / 2) + j * 8 + 2 * t;
            if (output >= expert_size) continue;
            float factors[2][2], shifts[2][2];  // of gate and up
#pragma unroll
            for (int c = 0; c < 4; c++) {
                factors[c / 2][c % 2] = factor(output + c % 2, c / 2);
                shifts[c / 2][c % 2] = shift(output + c % 2, c / 2);
            }
#pragma unroll
            for (int i = 0; i < MMA_ROWS * 2; i++) {
                int row = warp % ROW_WARPS * OWN_ROWS + i * 8 + g;
                if (row >= num_rows) continue;
                float results[2], weight = weight_of(row);
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float gate = sums.at[i / 2][2 * j][i % 2 * 2 + c], up = sums.at[i / 2][2 * j + 1][i % 2 * 2 + c];
                    gate *= weight, up *= weight;
                    results[c] = gated<ACTIVATION>(gate * factors[0][c] + shifts[0][c],
                                                   up * factors[1][c] + shifts[1][c], limit);
                }
                store_pair(place(row, output), results[0], results[1]);
            }
        }
    }
#endif
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
grouped_gate_up_kernel(const T* x, const u64* values, const u64* scales, const u64* biases,
                       const float* input_weights, const int* order, const int* starts, T* out, int num_experts, int hidden_size, int expert_size,
                       int experts_per_token, float limit) {
    extern __shared__ __align__(1024) u8 stages[];
    start_dependents();
    wait_for_upstream();
    ExpertRows rows(starts, num_experts, blockIdx.y);
    if (rows.first == rows.end) return;
    int first = blockIdx.x * PAIRS, num_rows = rows.end - rows.first;
    auto token_of = [&](int i) { return i < num_rows ? order[rows.first + i] / experts_per_token : -1; };
    // Of 16 rows of the tile eight are gate rows, then the up rows of the same outputs come.
    auto row_of = [&](int i) {
        int output = first + i / 16 * 8 + i % 8;
        return output < expert_size ? output + (i % 16 < 8 ? 0 : expert_size) : -1;
    };
    u64 own_scales = scales ? scales[rows.expert] : 0;
    Activations activations(x, token_of, hidden_size);
    Matrix matrix(values[rows.expert], own_scales, row_of, hidden_size);
    Sums sums = {};
    compute_tile(sums, activations, matrix, stages, num_rows);
    const T* bias = biases ? (const T*)biases[rows.expert] : nullptr;
    Outputs outputs{own_scales, bias,     input_weights, order, out,
                    rows.first, num_rows, first, expert_size, limit};
    outputs.store(sums);
}
