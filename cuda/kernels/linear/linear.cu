// linear: a matrix times 1 to 16 vectors at the speed of the memory, with what comes before and
// after a product in a decoder layer fused to it.
//
//   weight   T [rows, k], or by SCHEME           x   T [n, k], or with NORM fp32 [n, k]
//   bias     T [rows] or null                  norm_weight  T [k], with NORM
//   y        by EPILOGUE, of y = weight · x (+ bias):
//     STORE      T or (FP32_OUT) fp32 [n, rows]
//     RESIDUAL   fp32 [n, rows], in place: += y
//     ACT_AND_MUL      T [n, rows / 2]: ACTIVATION(y[i]) * y[rows / 2 + i]
//     SEND       fp32 [n, rows] to each of `world` ranks: y is u64 [world], addresses in their inboxes
//                (all_reduce.cu, all_gather.cu)
//     ROPE_CACHE     rows are the query, key and value heads: T [n, heads * head_dim] rotated queries;
//                rotated keys and the values go to `cache` at `slots`
//   SCHEME     PLAIN; INT8, FP8, INT4: bytes in records (records.cuh), with scales and offsets if there is a
//            GROUP_SIZE, and row_scale fp32 [rows]
//   x_scale  fp32 [n] or null, with packed weights: each vector is times its own
//   NORM     x is first divided by its root mean square and multiplied by norm_weight + offset (RMSNorm)
//
// Design. A matrix read once is a stream: one block a multiprocessor stays for the whole kernel.
// A producer warp keeps a ring of slots in shared memory full, each 16 rows × 1 KiB brought by bulk
// copies; it starts before the upstream kernel has ended, because weights depend on nobody. Eight
// consumer warps divide a slot's columns among them and multiply by tensor cores: the 16 rows are
// the M side of the instructions, the vectors the N side, so that 8 vectors cost what one does, and a
// packed weight is unpacked once for them all. Two epilogue warps take turns: they add the eight partial sums
// (always in the same order) and finish, so that the consumers never wait for global memory. fp32 uses
// ordinary FMAs.
//
// An item of work is a tile of 16 rows over all columns of a split: `splits` > 1 divides k where
// x would not fit (RESIDUAL and SEND); the block that finishes a tile last adds all splits in order.
// The 16 rows are 8 and their 8 partners `span / 2` further on: span is 16 where rows are finished one
// by one, rows for ACT_AND_MUL, head_dim for ROPE_CACHE.
//
// Tried, a layer of 8B at one vector: 8 rows × 2 KiB as the N side, 2 % quicker unpacked, int4 12 %
// slower; three or five slots, 5 to 9 % slower unpacked; two teams of warps that take turns with the
// slots, int4 13 % slower; tiles from a queue, the 1B step 120 us longer; eight vectors as digits too,
// which every block has to make, int4 15 % slower.
//
// Grid: splits × blocks, at most one a multiprocessor; block 352, with registers that leave room for a block
// of decode_attention's beside; dynamic shared memory: slots and vectors, see ops/linear.py. Moves the
// weights and what belongs to them once. Requires k * sizeof T and k of 8 bits to be multiples of 16, k in
// groups of GROUP_SIZE, head_dim of 8, and span of packed weights of 16; pointers aligned to 16 bytes.
// Packed weights become T exactly (packed.cuh) and go through the same instructions; one vector instead
// becomes integers, if it has 16 bits and the form is not FP8 (linear_digits.cuh). A row's factor is applied
// to its sum, a group's to the group's: scale * (products + offset * sum of x), with the sums of x over the
// groups made once a block.
// The k order within an mma is permuted alike for both operands, so that 16 bytes of a row are one
// thread's operands of two instructions.
// Accumulates in fp32, integers exactly within a group. Test: tests/cuda/kernels/test_linear.py, relative 2^-8
// (bf16), 2^-11 (fp16), 2e-6 (fp32): one rounding of inputs that are normalized here, one of the result;
// tests/cuda/kernels/test_linear_packed.py, for sums of digits 2^-13.
#include "common/activation.cuh"
#include "linear/linear_vectors.cuh"
#include "comm/peers.cuh"

