// mamba2_step: a decode step of Mamba-2, or several ones of a sequence, from the projections of each row to its
// output; reads the state once and writes it after each row.
//
//   projected    T [n, row_size]: 2 * width + 2 * num_groups * state_size + num_heads columns, width = num_heads *
//                head_dim: output gates z, x, b, c, steps; each part is multiplied by its scale
//   conv         T [channels, taps]: the convolution of x, b and c
//   conv_bias    T [channels] or null
//   decay, step_bias, skip  fp32 [num_heads]: constant
//   conv_states  fp32 [num_slots, channels, taps - 1], written: the inputs of the last tokens
//   states       fp32 [num_slots, num_heads, head_dim, state_size], written
//   slots        int32 [2, slots_stride]: see step.cuh
//   step         int64 [1] or null
//   positions    int32 [n]
//   out          fp32 [n, num_heads * head_dim] with FP32_OUT, else T [n, num_heads * head_dim]: times silu(z) if `gated`; 0 in unused rows
//   early_reads  everything but `projected` was written before the current chain of dependent launches
//
//   Δ = max(softplus(step + step_bias), min_step);  H ← exp(−exp(decay) Δ) H + Δ x bᵀ;
//   out = H c + skip · x    (Dao and Gu, 2024, arXiv:2405.21060)
//
// Algorithm: a block has 32 rows of a head's H, a warp 4 of them in registers. b and c, which the heads of a
// group share, are convolved by each block and stored by the group's first. Sums are in a fixed order.
//
// Defines: ACTIVATION (activation.cuh) of the convolution, FP32_OUT, VECTORS: state_size <= 128 * VECTORS,
// CHAINED (step.cuh) 0 or 1.
// Requires: taps <= 4, state_size % 4 == 0.
// Launch: grid (num_heads * ceil(head_dim / 32), n), block 256, no dynamic shared memory. Moves the state
// twice.
// Accuracy: fp32, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 1e-5 (fp32: exponentials).
// Test: tests/cuda/kernels/test_mamba2_step.py
#include "common/activation.cuh"
#include "common/reduce.cuh"
#include "mixers/step.cuh"

constexpr int THREADS = 256, ROWS = 4, BLOCK_ROWS = THREADS / WARP * ROWS, MAX_STATE = 128 * VECTORS;
constexpr int CHANNELS = (BLOCK_ROWS + 2 * MAX_STATE + THREADS - 1) / THREADS;  // of a thread, at most
#if FP32_OUT
using Out = float;
#else
using Out = T;
#endif

// What a thread reads of a row's projections.
struct Inputs {
    float gate, step, mixed[CHANNELS];
};

