// How `rotary` rotates heads by a Hadamard matrix and stores keys and values in the int5 cache (int5_kv.cuh).
#pragma once
#include "attention/hadamard.cuh"
#include "attention/int5_kv.cuh"
#include "common/pack.cuh"

static_assert(WIDTH == 8);
constexpr float MIN_SCALE = 0x1p-100f;  // so that zeros can be divided by it

__device__ __forceinline__ u32 head_lanes(int items) {
    u32 first = threadIdx.x % WARP & ~(items - 1);
    return (items == WARP ? ALL : (1u << items) - 1) << first;
}

// Rotates a head that `items` neighboring lanes hold in parts: eight elements of each half. In the order of
// the bits of an element's number, as in engine/model/int5_kv.py, so that results are bitwise equal.
__device__ __forceinline__ void rotate_head(float (&at)[2 * WIDTH], int items) {
    float(&halves)[2][WIDTH] = reinterpret_cast<float(&)[2][WIDTH]>(at);
    hadamard(halves[0], items, head_lanes(items));
    hadamard(halves[1], items, head_lanes(items));
    float by = items == 4 ? 0.125f : 0.08838834764831845f;  // 1 / sqrt(64), 1 / sqrt(128)
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        float low = at[i], high = at[WIDTH + i];
        at[i] = (low + high) * by;
        at[WIDTH + i] = (low - high) * by;
    }
}

// A token's rows in the cache.
struct PackedRow {
    i64 block;
    int within, num_kv_heads, log2_block_size;

    // Quantizes and stores a rotated head of which the lane has part `item` of `items`; `kv_head` counts key
    // heads, then value heads. If an element is not finite, none is, and neither is the scale.
    __device__ __forceinline__ void store(const float (&at)[2 * WIDTH], int kv_head, int item, int items,
                                          u8* cache, u8* key_bits, u8* value_bits,
                                          float* scales) const {
        u32 lanes = head_lanes(items);
        float smallest = at[0], largest = at[0];
#pragma unroll
        for (int i = 1; i < 2 * WIDTH; i++) smallest = fminf(smallest, at[i]), largest = fmaxf(largest, at[i]);
        for (int step = 1; step < items; step *= 2) {
            smallest = fminf(smallest, __shfl_xor_sync(lanes, smallest, step));
            largest = fmaxf(largest, __shfl_xor_sync(lanes, largest, step));
        }
        bool is_key = kv_head < num_kv_heads;
        float levels = is_key ? KEY_LEVELS : VALUE_LEVELS;
        float scale = (largest > -smallest ? largest : smallest) / -levels;
        if (fabsf(scale) < MIN_SCALE) scale = MIN_SCALE;
        u32 u[2 * WIDTH];
#pragma unroll
        for (int i = 0; i < 2 * WIDTH; i++) u[i] = quantize(at[i], scale, levels);
        int row_bytes = items * WIDTH;
        i64 row = ((block * 2 * num_kv_heads + kv_head) << log2_block_size) + within;
        i64 bits_row = ((block * num_kv_heads + kv_head - (is_key ? 0 : num_kv_heads)) << log2_block_size) + within;
        if (item == 0) scales[row] = scale;
        if (is_key) store_key(u, item, items, cache + row * row_bytes, key_bits + bits_row * (row_bytes / 2));
        else store_value(u, item, items, cache + row * row_bytes, value_bits + bits_row * (row_bytes / 4));
    }

    __device__ __forceinline__ static void store_key(const u32 (&u)[2 * WIDTH], int item, int items, u8* to,
                                                     u8* bits) {
        Vec<u32, 2> nibbles{}, above{};
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            nibbles.at[i / 4] |= ((u[i] & 15) | (u[WIDTH + i] & 15) << 4) << i % 4 * 8;
            above.at[i / 4] |= (u[i] >> 4 | u[WIDTH + i] >> 4 << 4) << i % 4 * 8;
        }
        *reinterpret_cast<Vec<u32, 2>*>(to + item * WIDTH) = nibbles;
        // A byte has elements of two lanes.
#pragma unroll
        for (int i = 0; i < 2; i++) above.at[i] |= __shfl_xor_sync(head_lanes(items), above.at[i], items / 2) << 2;
        if (item < items / 2) *reinterpret_cast<Vec<u32, 2>*>(bits + item * WIDTH) = above;
    }

    __device__ __forceinline__ static void store_value(const u32 (&u)[2 * WIDTH], int item, int items, u8* to,
                                                       u8* bits) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32* e = u + half * WIDTH;
            int group = item + half * items;
            u32 first = e[0] | e[1] << 5 | e[2] << 10 | (e[7] >> 3 & 1) << 15;
            u32 second = e[3] | e[4] << 5 | e[5] << 10 | e[7] >> 4 << 15;
            *reinterpret_cast<u32*>(to + group * 4) = first | second << 16;
            bits[group] = (u8)(e[6] | e[7] << 5);
        }
    }

    // Rounds to nearest, ties to even; 0 … 2 * levels - 1.
    __device__ __forceinline__ static u32 quantize(float at, float scale, float levels) {
        return (u32)(int)(fminf(fmaxf(rintf(at / scale), -levels), levels - 1) + levels);
    }
};