__device__ void consume(const Arguments& a, const Share& share, Shared& shared, const u8* ring,
                        u8* vectors, int stride) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, slot = 0, item = 0;
    u32 parity = 0, full = shared_address(shared.full);
    asm("" : "+r"(full));  // or the compiler asks for the shared memory's base again for every slot
    Sums sums;
    for (int tile = share.first; tile < share.tiles; tile += share.step, item++) {
        for (int column = share.begin; column < share.end; column += CHUNK) {
            int width = min(CHUNK, share.end - column);
            barrier_wait(full + slot * 8, parity);
            add_chunk(sums, ring + slot * SLOT_BYTES, vectors, stride, a.n, share,
                      column - share.begin, width);
            __syncwarp();
            if (lane == 0) barrier_arrive(&shared.empty[slot]);
            if (++slot == a.slots) slot = 0, parity ^= 1;
        }
        int buffer = item % EPILOGUES;
        barrier_wait(&shared.sums_empty[buffer], (item / EPILOGUES & 1) ^ 1);
        sums.store(shared.sums[buffer][warp], a.n);
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.sums_full[buffer]);
    }
}

// y of vector b at weight rows `low` and its partner `high`.
__device__ __forceinline__ void finish(const Arguments& a, int b, int low, int high, float y_low,
                                       float y_high, const Shared& shared, int slot) {
    if (a.bias) {
        y_low += to_float(a.bias[low]);
        if (high < a.rows) y_high += to_float(a.bias[high]);
    }
#if EPILOGUE == STORE
    using Y = typename Choose<FP32_OUT, float, T>::type;
    Y* y = (Y*)a.y + (i64)b * a.rows;
    y[low] = from_float<Y>(y_low);
    if (high < a.rows) y[high] = from_float<Y>(y_high);
#elif EPILOGUE == RESIDUAL
    float* y = (float*)a.y + (i64)b * a.rows;
    atomicAdd(&y[low], y_low);  // nobody else adds here: an addition nobody waits for
    if (high < a.rows) atomicAdd(&y[high], y_high);
#elif EPILOGUE == SEND
    for (int r = 0; r < a.world; r++) {
        float* to = ((float* const*)a.y)[r] + (i64)b * a.rows;
        send(to + low, never_empty(y_low));
        if (high < a.rows) send(to + high, never_empty(y_high));
    }
#elif EPILOGUE == ACT_AND_MUL
    ((T*)a.y)[(i64)b * (a.rows / 2) + low] = from_float<T>(activate<ACTIVATION>(y_low) * y_high);
#else
    int head = low / a.head_dim, d = low % a.head_dim;
    if (head < a.heads + a.kv_heads) {
        float c = shared.angles[b][d], s = shared.angles[b][a.head_dim / 2 + d];
        float turned = y_low * c - y_high * s;
        y_high = y_high * c + y_low * s;
        y_low = turned;
    }
    T* to = (T*)a.y + ((i64)b * a.heads + head) * a.head_dim + d;
    if (head >= a.heads) {
        int size = 1 << a.block_bits;
        if (slot < 0) return;
        i64 line = ((i64)(slot >> a.block_bits) * 2 * a.kv_heads + (head - a.heads)) * size;
        to = a.cache + (line + (slot & (size - 1))) * a.head_dim + d;
    }
    to[0] = from_float<T>(y_low);
    to[a.head_dim / 2] = from_float<T>(y_high);
#endif
}

