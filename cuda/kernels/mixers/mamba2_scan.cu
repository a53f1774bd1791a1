// mamba2_scan: Mamba-2 over the tokens of prompts, one after the other.
//
//   mixed        fp32 [tokens, channels]: x, b and c after the convolution
//   projected    T [tokens, row_size]: output gates z first, steps last; multiplied by z_scale and step_scale
//   decay, step_bias, skip  fp32 [num_heads]
//   states       fp32 [num_slots, num_heads, head_dim, state_size], written
//   starts       int32 [slots_stride + 1]: of the sequences, see rows.cuh
//   slots        int32 [2, slots_stride]
//   positions    int32 [tokens]
//   out          fp32 [tokens, num_heads * head_dim] with FP32_OUT, else T [tokens, num_heads * head_dim]: times
//                silu(z) if `gated`; mamba2_step.cu has the formula
//
// Algorithm: the rows of H do not depend on each other; a block has 32 of a head's, in registers, and
// computes the tokens in order, 16 at a time from shared memory, while the next 16 are on their way.
//
// Defines: FP32_OUT, VECTORS: state_size <= 128 * VECTORS.
// Requires: state_size % 4 == 0, width % 4 == 0.
// Launch: grid (num_heads * ceil(head_dim / 32), sequences), block 128. Moves b and c for each 32 rows.
// Accuracy: fp32 sums, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 1e-5 (fp32).
// Test: tests/cuda/kernels/test_mamba2_scan.py
#include "mixers/rows.cuh"

constexpr int MAX_STATE = 128 * VECTORS, PARTS = 4 * VECTORS;
#if FP32_OUT
using Out = float;
#else
using Out = T;
#endif

struct Shared {
    float b[SCAN_TOKENS * MAX_STATE], c[SCAN_TOKENS * MAX_STATE];
    float x[SCAN_TOKENS][SCAN_ROWS], z[SCAN_TOKENS][SCAN_ROWS], forget[SCAN_TOKENS], delta[SCAN_TOKENS];
};

extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
mamba2_scan_kernel(const float* mixed, const T* projected, const float* decay, const float* step_bias,
                   const float* skip, float* states, const int* starts, const int* slots,
                   const int* positions, Out* out, int num_heads, int head_dim, int num_groups,
                   int state_size, int slots_stride, int gated, float min_step, float z_scale,
                   float step_scale) {
    __shared__ __align__(16) Shared sh;
    start_dependents();
    wait_for_upstream();
    Row row(starts, slots, slots_stride, positions, blockIdx.y);
    if (row.num_tokens == 0) return;
    int parts = (head_dim + SCAN_ROWS - 1) / SCAN_ROWS, head = blockIdx.x / parts;
    int first = blockIdx.x % parts * SCAN_ROWS, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int local = warp * 8 + lane % 4 * 2, lane_group = lane / 4, group = head / (num_heads / num_groups);
    int width = num_heads * head_dim, channels = width + 2 * num_groups * state_size;
    int row_size = width + channels + num_heads, b_at = width + group * state_size;
    int c_at = b_at + num_groups * state_size;
    i64 size = (i64)width * state_size;
    i64 offset = ((i64)head * head_dim + first + local) * state_size + 4 * lane_group;
    Pack<float, 4> h[2][PARTS];
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            int column = 32 * i + 4 * lane_group;
            h[r][i] = {};
            if (row.before >= 0 && first + local + r < head_dim && column < state_size)
                h[r][i] = load<4>(states + row.before * size + offset + (i64)r * state_size + 32 * i);
        }
    float rate = -expf(decay[head]), bias = step_bias[head], skip_weight = skip[head];

    Tile<VECTORS> b, c;
    float x[SCAN_TOKENS / 4], z[SCAN_TOKENS / 4], forget = 0, delta = 0;
    auto prefetch = [&](int from) {
        const float* at = mixed + (i64)(row.start + from) * channels;
        const T* gates = projected + (i64)(row.start + from) * row_size;
        int num_tokens = row.num_tokens - from, own = head * head_dim + first + lane;
        b.load(at + b_at, channels, num_tokens, state_size);
        c.load(at + c_at, channels, num_tokens, state_size);
#pragma unroll
        for (int i = 0; i < SCAN_TOKENS / 4; i++) {
            i64 token = 4 * i + warp;
            bool is_used = token < num_tokens && first + lane < head_dim;
            x[i] = is_used ? at[token * channels + own] : 0.f;
            z[i] = is_used && gated ? z_scale * to_float(gates[token * row_size + own]) : 0.f;
        }
        if ((int)threadIdx.x < min(SCAN_TOKENS, num_tokens)) {
            float step = to_float(gates[(i64)(threadIdx.x + 1) * row_size - num_heads + head]);
            delta = fmaxf(softplus(step_scale * step + bias), min_step);
            forget = expf(rate * delta);
        }
    };
    prefetch(0);
    for (int from = 0; from < row.num_tokens; from += SCAN_TOKENS) {
        __syncthreads();  // the tokens before have been read
        b.store(sh.b);
        c.store(sh.c);
#pragma unroll
        for (int i = 0; i < SCAN_TOKENS / 4; i++) {
            sh.x[4 * i + warp][lane] = x[i];
            sh.z[4 * i + warp][lane] = z[i];
        }
        if (threadIdx.x < SCAN_TOKENS) {
            sh.forget[threadIdx.x] = forget;
            sh.delta[threadIdx.x] = delta;
        }
        __syncthreads();
        if (from + SCAN_TOKENS < row.num_tokens) prefetch(from + SCAN_TOKENS);
        int num_tokens = min(SCAN_TOKENS, row.num_tokens - from);
        for (int t = 0; t < num_tokens; t++) {
            float keep = sh.forget[t], step = sh.delta[t], sums[2] = {};
            float inputs[2] = {sh.x[t][local], sh.x[t][local + 1]};
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                Pack<float, 4> b4 = load<4>(sh.b + t * MAX_STATE + 32 * i + 4 * lane_group);
                Pack<float, 4> c4 = load<4>(sh.c + t * MAX_STATE + 32 * i + 4 * lane_group);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float values[4];
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        values[j] = keep * h[r][i][j] + step * inputs[r] * b4[j];
                        sums[r] += values[j] * c4[j];
                    }
                    h[r][i] = values;
                }
            }
            Out* to = out + (i64)(row.start + from + t) * width + head * head_dim + first + local;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float result = row_sum(sums[r]) + skip_weight * inputs[r];
                float gate = sh.z[t][local + r];
                if (gated) result *= gate * sigmoid(gate);
                if (lane_group == 0 && first + local + r < head_dim) to[r] = from_float<Out>(result);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            if (first + local + r < head_dim && 32 * i + 4 * lane_group < state_size)
                store(states + row.after * size + offset + (i64)r * state_size + 32 * i, h[r][i]);
}
