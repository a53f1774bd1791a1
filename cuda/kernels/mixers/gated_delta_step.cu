// gated_delta_step: a decode step of gated DeltaNet, or several ones of a sequence, from the projections of each
// row to the gated and normalized output; reads the state once and writes it after each row.
//
//   projected    T [n, row_size]: queries, keys, values, output gates z, β, steps; with KEY_DECAYS queries, keys,
//                values, β and more
//   conv         T [channels, taps]: the weights of the convolution of queries, keys and values
//   key_steps    fp32 [n, num_heads * key_dim] with KEY_DECAYS, else null
//   output_gates  fp32 [n, num_heads * value_dim] with KEY_DECAYS, else null
//   decay        fp32 [num_heads]: constant, as the next two
//   step_bias    fp32 [num_heads * key_dim] with KEY_DECAYS, else fp32 [num_heads]
//   norm         fp32 [value_dim]
//   conv_states  fp32 [num_slots, channels, taps - 1], written: the inputs of the last tokens
//   states       fp32 [num_slots, num_heads, key_dim, value_dim], written
//   slots        int32 [2, slots_stride]: see step.cuh
//   step         int64 [1] or null
//   positions    int32 [n]
//   out          T [n, num_heads * value_dim]; 0 in unused rows
//   early_reads  everything but `projected`, key_steps and output_gates was written before the current chain of
//                dependent launches
//
//   S ← exp(−exp(decay) softplus(step + step_bias)) S;  S ← S + k (sigmoid(β) (v − Sᵀk))ᵀ;
//   out = RMSNorm(Sᵀq) · norm · silu(z)    (Yang et al., 2024, arXiv:2412.06464)
// With KEY_DECAYS each row of S, an element of the key, has a decay of its own, from key_steps, and the output is
// multiplied by the sigmoid of output_gates (Kimi Delta Attention; Kimi Team, 2025, arXiv:2510.26692).
//
// Algorithm: a block has a row's value head, with S in registers: a thread keeps 4 columns of up to ROWS
// rows. Sᵀk and Sᵀq of the old state are summed in one pass; with them the new state and its output follow
// without another: Sᵀq of the new one is decay · Sᵀq + (k·q) u, where u is the update. Sums are in a fixed
// order.
//
// Defines: ACTIVATION (activation.cuh) of the convolution, KEY_DECAYS 0 or 1, CHAINED (step.cuh) 0 or 1.
// Requires: taps <= 4; 2 * key_dim + value_dim <= 512; value_dim % 4 == 0;
// key_dim <= ROWS * (512 / (value_dim / 4)).
// Launch: grid (num_heads, n), block 512, no dynamic shared memory. Moves the state twice.
// Accuracy: fp32, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 1e-5 (fp32: lengths and exponentials).
// Test: tests/cuda/kernels/test_gated_delta_step.py
#include "common/activation.cuh"
#include "common/reduce.cuh"
#include "mixers/step.cuh"

constexpr int THREADS = 512, ROWS = 8;
constexpr float EPS = 1e-6f;  // of the lengths of queries and keys

struct Sizes {
    int num_key_heads, num_heads, key_dim, value_dim, taps;

    __device__ int channels() const { return 2 * num_key_heads * key_dim + num_heads * value_dim; }
};

// A thread's part of the state: columns 4 * column … of rows group, group + groups, ….
struct Part {
    int column, group, groups;
    float4 at[ROWS];

    __device__ Part(const Sizes& s) {
        int columns = s.value_dim / 4;
        groups = THREADS / columns;
        column = threadIdx.x % columns;
        group = threadIdx.x / columns;
    }
    __device__ bool has(int r, const Sizes& s) const { return group < groups && row(r) < s.key_dim; }
    __device__ int row(int r) const { return group + r * groups; }
    __device__ i64 offset(int r, const Sizes& s) const { return (i64)row(r) * s.value_dim + 4 * column; }

    __device__ void load(const float* state, const Sizes& s) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            at[r] = make_float4(0, 0, 0, 0);
            if (state && has(r, s)) at[r] = *reinterpret_cast<const float4*>(state + offset(r, s));
        }
    }
};

