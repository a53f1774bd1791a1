// linear: a matrix times 1 to 16 vectors at the speed of the memory, with what comes before and
// after a product in a decoder layer fused to it.
//
//   weight   T [rows, k], or by FORM           x   T [n, k], or with NORM fp32 [n, k]
//   bias     T [rows] or null                  norm_weight  T [k], with NORM
//   y        by EPILOGUE, of y = weight · x (+ bias):
//     STORE      T or (WIDE) fp32 [n, rows]
//     RESIDUAL   fp32 [n, rows], in place: += y
//     GATED      T [n, rows / 2]: ACTIVATION(y[i]) * y[rows / 2 + i]
//     SEND       fp32 [n, rows] to each of `world` ranks: y is u64 [world], addresses in their inboxes
//                (all_reduce.cu, all_gather.cu)
//     ROTATE     rows are the query, key and value heads: T [n, heads * head_dim] rotated queries;
//                rotated keys and the values go to `cache` at `slots`
//   FORM     PLAIN; INT8, FP8: bytes [rows, k], each row times row_scale fp32 [rows]; INT4 and, with a
//            GROUP, INT8: of each 1024 bytes of a row's numbers, in the order of linear_sums.cuh, those and
//            then half2 [their columns / GROUP filled up to whole 16 bytes], scale and zero:
//            weight = row_scale * scale * (code (INT4: - 8) + zero). k is filled up to a multiple of 128
//            (INT8: 64) by what means 0
//   x_scale  fp32 [n] or null, with packed weights: each vector is times its own
//   NORM     x is first divided by its root mean square and multiplied by norm_weight + offset (RMSNorm)
//
// Design. A matrix read once is a stream: one block a multiprocessor stays for the whole kernel.
// A producer warp keeps a ring of slots in shared memory full, each 16 rows × 1 KiB brought by bulk
// copies; it starts before the upstream kernel has ended, because weights depend on nobody. Eight
// consumer warps divide a slot's columns among them and multiply by tensor cores: the 16 rows are
// the M side of m16n8k16, the vectors the N side, so that 8 vectors cost what one does, and a packed
// weight is unpacked once for them all. Two epilogue warps take turns: they add the eight partial sums
// (always in the same order) and finish, so that the consumers never wait for global memory. fp32 uses
// ordinary FMAs.
//
// An item of work is a tile of 16 rows over all columns of a split: `splits` > 1 divides k where
// x would not fit (RESIDUAL and SEND); the block that finishes a tile last adds all splits in order.
// The 16 rows are 8 and their 8 partners `span / 2` further on: span is 16 for plain rows, rows for
// GATED, head_dim for ROTATE.
//
// Tried, a layer of 8B at one vector: 8 rows × 2 KiB as the N side, 2 % quicker unpacked, int4 12 %
// slower; three or five slots, 5 to 9 % slower unpacked; two teams of warps that take turns with the
// slots, int4 13 % slower; tiles from a queue, the 1B step 120 us longer.
//
// Grid: splits × blocks, at most one a multiprocessor; block 352; dynamic shared memory
// linear_shared_bytes in ops/linear.py. Moves the weights and what belongs to them once. Requires
// k * sizeof T, k of 8 bits and head_dim to be multiples of 16, k in groups of GROUP, all pointers
// aligned to 16 bytes.
// Packed weights become T exactly (packed.cuh) and go through the same instructions. A row's factor is
// applied to its sum, a group's to the group's: scale * (products + zero * sum of x), with the sums of
// x over the groups made once a block. int4's table comes through the ring with its rows.
// The k order within an mma is permuted alike for both operands, so that 16 bytes of a row are one
// thread's operands of two instructions.
// Accumulates in fp32. Test: tests/kernels/test_linear.py, relative 2^-8 (bf16), 2^-11 (fp16), 2e-6
// (fp32): one rounding of inputs that are normalised here, one of the result.
#include "activation.cuh"
#include "linear_stream.cuh"
#include "linear_sums.cuh"
#include "peers.cuh"
#include "reduce.cuh"

// RMSNorm's factor of a vector, from the consumers' partial sums of squares.
__device__ __forceinline__ float norm_factor(const Arguments& a, const Shared& shared, int b) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < CONSUMERS; w++) sum += shared.squares[w][b];
    return rsqrtf(sum / a.k + a.eps);
}

// Loads that are in flight together: a round trip to L2 takes longer than all of them. Of those so
// many are used at once.
constexpr int COLUMNS = VECTORS > 1 ? 1 : NORM ? 4 : 8;
constexpr int AT_ONCE = COLUMNS > 4 ? 2 : COLUMNS;
// RMSNorm's factor is one number a vector; where what is kept of a vector can hold the residual stream
// it is left to the epilogue, which saves a pass. fp16 cannot.
constexpr bool NORM_FIRST = NORM && IS_HALF && !INTEGERS;

// Keeps EACH neighbours of vector b, from `column` of the whole on, for the products.
template <int EACH>
__device__ __forceinline__ void keep(const float (&x)[EACH], int b, int column, const Arguments& a,
                                     const Share& share, u8* vectors, int stride) {
    bool valid = b < a.n && column < share.end;
    if constexpr (INTEGERS) {
        keep_digits(x, b, column - share.begin, valid, share, vectors, stride, a.n);
    } else if (valid) {
        Vec<T, EACH> values;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int from = CROSSED && (i % 4 == 1 || i % 4 == 2) ? i ^ 3 : i;
            values.at[i] = from_float<T>(x[from]);
        }
        *(Vec<T, EACH>*)(vectors + b * stride + (column - share.begin) * sizeof(T)) = values;
    }
}