// Adds the sums of all splits of a tile, in order. True for the warp that comes last for the tile;
// the others only leave their sums.
template <int ROUNDS>
__device__ __forceinline__ bool combine(const Arguments& a, const Share& share, int tile, int low,
                                        int high, float* y_low, float* y_high) {
    constexpr int PAIRS = TILE / 2;
    int lane = threadIdx.x % WARP;
    i64 plane = (i64)a.n * a.rows;
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int b = lane / PAIRS + j * (WARP / PAIRS);
        float* mine = a.partial + share.split * plane + (i64)b * a.rows;
        if (b < a.n && low < a.rows) mine[low] = y_low[j];
        if (b < a.n && high < a.rows) mine[high] = y_high[j];
    }
    __threadfence();
    __syncwarp();
    u32 earlier = 0;
    if (lane == 0) earlier = atomicAdd(&a.counters[tile], 1);
    if (__shfl_sync(ALL, earlier, 0) != a.splits - 1) return false;
    __threadfence();
    if (lane == 0) a.counters[tile] = 0;  // for the next launch
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int b = lane / PAIRS + j * (WARP / PAIRS);
        if (b >= a.n) continue;
        y_low[j] = y_high[j] = 0;
        for (int s = 0; s < a.splits; s++) {
            const float* from = a.partial + s * plane + (i64)b * a.rows;
            if (low < a.rows) y_low[j] += __ldcg(from + low);
            if (high < a.rows) y_high[j] += __ldcg(from + high);
        }
    }
    return true;
}

// The factors of this lane's two rows of a tile, if it is one.
__device__ __forceinline__ float2 row_factors(const Arguments& a, const Share& share, int tile) {
    float2 factors = {};
    if (SCHEME == PLAIN || tile >= share.tiles) return factors;
    int i = threadIdx.x % (TILE / 2);
    int low = row_of(a, tile, i), high = row_of(a, tile, i + TILE / 2);
    if (low < a.rows) factors.x = __ldg(a.row_scale + low);
    if (high < a.rows) factors.y = __ldg(a.row_scale + high);
    return factors;
}

__device__ void epilogue(const Arguments& a, const Share& share, Shared& shared, int buffer) {
    // A lane has a vector and a pair of rows; two rounds where there may be 16 vectors.
    constexpr int PAIRS = TILE / 2, ROUNDS = (MAX_N * PAIRS + WARP - 1) / WARP;
    int lane = threadIdx.x % WARP, uses = 0, slots[ROUNDS] = {};
#if EPILOGUE == ROPE_CACHE
    // Nothing has to be loaded from memory when the sums are there.
    for (int i = buffer * WARP + lane; i < a.n * a.head_dim; i += EPILOGUES * WARP) {
        int b = i / a.head_dim, d = i % a.head_dim;
        shared.angles[b][d] = __ldg(a.cos_sin + (i64)__ldcg(a.positions + b) * a.head_dim + d);
    }
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int b = lane / PAIRS + j * (WARP / PAIRS);
        if (b < a.n) slots[j] = __ldcg(a.slots_of + b);
    }
    named_barrier<3, EPILOGUES * WARP>();
#endif
    float vector_factors[ROUNDS];