extern "C" __global__ void __launch_bounds__(THREADS)
mamba2_step_kernel(const T* projected, const T* conv, const T* conv_bias, const float* decay,
                   const float* step_bias, const float* skip, float* conv_states, float* states,
                   const int* slots, const i64* step, const int* positions, Out* out, int num_heads,
                   int head_dim, int num_groups, int state_size, int taps, int slots_stride, int gated,
                   int early_reads, float min_step, float z_scale, float x_scale, float b_scale,
                   float c_scale, float step_scale) {
    __shared__ __align__(16) float mixed[BLOCK_ROWS + 2 * MAX_STATE];  // x, b, c
    start_dependents();
    int parts = (head_dim + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int head = blockIdx.x / parts, first = blockIdx.x % parts * BLOCK_ROWS;
    int heads_per_group = num_heads / num_groups, group = head / heads_per_group;
    int width = num_heads * head_dim, num_channels = width + 2 * num_groups * state_size;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (!early_reads) wait_for_upstream();

    Slots slot(slots, slots_stride, step, positions, blockIdx.y);
    if (CHAINED && slot.continues) {
        wait_for_upstream();  // every block must
        return;
    }
    bool has_state = slot.before >= 0;
    i64 all = (i64)width * state_size, own = ((i64)head * head_dim + first + warp * ROWS) * state_size;
    const float* state = states + slot.before * all + own;
    float4 h[ROWS][VECTORS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            int column = 4 * (v * WARP + lane);
            h[r][v] = make_float4(0, 0, 0, 0);
            if (has_state && first + warp * ROWS + r < head_dim && column < state_size)
                h[r][v] = *reinterpret_cast<const float4*>(state + (i64)r * state_size + column);
        }

    // Thread t convolves the elements t, t + THREADS, … of `mixed`.
    i64 conv_size = (i64)num_channels * (taps - 1);
    const float* conv_state = has_state ? conv_states + slot.before * conv_size : nullptr;
    Channel channels[CHANNELS];
    int numbers[CHANNELS];
#pragma unroll
    for (int j = 0; j < CHANNELS; j++) {
        int i = threadIdx.x + j * THREADS, at = i - BLOCK_ROWS;
        numbers[j] = -1;
        if (i < BLOCK_ROWS) {
            if (first + i < head_dim) numbers[j] = head * head_dim + first + i;
        } else if (at < state_size) {
            numbers[j] = width + group * state_size + at;
        } else if (at >= MAX_STATE && at - MAX_STATE < state_size) {
            numbers[j] = width + (num_groups + group) * state_size + at - MAX_STATE;
        }
        if (numbers[j] >= 0) channels[j].load(conv, conv_bias, conv_state, numbers[j], taps);
    }
    float rate = -expf(decay[head]), bias = step_bias[head], skip_weight = skip[head];

    if (early_reads) wait_for_upstream();
    int own_row = first + warp * ROWS + lane;  // of the head: the lane writes its output
    bool writes = lane < ROWS && own_row < head_dim;
    i64 target = head * head_dim + own_row;
    if (slot.after < 0) {
        if (writes) out[(i64)slot.row * width + target] = from_float<Out>(0.f);
        return;
    }
    bool is_first = first == 0 && head % heads_per_group == 0;
    auto read = [&](int row) {
        const T* from = projected + (i64)row * (width + num_channels + num_heads);
        Inputs found;
        found.gate = writes && gated ? to_float(from[target]) : 0.f;
        found.step = to_float(from[width + num_channels + head]);
#pragma unroll
        for (int j = 0; j < CHANNELS; j++)
            found.mixed[j] = numbers[j] >= 0 ? to_float(from[width + numbers[j]]) : 0.f;
        return found;
    };
    Inputs inputs = read(slot.row);
    bool continues;
    do {
        Slots next = slot;
        Inputs next_inputs = inputs;
        continues = CHAINED && (next = slot.next()).continues;
        if (continues) next_inputs = read(next.row);  // while this row is computed

        float delta = fmaxf(softplus(step_scale * inputs.step + bias), min_step);
        float forget = expf(rate * delta);
#pragma unroll
        for (int j = 0; j < CHANNELS; j++) {
            int i = threadIdx.x + j * THREADS;
            if (numbers[j] < 0) continue;
            float scale = i < BLOCK_ROWS ? x_scale : i < BLOCK_ROWS + MAX_STATE ? b_scale : c_scale;
            float* after = i < BLOCK_ROWS || is_first ? conv_states + slot.after * conv_size : nullptr;
            float x = channels[j].step(scale * inputs.mixed[j], after, numbers[j], taps);
            mixed[i] = activate<ACTIVATION>(x);
        }
        __syncthreads();

        float4 b[VECTORS], c[VECTORS];
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            int column = 4 * (v * WARP + lane);
            b[v] = c[v] = make_float4(0, 0, 0, 0);
            if (column >= state_size) continue;
            b[v] = *reinterpret_cast<const float4*>(mixed + BLOCK_ROWS + column);
            c[v] = *reinterpret_cast<const float4*>(mixed + BLOCK_ROWS + MAX_STATE + column);
        }
        float* after = states + slot.after * all + own;
        float result = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            bool inside = first + warp * ROWS + r < head_dim;
            float x = inside ? mixed[warp * ROWS + r] : 0.f, added = delta * x, sum = 0;
#pragma unroll
            for (int v = 0; v < VECTORS; v++) {
                float4 value = h[r][v];
                value = make_float4(forget * value.x + added * b[v].x, forget * value.y + added * b[v].y,
                                    forget * value.z + added * b[v].z, forget * value.w + added * b[v].w);
                sum += value.x * c[v].x + value.y * c[v].y + value.z * c[v].z + value.w * c[v].w;
                int column = 4 * (v * WARP + lane);
                if (inside && column < state_size)
                    *reinterpret_cast<float4*>(after + (i64)r * state_size + column) = value;
                h[r][v] = value;
            }
            sum = warp_reduce(sum, Sum()) + skip_weight * x;
            if (lane == r) result = sum;
        }
        float gate = z_scale * inputs.gate;
        if (gated) result *= gate * sigmoid(gate);
        if (writes) out[(i64)slot.row * width + target] = from_float<Out>(result);
        if (CHAINED) __syncthreads();  // `mixed` has been read
        slot = next;
        inputs = next_inputs;
    } while (continues);
}