__device__ __forceinline__ void add(float4& to, float factor, float4 x) {
    to.x += factor * x.x;
    to.y += factor * x.y;
    to.z += factor * x.z;
    to.w += factor * x.w;
}

// What a thread reads of a row.
struct Inputs {
    float x, gate, beta, step;
};

struct alignas(16) Shared {
    float mixed[THREADS];              // queries, keys and values after the convolution
    float sums[2][THREADS * 4];        // parts of Sᵀk and Sᵀq: [groups, value_dim] each
    float totals[2][THREADS];          // Sᵀk, Sᵀq
    float scratch[THREADS / WARP];
#if KEY_DECAYS
    float forget[THREADS];  // the decay of each row of S
#endif
};

// Sᵀk and Sᵀq for the unscaled key and query in `mixed`, to `totals`; with KEY_DECAYS of the decayed S.
__device__ __forceinline__ void sum_columns(const Part& part, Shared& sh, const Sizes& s) {
    float4 with_key = make_float4(0, 0, 0, 0), with_query = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (!part.has(r, s)) continue;
#if KEY_DECAYS
        float by = sh.forget[part.row(r)];
#else
        constexpr float by = 1;
#endif
        add(with_key, by * sh.mixed[s.key_dim + part.row(r)], part.at[r]);
        add(with_query, by * sh.mixed[part.row(r)], part.at[r]);
    }
    if (part.group < part.groups) {
        int at = part.group * s.value_dim + 4 * part.column;
        *reinterpret_cast<float4*>(sh.sums[0] + at) = with_key;
        *reinterpret_cast<float4*>(sh.sums[1] + at) = with_query;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * s.value_dim; i += THREADS) {
        int which = i / s.value_dim, column = i % s.value_dim;
        float total = 0;
        for (int g = 0; g < part.groups; g++) total += sh.sums[which][g * s.value_dim + column];
        sh.totals[which][column] = total;
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS)
gated_delta_step_kernel(const T* projected, const float* key_steps, const float* output_gates,
                        const T* conv, const float* decay, const float* step_bias,
                        const float* norm, float* conv_states, float* states, const int* slots,
                        const i64* step, const int* positions, T* out, int num_key_heads, int num_heads,
                        int key_dim, int value_dim, int row_size, int taps, int slots_stride, int early_reads,
                        float norm_eps) {
    __shared__ Shared sh;
    start_dependents();
    Sizes s{num_key_heads, num_heads, key_dim, value_dim, taps};
    int head = blockIdx.x, i = threadIdx.x;
    if (!early_reads) wait_for_upstream();

    Slots slot(slots, slots_stride, step, positions, blockIdx.y);
    if (CHAINED && slot.continues) {
        wait_for_upstream();  // every block must
        return;
    }
    i64 state_size = (i64)num_heads * key_dim * value_dim, own = (i64)head * key_dim * value_dim;
    i64 conv_size = (i64)s.channels() * (taps - 1);
    bool has_state = slot.before >= 0;
    Part part(s);
    part.load(has_state ? states + slot.before * state_size + own : nullptr, s);
    int repeats = num_heads / num_key_heads, keys = num_key_heads * key_dim;
    int key_head = head / repeats * key_dim, channel = -1;
    if (i < key_dim) channel = key_head + i;
    else if (i < 2 * key_dim) channel = keys + key_head + i - key_dim;
    else if (i < 2 * key_dim + value_dim) channel = 2 * keys + head * value_dim + i - 2 * key_dim;
    Channel own_channel;
    if (channel >= 0)
        own_channel.load(conv, nullptr, has_state ? conv_states + slot.before * conv_size : nullptr,
                         channel, taps);
    float rate = -expf(decay[head]);
#if KEY_DECAYS
    float bias = i < key_dim ? step_bias[head * key_dim + i] : 0.f;
#else
    float bias = step_bias[head];
#endif
    float norm_weight = i < value_dim ? norm[i] : 0.f;

    if (early_reads) wait_for_upstream();
    i64 values_size = (i64)num_heads * value_dim, target = head * value_dim + i;
    if (slot.after < 0) {
        if (i < value_dim) out[slot.row * values_size + target] = from_float<T>(0.f);
        return;
    }
    auto read = [&](int row) {
        const T* from = projected + (i64)row * row_size;
        const T* gates = from + s.channels();
        Inputs found{};
        if (channel >= 0) found.x = to_float(from[channel]);
#if KEY_DECAYS
        if (i < value_dim) found.gate = __ldcg(output_gates + row * values_size + target);
        found.beta = to_float(gates[head]);
        if (i < key_dim) found.step = __ldcg(key_steps + ((i64)row * num_heads + head) * key_dim + i);
#else
        if (i < value_dim) found.gate = to_float(gates[target]);
        found.beta = to_float(gates[values_size + head]);
        found.step = to_float(gates[values_size + num_heads + head]);
#endif
        return found;
    };
    bool is_shared = i < 2 * key_dim && head % repeats;  // another block writes the channel's inputs
    Inputs inputs = read(slot.row);
    bool continues;
    do {
        Slots next = slot;
        Inputs next_inputs = inputs;
        continues = CHAINED && (next = slot.next()).continues;
        if (continues) next_inputs = read(next.row);  // while this row is computed

        float gate = inputs.gate, beta = sigmoid(inputs.beta);
#if KEY_DECAYS
        constexpr float forget = 1;
        if (i < key_dim) sh.forget[i] = expf(rate * softplus(inputs.step + bias));
#else
        float forget = expf(rate * softplus(inputs.step + bias));
#endif
        if (channel >= 0) {
            float* after = is_shared ? nullptr : conv_states + slot.after * conv_size;
            sh.mixed[i] = activate<ACTIVATION>(own_channel.step(inputs.x, after, channel, taps));
        }
        __syncthreads();

        // Every warp computes the lengths by itself, which saves a barrier.
        float qq = 0, kk = 0, kq = 0;
        for (int c = i % WARP; c < key_dim; c += WARP) {
            float q = sh.mixed[c], k = sh.mixed[key_dim + c];
            qq += q * q;
            kk += k * k;
            kq += k * q;
        }
        float query_scale = rsqrtf(warp_reduce(qq, Sum()) + EPS) * rsqrtf((float)key_dim);
        float key_scale = rsqrtf(warp_reduce(kk, Sum()) + EPS);
        kq = warp_reduce(kq, Sum()) * query_scale * key_scale;
        sum_columns(part, sh, s);

        const float* values = sh.mixed + 2 * key_dim;
        if (part.group < part.groups) {
            float update[4];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int column = 4 * part.column + c;
                update[c] = beta * (values[column] - forget * key_scale * sh.totals[0][column]);
            }
            float* after = states + slot.after * state_size + own;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (!part.has(r, s)) continue;
                float k = sh.mixed[key_dim + part.row(r)] * key_scale;
                float4 x = part.at[r];
#if KEY_DECAYS
                float by = sh.forget[part.row(r)];
#else
                float by = forget;
#endif
                x = make_float4(by * x.x + k * update[0], by * x.y + k * update[1], by * x.z + k * update[2],
                                by * x.w + k * update[3]);
                *reinterpret_cast<float4*>(after + part.offset(r, s)) = x;
                part.at[r] = x;
            }
        }
        float result = 0;
        if (i < value_dim) {
            float update = beta * (values[i] - forget * key_scale * sh.totals[0][i]);
            result = forget * query_scale * sh.totals[1][i] + kq * update;
        }
        // With its barriers: the next row may then replace what has been read of `sh`.
        float squares = block_reduce<THREADS>(result * result, Sum(), sh.scratch);
        if (i < value_dim) {
            result *= rsqrtf(squares / value_dim + norm_eps) * norm_weight * (KEY_DECAYS ? 1 : gate) * sigmoid(gate);
            out[slot.row * values_size + target] = from_float<T>(result);
        }
        slot = next;
        inputs = next_inputs;
    } while (continues);
}
