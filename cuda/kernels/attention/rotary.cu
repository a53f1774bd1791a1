// rotary: normalize query and key heads, apply rotary embedding, and store keys and values in the cache.
//
//   qkv           T [n, qkv_heads, head_dim]: num_heads + num_gate_heads + 2 * num_kv_heads heads, with
//                 keys_as_values without the values, which are the keys before norm and rotation; queries are
//                 changed in place, keys and values are only read, and the num_gate_heads heads between queries
//                 and keys are not
//   q_norm, k_norm  T [head_dim] with QK_NORM, else null: each head is divided by its root mean square (+ eps)
//                 and multiplied by these plus weight_offset (RMSNorm; Qwen3, 2025), with norm_after after the
//                 rotation; with norm_values also each head of values, without weights (Gemma 4)
//   cos_sin       fp32 [max_positions, rotary_dim] or null: cosines of a position's angles, then sines; null if
//                 rotary_dim is 0 (no rotation)
//   positions     int32 [n]
//   query_factors  fp32 [num_factors] or null: queries are multiplied by the factor of their position
//   slot_mapping  int32 [n]: cache slots; a token with a slot below 0 is not stored
//   cache         int8 [num_blocks, 2 * num_kv_heads, block_size, head_dim / 2] or null with KV_SCHEME KV_INT5,
//                 int8 [num_blocks, 2 * num_kv_heads, block_size, head_dim] or null with KV_SCHEME,
//                 else T [num_blocks, 2 * num_kv_heads, block_size, head_dim] or null: key heads first; null
//                 without KV heads
//   kv_scales     fp32 [num_blocks, 2 * num_kv_heads, block_size] or null: with KV_SCHEME (quantized_kv.cuh)
//   key_bits      int8 [num_blocks, num_kv_heads, block_size, head_dim / 4] or null: with KV_INT5 (int5_kv.cuh)
//   value_bits    int8 [num_blocks, num_kv_heads, block_size, head_dim / 8] or null
//
// With KV_INT5 queries, keys and values are then multiplied by a Hadamard matrix (int5_kv.cuh).
//
// Algorithm: pair i of a head rotates by angle i (Su et al., 2021, arXiv:2104.09864); it is the elements i
// and i + rotary_dim / 2. Further elements do not change. A thread holds 2 * WIDTH elements, whole pairs at one place of a head, for up to 4 heads: all are loaded
// before the first is rotated, and the angles are loaded once. The lanes that hold a head add their squares
// (QK_NORM) and find its maximum (KV_SCHEME).
//
// Requires: head_dim <= 512; WIDTH (8, 4, 2 or 1) divides rotary_dim / 2 and head_dim / 2; with QK_NORM or
// KV_SCHEME, items = head_dim / (2 * WIDTH) is a power of two up to 32; with KV_INT5 head_dim is 64 or 128, and
// rotary_dim 0 or head_dim. Valid positions and slots.
// Launch: grid (n, ceil(heads / (4 * floor(128 / items)))), block 128, no shared memory.
// Moves the rotated elements of the queries, keys and values twice, and the angles once.
// Accuracy: fp32, rounded once: relative 2^-8 (bf16), 2^-11 (fp16), 2e-6 (fp32); elements that are neither
// normalized nor rotated are exact. Quantized elements are rounded once more.
// Test: tests/cuda/kernels/test_rotary.py
#include "attention/rotary_head.cuh"
#ifdef KV_SCHEME
#include "attention/kv_schemes.cuh"
#endif
#ifdef PACKED_KV
#include "attention/rotary_int5_kv.cuh"
using Stored = u8;
#elif defined(KV_SCHEME)
#include "attention/rotary_quantized_kv.cuh"
using Stored = u8;
#else
using Stored = T;
#endif

