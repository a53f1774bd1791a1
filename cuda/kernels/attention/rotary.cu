// rotary: normalizes query and key heads, turns them by their positions, and stores keys and values
// in the cache.
//
//   qkv         T [n, num_heads + 2 * num_kv_heads, head_dim]; the queries are changed in place,
//               keys and values only read
//   q_norm, k_norm  T [head_dim], with QK_NORM: each head is divided by its root mean square and
//               multiplied by these, plus weight_offset (RMSNorm; Qwen3, 2025); eps is added to the mean
//               square
//   cos_sin     fp32 [max_positions, rotary_dim]: cosines of a position's angles, then sines;
//               null when rotary_dim is 0 (nothing is rotated)
//   positions   int32 [n]
//   positions2  int32 [n] or null. With them a head has two stretches of rotary_dim elements, the
//               second rotated by positions2 (ChatGLM's 2-D positions)
//   slot_mapping       int32 [n]; of a token with slot < 0 nothing is stored
//   cache       T [num_blocks, 2 * num_kv_heads, 2^log2_block_size, head_dim], keys' heads first; with
//               KV_SCHEME bytes, and kv_scales fp32 [num_blocks, 2 * num_kv_heads, 2^log2_block_size]
//
// Pair i of a span turns by angle i (Su et al., 2021, arXiv:2104.09864). Its elements are i and
// i + rotary_dim / 2, with INTERLEAVED 2i and 2i + 1. Elements past the stretches stay.
//
// Grid (n, ceil(heads / (4 * floor(128 / items)))), where items = head_dim / (2 * WIDTH); block
// 128, no shared memory. Moves the stretches of the queries, keys and values twice, angles once.
// A thread holds 2 * WIDTH elements, whole pairs of one place in a head, for up to 4 heads, all of
// them loaded before the first is rotated; the angles are the same for all. WIDTH elements are
// one access: 8, 4, 2 or 1, a divisor of rotary_dim / 2 and head_dim / 2. head_dim <= 256.
// With QK_NORM neighboring lanes that fence_operand a head add their squares, with KV_SCHEME they find its
// largest number: head_dim / (2 * WIDTH) must be a power of two up to 32. In fp32, rounded once,
// and as a code once more.
// Compiled with INTERLEAVED, QK_NORM, WIDTH, and KV_SCHEME for a cache in 8 bits.
// Test: tests/cuda/kernels/test_rotary.py, relative 2^-8 (bf16), 2^-11 (fp16), 2e-6 (fp32): one rounding
// of the result. Values, and elements that are not rotated, are equal.
#include "common/pack.cuh"
#ifdef KV_SCHEME
#include "attention/rotary_quantized_kv.cuh"
using Stored = u8;
#else
using Stored = T;
#endif

constexpr int THREADS = 128, UNROLL = 4, W = WIDTH;

struct Item {
    Pack<T, W> low, high;
};

// The weights of a head's norm, at an item's place.
struct NormWeight {
    Pack<T, W> low, high;
};

// Divides a head, of which `items` neighboring lanes fence_operand a part, by its root mean square.
__device__ __forceinline__ void normalize(float (&at)[2 * W], bool is_query,
                                          const NormWeight& query, const NormWeight& key,
                                          int items, float eps, float weight_offset) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 2 * W; i++) squares += at[i] * at[i];
    u32 lane = threadIdx.x % WARP, first = lane & ~(items - 1);
    u32 head_lanes = (items == WARP ? ALL : (1u << items) - 1) << first;
    for (int lanes = 1; lanes < items; lanes *= 2)
        squares += __shfl_xor_sync(head_lanes, squares, lanes);
    float scale = rsqrtf(squares / (2 * W * items) + eps);
#pragma unroll
    for (int i = 0; i < W; i++) {
        at[i] *= scale * ((is_query ? query.low[i] : key.low[i]) + weight_offset);
        at[W + i] *= scale * ((is_query ? query.high[i] : key.high[i]) + weight_offset);
    }
}

// Turns an item's pairs by W angles in a row.
__device__ __forceinline__ void rotate(float (&at)[2 * W], const Pack<float, W>& cos,
                                     const Pack<float, W>& sin) {
#pragma unroll
    for (int i = 0; i < W; i++) {
        constexpr int STRIDE = INTERLEAVED ? 2 : 1, PARTNER = INTERLEAVED ? 1 : W;
        float x = at[STRIDE * i], y = at[STRIDE * i + PARTNER];
        at[STRIDE * i] = x * cos[i] - y * sin[i];
        at[STRIDE * i + PARTNER] = y * cos[i] + x * sin[i];
    }
}

