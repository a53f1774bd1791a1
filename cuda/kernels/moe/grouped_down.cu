// grouped_down: second half of the MLPs of the experts of many tokens (MoE).
//
//   x       T [num_choices, expert_size]: rows as `order` has them
//   values  u64 [num_matrices]: as in grouped_gate_up, of matrices [hidden_size, expert_size]
//   scales, biases  u64 [num_matrices] or null
//   order   int32 [num_choices]: of expert_order
//   starts  int32 [num_experts + 1]
//   out     T [num_choices, hidden_size] = matrix · x + bias, at the place of the choice: row order[i] for row i of x
//
// Algorithm: grouped.cuh. expert_sum adds the outputs of a token.
//
// Requires: expert_size * sizeof T a multiple of 16; hidden_size even.
// Launch: grid (ceil(hidden_size / 128), most tiles of rows), block 256, dynamic shared memory as in compute_tile.
// Moves the matrices of all chosen experts, x and out.
// Accuracy: fp32 sums of weights rounded to T, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 1e-5 (fp32).
// Test: tests/cuda/kernels/test_grouped_down.py
#include "moe/grouped.cuh"

// Writes a block's outputs: those from `first` on, of the rows from first_row on.
struct Outputs {
    u64 scales;
    const T* bias;
    const int* order;
    T* out;
    int first_row, num_rows, first, hidden_size;

    __device__ __forceinline__ float shift(int output) const { return bias ? to_float(bias[output]) : 0.f; }
    __device__ __forceinline__ T* place(int row, int output) const {
        return out + (i64)order[first_row + row] * hidden_size + output;
    }

#if TRANSPOSED
    // A thread's transposed results are four neighboring outputs of a row.
    __device__ __forceinline__ void store(const Sums& sums) const {
        LaneRows lane(PACKED_TILE_BYTES);
        float factors[2] = {}, shifts[2] = {};  // of both matrix rows
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int output = first + lane.first() + 2 * i;
            if (output >= hidden_size) continue;
            factors[i] = Matrix::scale(scales, output) * (1 / GROUP_SHRINK);
            shifts[i] = shift(output);
        }
        int column = first + lane.first_result();
#pragma unroll
        for (int j = 0; j < BLOCK_ROWS / 8; j++) {
            if (j * 8 >= num_rows) break;
            const float* four = (const float*)sums.at + 4 * j;
            u32 pairs[2];
#pragma unroll
            for (int i = 0; i < 2; i++)
                pairs[i] = transpose(pair_bits(four[2 * i] * factors[i] + shifts[i],
                                               four[2 * i + 1] * factors[i] + shifts[i], T()));
            int row = j * 8 + threadIdx.x % WARP / 4;
            if (row >= num_rows) continue;
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (column + 2 * i < hidden_size) *(u32*)place(row, column + 2 * i) = pairs[i];
        }
    }
#else
    __device__ __forceinline__ void store(const Sums& sums) const {
        int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int j = 0; j < MMA_COLUMNS; j++) {
            int output = first + warp / ROW_WARPS * OWN_COLUMNS + j * 8 + 2 * t;
            if (output >= hidden_size) continue;
            float factors[2], shifts[2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                factors[c] = Matrix::scale(scales, output + c);
                shifts[c] = shift(output + c);
            }
#pragma unroll
            for (int i = 0; i < MMA_ROWS * 2; i++) {
                int row = warp % ROW_WARPS * OWN_ROWS + i * 8 + g;
                if (row >= num_rows) continue;
                const float* own = &sums.at[i / 2][j][i % 2 * 2];
                store_pair(place(row, output), own[0] * factors[0] + shifts[0], own[1] * factors[1] + shifts[1]);
            }
        }
    }
#endif
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
grouped_down_kernel(const T* x, const u64* values, const u64* scales, const u64* biases, const int* order,
                    const int* starts, T* out, int num_experts, int hidden_size, int expert_size) {
    extern __shared__ __align__(1024) u8 stages[];
    start_dependents();
    wait_for_upstream();
    ExpertRows rows(starts, num_experts, blockIdx.y);
    if (rows.first == rows.end) return;
    int first = blockIdx.x * TILE_COLUMNS, num_rows = rows.end - rows.first;
    auto input_of = [&](int i) { return i < num_rows ? rows.first + i : -1; };
    auto row_of = [&](int i) { return first + i < hidden_size ? first + i : -1; };
    u64 own_scales = scales ? scales[rows.expert] : 0;
    Activations activations(x, input_of, expert_size);
    Matrix matrix(values[rows.expert], own_scales, row_of, expert_size);
    Sums sums = {};
    compute_tile(sums, activations, matrix, stages, num_rows);
    const T* bias = biases ? (const T*)biases[rows.expert] : nullptr;
    Outputs outputs{own_scales, bias, order, out, rows.first, num_rows, first, hidden_size};
    outputs.store(sums);
}