constexpr int THREADS = 128, UNROLL = 4;
#ifdef PACKED_KV
constexpr bool CHANGES_QUERIES = true;
#else
constexpr bool CHANGES_QUERIES = QK_NORM;
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
rotary_kernel(T* qkv, const T* q_norm, const T* k_norm, const float* cos_sin, const int* positions,
              const int* slot_mapping, Stored* cache, int num_heads,
              int num_kv_heads, int head_dim, int rotary_dim, int log2_block_size, float eps, float weight_offset,
              int norm_after, int norm_values, int keys_as_values, int num_gate_heads, const float* query_factors
#ifdef KV_SCHEME
              , float* kv_scales
#if KV_SCHEME == KV_INT5
              , u8* key_bits, u8* value_bits
#endif
#endif
              ) {
    start_dependents();
    int items = head_dim / (2 * W), item = threadIdx.x % items;
    int group = threadIdx.x / items, groups = THREADS / items;
    if (group >= groups) return;
    i64 row = blockIdx.x;
    int half_dim = rotary_dim / 2;
    bool rotated = item < half_dim / W;
    // Elements that are not rotated are two neighboring accesses.
    int low = 2 * W * item, high = low + W;
    if (rotated) {
        low = item * W;
        high = low + half_dim;
    }
#ifdef PACKED_KV
    low = W * item, high = low + head_dim / 2;  // also without rotary embedding
#endif

    int heads = num_heads + 2 * num_kv_heads;
    bool changes_queries = CHANGES_QUERIES || rotary_dim || query_factors;
    int first = (changes_queries ? 0 : num_heads) + blockIdx.y * UNROLL * groups + group;
    int values_back = keys_as_values ? num_kv_heads : 0;  // from a value's place to the head that it is
    qkv += (row * (heads + num_gate_heads - values_back) + first) * head_dim;
    i64 next = (i64)groups * head_dim;  // from a head to the thread's next one
#if QK_NORM  // constants: loaded before the wait
    NormWeight q_weight{load<W>(q_norm + low), load<W>(q_norm + high)};
    NormWeight k_weight{load<W>(k_norm + low), load<W>(k_norm + high)};
#endif
    wait_for_upstream();

    int slot = slot_mapping[row], position = 0;
    if (rotated) position = positions[row];
    float factor = query_factors ? query_factors[positions[row]] : 1.f;
    Item loaded[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int head = first + u * groups;
        if (head >= heads) continue;
        const T* from = qkv + u * next;
        if (head >= num_heads) from += (i64)num_gate_heads * head_dim;
        if (head >= num_heads + num_kv_heads) from -= (i64)values_back * head_dim;
        loaded[u].low = load<W>(from + low);
        loaded[u].high = load<W>(from + high);
    }
    Pack<float, W> cos{}, sin{};
    if (rotated) {
        const float* angles = cos_sin + (i64)position * rotary_dim + item * W;
        cos = load<W>(angles);
        sin = load<W>(angles + half_dim);
    }
    i64 block = slot >> log2_block_size, kv_stride = (i64)head_dim << log2_block_size;
#ifdef PACKED_KV
    PackedRow packed{block, slot & ((1 << log2_block_size) - 1), num_kv_heads, log2_block_size};
#else
    cache += block * 2 * num_kv_heads * kv_stride;
    cache += (slot & ((1 << log2_block_size) - 1)) * head_dim;
#endif
#if defined(KV_SCHEME) && !defined(PACKED_KV)
    kv_scales += (block * 2 * num_kv_heads << log2_block_size);
    kv_scales += slot & ((1 << log2_block_size) - 1);
#endif
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int head = first + u * groups, kv_head = head - num_heads;
        if (head >= heads) continue;
        bool scaled = kv_head < 0 && query_factors;
        if (kv_head < num_kv_heads && (QK_NORM || rotated || scaled)) {
            float at[2 * W];
            unpack(loaded[u], at);
#if QK_NORM
            if (rotated && norm_after) rotate(at, cos, sin);
            normalize(at, kv_head < 0, q_weight, k_weight, items, eps, weight_offset);
            if (rotated && !norm_after) rotate(at, cos, sin);
#else
            if (rotated) rotate(at, cos, sin);
#endif
#pragma unroll
            for (int i = 0; i < 2 * W && scaled; i++) at[i] *= factor;
            pack(at, loaded[u]);
        }
#if QK_NORM
        if (kv_head >= num_kv_heads && norm_values) {
            float at[2 * W];
            unpack(loaded[u], at);
            float scale = inverse_rms(at, items, eps);
#pragma unroll
            for (int i = 0; i < 2 * W; i++) at[i] *= scale;
            pack(at, loaded[u]);
        }
#endif
#ifdef PACKED_KV
        float rotated_head[2 * W];
        unpack(loaded[u], rotated_head);
        rotate_head(rotated_head, items);
        if (kv_head >= 0) {
            if (slot < 0) continue;
            packed.store(rotated_head, kv_head, item, items, cache, key_bits, value_bits, kv_scales);
            continue;
        }
        pack(rotated_head, loaded[u]);
        T* to = qkv + u * next;
#elif defined(KV_SCHEME)
        if (kv_head >= 0) {
            if (slot < 0) continue;
            float at[2 * W];
            unpack(loaded[u], at);
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
        if (kv_head >= 0 ? slot < 0 : !(CHANGES_QUERIES || rotated || scaled)) continue;
        store(to + low, loaded[u].low);
        store(to + high, loaded[u].high);
    }
}