__device__ __forceinline__ void unpack(const Item& item, float (&at)[2 * W]) {
#pragma unroll
    for (int i = 0; i < W; i++) {
        at[i] = item.low[i];
        at[W + i] = item.high[i];
    }
}
__device__ __forceinline__ void pack(const float (&at)[2 * W], Item& item) {
    float low[W], high[W];
#pragma unroll
    for (int i = 0; i < W; i++) {
        low[i] = at[i];
        high[i] = at[W + i];
    }
    item.low = low;
    item.high = high;
}

extern "C" __global__ void __launch_bounds__(THREADS)
rotary_kernel(T* qkv, const T* q_norm, const T* k_norm, const float* cos_sin, const int* positions,
              const int* positions2, const int* slot_mapping, Stored* cache, int num_heads, int num_kv_heads,
              int head_dim, int rotary_dim, int log2_block_size, float eps, float weight_offset
#ifdef KV_SCHEME
              , float* kv_scales
#endif
              ) {
    start_dependents();
    int items = head_dim / (2 * W), item = threadIdx.x % items;
    int group = threadIdx.x / items, groups = THREADS / items;
    if (group >= groups) return;
    i64 row = blockIdx.x;
    int half_dim = rotary_dim / 2, in_stretch = half_dim / W;
    bool second = positions2 && item >= in_stretch;
    int place = second ? item - in_stretch : item;  // within its span
    bool rotated = place < in_stretch;
    // Pairs of neighbors are two neighboring accesses, and so is what is not rotated.
    int low = 2 * W * item, high = low + W;
    if (!INTERLEAVED && rotated) {
        low = (second ? rotary_dim : 0) + place * W;
        high = low + half_dim;
    }

    int heads = num_heads + 2 * num_kv_heads;
    // Without angle or norm there is nothing to do for the queries.
    int first = (QK_NORM || rotary_dim ? 0 : num_heads) + blockIdx.y * UNROLL * groups + group;
    qkv += (row * heads + first) * head_dim;
    i64 next = (i64)groups * head_dim;  // from a head to the thread's next one
#if QK_NORM  // constants, which depend on nobody
    NormWeight q_weight{load<W>(q_norm + low), load<W>(q_norm + high)};
    NormWeight k_weight{load<W>(k_norm + low), load<W>(k_norm + high)};
#endif
    wait_for_upstream();

    int slot = slot_mapping[row], position = 0;
    if (rotated) position = (second ? positions2 : positions)[row];
    Item held[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        if (first + u * groups >= heads) continue;
        held[u].low = load<W>(qkv + u * next + low);
        held[u].high = load<W>(qkv + u * next + high);
    }
    Pack<float, W> cos{}, sin{};
    if (rotated) {
        const float* angles = cos_sin + (i64)position * rotary_dim + place * W;
        cos = load<W>(angles);
        sin = load<W>(angles + half_dim);
    }
    i64 block = slot >> log2_block_size, kv_stride = (i64)head_dim << log2_block_size;
    cache += block * 2 * num_kv_heads * kv_stride;
    cache += (slot & ((1 << log2_block_size) - 1)) * head_dim;
#ifdef KV_SCHEME
    kv_scales += (block * 2 * num_kv_heads << log2_block_size) + (slot & ((1 << log2_block_size) - 1));
#endif
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int head = first + u * groups, kv_head = head - num_heads;
        if (head >= heads) continue;
        if (kv_head < num_kv_heads && (QK_NORM || rotated)) {
            float at[2 * W];
            unpack(held[u], at);
#if QK_NORM
            normalize(at, kv_head < 0, q_weight, k_weight, items, eps, weight_offset);
#endif
            if (rotated) rotate(at, cos, sin);
            pack(at, held[u]);
        }
#ifdef KV_SCHEME
        if (kv_head >= 0) {
            if (slot < 0) continue;
            float at[2 * W];
            unpack(held[u], at);
            float scale = head_scale(at, items);
            store_quantized<0, W>(cache + kv_head * kv_stride + low, at, scale);
            store_quantized<W, W>(cache + kv_head * kv_stride + high, at, scale);
            if (item == 0) kv_scales[kv_head << log2_block_size] = scale;
            continue;
        }
        T* to = qkv + u * next;
#else
        T* to = kv_head < 0 ? qkv + u * next : cache + kv_head * kv_stride;
#endif
        if (kv_head >= 0 ? slot < 0 : !(QK_NORM || rotated)) continue;
        store(to + low, held[u].low);
        store(to + high, held[u].high);
    }
}
