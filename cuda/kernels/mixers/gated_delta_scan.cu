// gated_delta_scan: the gated delta rule over the tokens of prompts, one after the other.
//
//   mixed        fp32 [tokens, channels]: queries, keys [num_key_heads * key_dim each] and values
//                [num_heads * value_dim], after the convolution
//   projected    T [tokens, row_size]: channels + num_heads * (value_dim + 2) columns, the last are β and steps; with
//                KEY_DECAYS any number, with β after `channels` columns
//   key_steps    fp32 [tokens, num_heads * key_dim] with KEY_DECAYS, else null
//   decay        fp32 [num_heads]
//   step_bias    fp32 [num_heads * key_dim] with KEY_DECAYS, else fp32 [num_heads]
//   states       fp32 [num_slots, num_heads, key_dim, value_dim], written
//   starts       int32 [slots_stride + 1]: of the sequences, see rows.cuh
//   slots        int32 [2, slots_stride]
//   positions    int32 [tokens]
//   out          fp32 [tokens, num_heads * value_dim] = Sᵀq; gated_delta_step.cu has the formula, and KEY_DECAYS
//
// Algorithm: the columns of S do not depend on each other; a block has 32 of a head's, in registers, and
// computes the tokens in order, 16 at a time from shared memory, while the next 16 are on their way. The
// lanes of a column exchange only two sums for each token, so a token takes about 200 cycles, and no block
// waits for another. Chunked forms (Yang et al., 2024, arXiv:2412.06464) do more arithmetic to have less
// of it in sequence; they need tensor cores to be faster, and then lose precision.
//
// Defines: KEY_DECAYS 0 or 1. Requires: key_dim <= 128, key_dim % 4 == 0, value_dim % 4 == 0.
// Launch: grid (num_heads * ceil(value_dim / 32), sequences), block 128. Moves `mixed` for each 32 columns.
// Accuracy: fp32 sums: relative 1e-5. Test: tests/cuda/kernels/test_gated_delta_scan.py
#include "mixers/rows.cuh"

constexpr int KEYS = 128;
constexpr float EPS = 1e-6f;  // of the lengths of queries and keys

struct Shared {
    float q[SCAN_TOKENS * KEYS], k[SCAN_TOKENS * KEYS];
    float v[SCAN_TOKENS][SCAN_ROWS], forget[SCAN_TOKENS], beta[SCAN_TOKENS];
#if KEY_DECAYS
    float decays[SCAN_TOKENS * KEYS];  // of the rows of S; `forget` is 1
#endif
};

// Scales the vectors of a tile, which a warp has whole, to this length.
__device__ __forceinline__ void set_lengths(Tile<1>& tile, float length) {
#pragma unroll
    for (int i = 0; i < SCAN_TOKENS / 4; i++) {
        float values[4], squares = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            values[j] = tile.at[i][0][j];
            squares += values[j] * values[j];
        }
        float scale = length * rsqrtf(warp_reduce(squares, Sum()) + EPS);
#pragma unroll
        for (int j = 0; j < 4; j++) values[j] *= scale;
        tile.at[i][0] = values;
    }
}

#if KEY_DECAYS
// Turns steps of a tile into decays. `bias` are those of this lane's columns.
__device__ __forceinline__ void set_decays(Tile<1>& tile, float rate, const Pack<float, 4>& bias) {
#pragma unroll
    for (int i = 0; i < SCAN_TOKENS / 4; i++) {
        float values[4];
#pragma unroll
        for (int j = 0; j < 4; j++) values[j] = expf(rate * softplus(tile.at[i][0][j] + bias[j]));
        tile.at[i][0] = values;
    }
}
#endif

// A lane's part of two columns of S: 4 rows of every 32, from row 4 * (lane / 4) on.
struct Columns {
    float at[16][2];

    // `state` points to the lane's first column; without it they are zero.
    __device__ __forceinline__ void load(const float* state, int value_dim, int num_rows) {
        int group = threadIdx.x % WARP / 4;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int row = i / 4 * 32 + group * 4 + i % 4;
            bool is_used = state && row < num_rows;
            at[i][0] = is_used ? state[(i64)row * value_dim] : 0.f;
            at[i][1] = is_used ? state[(i64)row * value_dim + 1] : 0.f;
        }
    }
    __device__ __forceinline__ void store(float* state, int value_dim, int num_rows) const {
        int group = threadIdx.x % WARP / 4;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int row = i / 4 * 32 + group * 4 + i % 4;
            if (row >= num_rows) continue;
            state[(i64)row * value_dim] = at[i][0];
            state[(i64)row * value_dim + 1] = at[i][1];
        }
    }
#if KEY_DECAYS
    // Multiplies each row of S by its decay.
    __device__ __forceinline__ void fade(const float* decays) {
        int group = threadIdx.x % WARP / 4;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float by = decays[i / 4 * 32 + group * 4 + i % 4];
            at[i][0] *= by;
            at[i][1] *= by;
        }
    }
#endif
    // Advances the columns by a token and returns Sᵀq of both.
    __device__ __forceinline__ float2 step(const float* q, const float* k, float2 v, float forget,
                                           float beta) {
        int group = threadIdx.x % WARP / 4;
        Pack<float, 4> keys[4], queries[4];
        float sums[2][2] = {}, results[2] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            keys[i] = ::load<4>(k + i * 32 + group * 4);
            queries[i] = ::load<4>(q + i * 32 + group * 4);
        }
