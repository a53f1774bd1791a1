// bulk_gate_up: expert_gate_up and packed_gate_up by bulk copies (sm_90 and newer).
//
//   x          T [n, hidden_size]
//   values     u64 [num_experts]: as for packed_gate_up, for SCHEME PLAIN addresses of matrices T
//   scales     u64 [num_experts] or null: null if the scheme has none
//   biases     u64 [num_experts] or null
//   ids        int32 [n, experts_per_token]
//   input_weights  fp32 [n, experts_per_token] or null
//   out        T [n, experts_per_token, expert_size]; all as for packed_gate_up, like the other arguments
//
// Algorithm: a block computes eight neighboring outputs of a token's expert. Its first warp requests all their weights as
// soon as the expert is known: eight rows of a packed matrix are contiguous. What is small is requested first: behind the
// weights it would wait for all of them. The warps divide the columns; their sums are added in the order of the
// warps. The next kernel may start when the ids of the experts are known: see expert_down. The first blocks warm the
// instruction cache while they wait.
//
// Requires: 16-bit T; PLAIN: hidden_size a multiple of 32; packed: expert_size a multiple of 8;
// experts_per_token at most 32.
// Launch: grid (ceil(expert_size / 8) * experts_per_token, n), block 128, dynamic shared memory: see
// ops/moe/bulk_gate_up.py.
// Moves n * experts_per_token times the bytes of a matrix, less where tokens share experts that stay in L2.
// Accuracy: fp32 sums of exact weights, rounded once: relative 2^-8 (bf16), 2^-11 (fp16).
// Test: tests/cuda/kernels/test_bulk_gate_up.py
#include "common/mbarrier.cuh"
#include "moe/expert_matrix.cuh"
#include "moe/gated.cuh"

constexpr int WARPS = 4, THREADS = WARPS * WARP, ROWS = 8;
constexpr int LOADS = 2;  // of x by a thread, in flight
constexpr int STEP_STRIDE = PACKED ? PACKED_TILE_BYTES : STEP_BYTES;  // in shared memory

#if __CUDA_ARCH__ >= 900
// Eight gate rows and eight up rows of a block in shared memory.
struct Rows {
    u8 *gate, *up;
    int steps, pitch;  // of rows of T; like rows of activations they begin at different banks

    __device__ __forceinline__ Rows(u8* at, int hidden_size)
        : gate(at), steps(steps_of(hidden_size)), pitch(activation_bytes(hidden_size)) {
        up = gate + bytes() / 2;
    }
    __device__ __forceinline__ int bytes() const { return 2 * (PACKED ? steps * PACKED_TILE_BYTES : ROWS * pitch); }
    // Where this thread finds its 16 bytes of a step.
    __device__ __forceinline__ int offset() const {
        int lane = threadIdx.x % WARP;
        return PACKED ? lane * 16 : lane / 4 * pitch + lane % 4 * 16;
    }

    // A warp requests rows of an expert's matrix: gate rows from `first` on, at most `last`, up rows `to_up` rows later.
    __device__ __forceinline__ void request(u64 matrix, int first, int last, int to_up, u64* ready) const {
        constexpr int COPIES = PACKED ? 1 : ROWS;  // of gate rows
        int lane = threadIdx.x % WARP, row = lane / 2, bytes = steps * STEP_STRIDE;
        bool is_up = lane % 2;
        i64 at = min(first + row, last) + (is_up ? to_up : 0);
        u8* to = (is_up ? up : gate) + row * pitch;
        if (lane == 0) barrier_expect(ready, 2 * COPIES * bytes);
        __syncwarp();
        if (lane < 2 * COPIES)
            copy_bytes(to, (const u8*)matrix + at / (PACKED ? ROWS : 1) * bytes, bytes, ready, evict_first());
    }
};
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
bulk_gate_up_kernel(const T* x, const u64* values, const u64* scales, int num_experts, const u64* biases, const int* ids,
                    const float* input_weights, T* out, int num_routed, int shared_size, int hidden_size,
                    int expert_size, int experts_per_token, float limit) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) u8 dynamic[];
    __shared__ u64 ready;
    __shared__ float sums[WARPS][2 * ROWS];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int blocks = (expert_size + ROWS - 1) / ROWS, choice = blockIdx.x / blocks;
    int first = (blockIdx.x - choice * blocks) * ROWS, at = min(first + lane % ROWS, expert_size - 1);
    i64 token = blockIdx.y, of_token = token * experts_per_token + choice;
    Rows rows(dynamic, hidden_size);
    u8* activations = dynamic + rows.bytes();
    float* activation_sums = (float*)(activations + activation_bytes(hidden_size));
    if (threadIdx.x == 0) {
        barrier_init(&ready, 1);
        barrier_init_fence();
    }
    touch_tables(values, scales, num_experts);
    x += token * hidden_size;
#pragma unroll 1
    for (bool is_real = !warms_instructions();; is_real = true) {
        int id = 0, to_up = expert_size, places = rows.steps * FRAGMENTS * 4;
        uint4 fragments[LOADS];
        auto load = [&](int base) {
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                int place = base + i * THREADS + threadIdx.x;
                int column = column_of_place(place);
                fragments[i] = {};
                if (is_real && column < hidden_size) fragments[i] = __ldcg((const uint4*)(x + column));
            }
        };
        if (is_real) {
            wait_for_upstream();
            start_dependents();
            id = __ldcg(ids + of_token);
            if (id >= num_routed) to_up = shared_size;
        }
        load(0);
        float gate_scale = 1, up_scale = 1;
        if (warp == 0) {
            if (ROW_SCALES) {
                const float* row_scale = (const float*)__ldg(scales + id) + at;
                gate_scale = __ldg(row_scale), up_scale = __ldg(row_scale + to_up);
            }
            if (is_real) rows.request(__ldg(values + id), first, expert_size - 1, to_up, &ready);
        }
#pragma unroll 1
        for (int base = 0; base < places; base += LOADS * THREADS) {
            if (base) load(base);
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                int place = base + i * THREADS + threadIdx.x;
                stage(activations, activation_sums, place, fragments[i], place < places);
            }
        }
        __syncthreads();
        Sums sum;
        Activations staged{{activations, activations}, {activation_sums, activation_sums}};
        if (is_real) barrier_wait(&ready, 0);
#pragma unroll 1
        for (int step = warp; step < rows.steps; step += WARPS)
            sum.add_rows(rows.gate + step * STEP_STRIDE, rows.up + step * STEP_STRIDE, rows.offset(), step, staged);
        float g = sum.whole(0), u = sum.whole(1);
        if (lane % 4 == 0) {
            sums[warp][lane / 4] = g;
            sums[warp][ROWS + lane / 4] = u;
        }
        __syncthreads();
        if (warp == 0) {
            g = u = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                g += sums[w][lane % ROWS];
                u += sums[w][ROWS + lane % ROWS];
            }
            g *= gate_scale, u *= up_scale;
            if (input_weights && is_real) {
                float weight = __ldcg(input_weights + of_token);
                g *= weight, u *= weight;
            }
            if (biases) {
                const T* bias = (const T*)__ldg(biases + id) + at;
                g += to_float(bias[0]), u += to_float(bias[to_up]);
            }
            T result = from_float<T>(gated<ACTIVATION>(g, u, limit));
            if (is_real && lane < ROWS && first + lane < expert_size) out[of_token * expert_size + at] = result;
        }
        if (is_real) return;
        __syncthreads();
    }
#endif
}