#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int b = lane / PAIRS + j * (WARP / PAIRS);
        vector_factors[j] = SCHEME != PLAIN && a.x_scale && b < a.n ? __ldcg(a.x_scale + b) : 1.f;
    }
    float2 coming = row_factors(a, share, share.first + buffer * share.step);
    for (int tile = share.first + buffer * share.step; tile < share.tiles;
         tile += EPILOGUES * share.step, uses++) {
        float2 factors = coming;  // a round trip to memory may take longer than a tile
        coming = row_factors(a, share, tile + EPILOGUES * share.step);
        barrier_wait(&shared.sums_full[buffer], uses & 1);
        int low = row_of(a, tile, lane % PAIRS), high = row_of(a, tile, lane % PAIRS + PAIRS);
        float y_low[ROUNDS], y_high[ROUNDS];
#pragma unroll
        for (int j = 0; j < ROUNDS; j++) {
            int b = lane / PAIRS + j * (WARP / PAIRS);
            y_low[j] = y_high[j] = 0;
            if (b < a.n) {
#pragma unroll
                for (int w = 0; w < CONSUMERS; w++) {
                    y_low[j] += shared.sums[buffer][w][b][lane % PAIRS];
                    y_high[j] += shared.sums[buffer][w][b][lane % PAIRS + PAIRS];
                }
                if (NORM && !NORM_FIRST) {
                    float factor = norm_factor(a, shared, b);
                    y_low[j] *= factor;
                    y_high[j] *= factor;
                }
                if (SCHEME != PLAIN) {
                    y_low[j] *= factors.x * vector_factors[j];
                    y_high[j] *= factors.y * vector_factors[j];
                }
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.sums_empty[buffer]);
        bool last = true;
#if EPILOGUE == RESIDUAL || EPILOGUE == SEND
        if (a.splits > 1) last = combine<ROUNDS>(a, share, tile, low, high, y_low, y_high);
#endif
        if (!last) continue;
#pragma unroll
        for (int j = 0; j < ROUNDS; j++) {
            int b = lane / PAIRS + j * (WARP / PAIRS);
            if (b < a.n && low < a.rows) finish(a, b, low, high, y_low[j], y_high[j], shared, slots[j]);
        }
    }
}

// So many threads that two blocks of them would leave 72 registers to each.
constexpr int ROOM_FOR = MAX_N > 8 ? THREADS : 448;

extern "C" __global__ void __launch_bounds__(ROOM_FOR, MAX_N > 8 ? 1 : 2)
linear_kernel(const Code* weight, const T* bias, const void* x, const T* norm_weight, void* y,
              float eps, float offset, int n, int rows, int k, int span, int splits, int slots,
              float* partial, u32* counters, const float* cos_sin, const int* positions,
              const int* slots_of, T* cache, int heads, int kv_heads, int head_dim, int block_bits,
              int world, const float* row_scale, const float* x_scale) {
    extern __shared__ __align__(128) u8 dynamic[];
    __shared__ Shared shared;
    Arguments a = {weight,  bias,     x,       norm_weight, y,       eps,      offset,  n,
                   rows,    k,        span,    splits,      slots,   partial,  counters, cos_sin,
                   positions, slots_of, cache, heads,       kv_heads, head_dim, block_bits, world,
                   row_scale, x_scale};
    Share share(a);
    u8* ring = dynamic;
    u8* vectors = dynamic + slots * SLOT_BYTES;
    int warp = threadIdx.x / WARP, stride = x_stride(share);
    start_dependents();
    if (warp == CONSUMERS) {
        int lane = threadIdx.x % WARP;
        if (lane < slots) {
            barrier_init(&shared.full[lane], COPY_ARRIVALS);
            barrier_init(&shared.empty[lane], CONSUMERS);
        } else if (lane >= WARP - EPILOGUES) {
            barrier_init(&shared.sums_full[WARP - 1 - lane], CONSUMERS);
            barrier_init(&shared.sums_empty[WARP - 1 - lane], 1);
        }
        barrier_init_fence();
        __syncwarp();
        named_arrive<2, THREADS>();
        produce(a, share, shared, ring);  // weights only: needs nothing of the upstream kernel
        return;
    }
    named_barrier<2, THREADS>();  // the barriers are ready
    if (warp < CONSUMERS) {
        if (NORM && threadIdx.x * 128 < k * (int)sizeof(T))  // constant as well, and cold
            asm volatile("prefetch.global.L2 [%0];" ::"l"((const u8*)norm_weight + threadIdx.x * 128));
        wait_for_upstream();
        load_vectors(a, share, shared, vectors, stride);
        sum_groups(share, vectors, stride, a.n);
        consume(a, share, shared, ring, vectors, stride);
    } else {
        wait_for_upstream();
        epilogue(a, share, shared, warp - CONSUMERS - 1);
    }
}