#pragma unroll
        for (int i = 0; i < 16; i++)
#pragma unroll
            for (int c = 0; c < 2; c++) sums[i % 2][c] += at[i][c] * keys[i / 4][i % 4];
        float update[2] = {beta * (v.x - forget * row_sum(sums[0][0] + sums[1][0])),
                           beta * (v.y - forget * row_sum(sums[0][1] + sums[1][1]))};
#pragma unroll
        for (int i = 0; i < 16; i++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                at[i][c] = forget * at[i][c] + keys[i / 4][i % 4] * update[c];
                results[c] += at[i][c] * queries[i / 4][i % 4];
            }
        return make_float2(row_sum(results[0]), row_sum(results[1]));
    }
};

extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
gated_delta_scan_kernel(const float* mixed, const T* projected, const float* key_steps, const float* decay,
                        const float* step_bias, float* states, const int* starts, const int* slots,
                        const int* positions, float* out, int num_key_heads, int num_heads, int key_dim, int value_dim,
                        int row_size, int slots_stride) {
    __shared__ __align__(16) Shared sh;
    start_dependents();
    wait_for_upstream();
    Row row(starts, slots, slots_stride, positions, blockIdx.y);
    if (row.num_tokens == 0) return;
    int parts = (value_dim + SCAN_ROWS - 1) / SCAN_ROWS, head = blockIdx.x / parts;
    int first = blockIdx.x % parts * SCAN_ROWS, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int own = first + warp * 8 + lane % 4 * 2, keys = num_key_heads * key_dim;
    int channels = 2 * keys + num_heads * value_dim;
    int key = head / (num_heads / num_key_heads) * key_dim, value = 2 * keys + head * value_dim + first;
    bool is_inside = own < value_dim;
    i64 size = (i64)num_heads * key_dim * value_dim, offset = (i64)head * key_dim * value_dim + own;
    Columns s;
    s.load(is_inside && row.before >= 0 ? states + row.before * size + offset : nullptr, value_dim, key_dim);
    float rate = -expf(decay[head]), rsqrt_dim = rsqrtf((float)key_dim);

    Tile<1> q, k;
#if KEY_DECAYS
    Tile<1> decays;
    Pack<float, 4> bias{};
    if (4 * lane < key_dim) bias = ::load<4>(step_bias + head * key_dim + 4 * lane);
#else
    float bias = step_bias[head];
#endif
    float v[SCAN_TOKENS / 4], forget = 0, beta = 0;
    auto prefetch = [&](int from) {
        const float* at = mixed + (i64)(row.start + from) * channels;
        int num_tokens = row.num_tokens - from;
        q.load(at + key, channels, num_tokens, key_dim);
        k.load(at + keys + key, channels, num_tokens, key_dim);
#pragma unroll
        for (int i = 0; i < SCAN_TOKENS / 4; i++) {
            int token = 4 * i + warp;
            bool is_used = token < num_tokens && first + lane < value_dim;
            v[i] = is_used ? at[(i64)token * channels + value + lane] : 0.f;
        }
        if ((int)threadIdx.x < min(SCAN_TOKENS, num_tokens)) {
#if KEY_DECAYS
            const T* gates = projected + (i64)(row.start + from + threadIdx.x) * row_size + channels;
            beta = sigmoid(to_float(gates[head]));
            forget = 1;
#else
            const T* gates = projected + (i64)(row.start + from + threadIdx.x + 1) * row_size;
            beta = sigmoid(to_float(gates[head - 2 * num_heads]));
            forget = expf(rate * softplus(to_float(gates[head - num_heads]) + bias));
#endif
        }
#if KEY_DECAYS
        i64 stride = num_heads * key_dim;
        decays.load(key_steps + (row.start + from) * stride + head * key_dim, stride, num_tokens, key_dim);
#endif
    };
    prefetch(0);
    for (int from = 0; from < row.num_tokens; from += SCAN_TOKENS) {
        set_lengths(q, rsqrt_dim);
        set_lengths(k, 1);
#if KEY_DECAYS
        set_decays(decays, rate, bias);
#endif
        __syncthreads();  // the tokens before have been read
        q.store(sh.q);
        k.store(sh.k);
#if KEY_DECAYS
        decays.store(sh.decays);
#endif
#pragma unroll
        for (int i = 0; i < SCAN_TOKENS / 4; i++) sh.v[4 * i + warp][lane] = v[i];
        if (threadIdx.x < SCAN_TOKENS) {
            sh.forget[threadIdx.x] = forget;
            sh.beta[threadIdx.x] = beta;
        }
        __syncthreads();
        if (from + SCAN_TOKENS < row.num_tokens) prefetch(from + SCAN_TOKENS);
        int num_tokens = min(SCAN_TOKENS, row.num_tokens - from);
        for (int t = 0; t < num_tokens; t++) {
            float2 values = make_float2(sh.v[t][own - first], sh.v[t][own - first + 1]);
#if KEY_DECAYS
            s.fade(sh.decays + t * KEYS);
#endif
            float2 result = s.step(sh.q + t * KEYS, sh.k + t * KEYS, values,
                                   KEY_DECAYS ? 1.f : sh.forget[t], sh.beta[t]);
            i64 token = row.start + from + t;
            float* to = out + (token * num_heads + head) * value_dim + own;
            if (lane < 4 && is_inside) to[0] = result.x, to[1] = result.y;
        }
    }
    if (is_inside) s.store(states + row.after * size + offset, value_dim, key_dim);
}