#if NORM
// Calls use(b, column, four values of vector b, four of norm_weight) for this thread's columns, all
// of a warp's together with zeros past the end, and leaves the sums of squares in shared memory.
template <typename Use>
__device__ __forceinline__ void for_values(const Arguments& a, const Share& share, Shared& shared,
                                           Use use) {
    constexpr int STRIDE = CONSUMER_THREADS * 4;
    float squares[VECTORS] = {};
    int lane = threadIdx.x % WARP * 4;
    for (int first = threadIdx.x * 4; first - lane < share.end; first += COLUMNS * STRIDE) {
        float4 v[COLUMNS][VECTORS];
        Vec<T, 4> weight[COLUMNS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            int column = first + j * STRIDE;
            weight[j] = {};
            if (column < a.k) weight[j] = *(const Vec<T, 4>*)(a.norm_weight + column);
#pragma unroll
            for (int b = 0; b < VECTORS; b++) {
                v[j][b] = {};
                if (b < a.n && column < a.k)
                    v[j][b] = __ldcg((const float4*)((const float*)a.x + (i64)b * a.k + column));
            }
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int b = 0; b < VECTORS; b++) {
                float4 u = v[j][b];
                squares[b] += u.x * u.x + u.y * u.y + u.z * u.z + u.w * u.w;
                use(b, first + j * STRIDE, u, weight[j]);
            }
    }
#pragma unroll
    for (int b = 0; b < VECTORS; b++) {
        float sum = warp_reduce(squares[b], Sum());
        if (threadIdx.x % WARP == 0) shared.squares[threadIdx.x / WARP][b] = sum;
    }
}

// The normalised vectors into shared memory.
__device__ void load_vectors(const Arguments& a, const Share& share, Shared& shared, u8* to,
                             int stride) {
    float factors[VECTORS];
    if constexpr (NORM_FIRST) {
        for_values(a, share, shared, [](int, int, float4, Vec<T, 4>) {});
        named_barrier<1, CONSUMER_THREADS>();
#pragma unroll
        for (int b = 0; b < VECTORS; b++) factors[b] = b < a.n ? norm_factor(a, shared, b) : 0;
        named_barrier<1, CONSUMER_THREADS>();
    }
    for_values(a, share, shared, [&](int b, int column, float4 v, Vec<T, 4> w) {
        float f = 1, gain[4];
        if constexpr (NORM_FIRST) f = factors[b];
#pragma unroll
        for (int j = 0; j < 4; j++) gain[j] = to_float(w.at[j]) + a.offset;
        float x[4] = {v.x * f * gain[0], v.y * f * gain[1], v.z * f * gain[2], v.w * f * gain[3]};
        keep(x, b, column, a, share, to, stride);
    });
    named_barrier<1, CONSUMER_THREADS>();
}
#else
__device__ void load_vectors(const Arguments& a, const Share& share, Shared&, u8* to, int stride) {
    constexpr int EACH = 16 / sizeof(T), STRIDE = CONSUMER_THREADS * EACH;
    int lane = threadIdx.x % WARP * EACH, first = share.begin + threadIdx.x * EACH;
    for (; first - lane < share.end; first += COLUMNS * STRIDE) {
        uint4 v[COLUMNS][VECTORS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int b = 0; b < VECTORS; b++) {
                int column = first + j * STRIDE;
                v[j][b] = {};
                if (b < a.n && column < min(share.end, a.k))
                    v[j][b] = __ldcg((const uint4*)((const T*)a.x + (i64)b * a.k + column));
            }
#pragma unroll
        for (int together = 0; together < COLUMNS; together += AT_ONCE) {
            if (first - lane + together * STRIDE >= share.end) break;
#pragma unroll
            for (int j = together; j < together + AT_ONCE; j++)
#pragma unroll
                for (int b = 0; b < VECTORS; b++) {
                    float x[EACH];
#pragma unroll
                    for (int i = 0; i < EACH; i++) x[i] = to_float(((const T*)&v[j][b])[i]);
                    keep(x, b, first + j * STRIDE, a, share, to, stride);
                }
        }
    }
    named_barrier<1, CONSUMER_THREADS>();
}
#endif

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
    using Y = typename Choose<WIDE, float, T>::type;
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
#elif EPILOGUE == GATED
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
    if (FORM == PLAIN || tile >= share.tiles) return factors;
    int i = threadIdx.x % (TILE / 2);
    int low = row_of(a, tile, i), high = row_of(a, tile, i + TILE / 2);
    if (low < a.rows) factors.x = __ldg(a.row_scale + low);
    if (high < a.rows) factors.y = __ldg(a.row_scale + high);
    return factors;
}

__device__ void epilogue(const Arguments& a, const Share& share, Shared& shared, int buffer) {
    // A lane has a vector and a pair of rows; two rounds where there may be 16 vectors.
    constexpr int PAIRS = TILE / 2, ROUNDS = (VECTORS * PAIRS + WARP - 1) / WARP;
    int lane = threadIdx.x % WARP, uses = 0, slots[ROUNDS] = {};
#if EPILOGUE == ROTATE
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
        vector_factors[j] = FORM != PLAIN && a.x_scale && b < a.n ? __ldcg(a.x_scale + b) : 1.f;
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
                if (FORM != PLAIN) {
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

extern "C" __global__ void __launch_bounds__(VECTORS > 8 ? THREADS : 448, VECTORS > 8 ? 1 : 2)
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
