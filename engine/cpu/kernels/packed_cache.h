/* The rotated and packed rows of KV_INT5: engine/model/int5_kv.py describes them. */
#pragma once
#include "layer_cache.h"

enum { KEY_LEVELS = 32, VALUE_LEVELS = 16 };

/* Multiply x [n] by Sylvester's Hadamard matrices of the largest power of two that divides n, over
   their root, in place. The order of the sums is that of `rotate_heads`. */
INLINE void rotate_by_hadamard(float *x, int n) {
    const int size = n & -n;
    const float factor = (float)(1.0 / sqrt((double)size));
    for (int step = 1; step < size; step *= 2) {
        for (int first = 0; first < n; first += 2 * step) {
            for (int i = first; i < first + step; i++) {
                float low = x[i], high = x[i + step];
                x[i] = low + high;
                x[i + step] = low - high;
            }
        }
    }
    for (int i = 0; i < n; i++) x[i] *= factor;
}

/* The upper bits of a row of the cache, a key's or a value's; `head` counts as in `cache_row`. */
INLINE uint8_t *upper_bits(const LayerCache *cache, int num_kv_heads, int head_dim, int block,
                           int head, int offset) {
    const int is_key = head < num_kv_heads, own_head = is_key ? head : head - num_kv_heads;
    int64_t row = ((int64_t)block * num_kv_heads + own_head) * cache->block_size + offset;
    return is_key ? cache->key_bits + row * (head_dim / 4) : cache->value_bits + row * (head_dim / 8);
}

/* Unpack `count` rows of keys or values to int8 [count][head_dim]. */
INLINE void unpack_rows(const uint8_t *values, const uint8_t *bits, int is_key, int head_dim,
                        int count, int8_t *to) {
    const int half = head_dim / 2, quarter = head_dim / 4;
    for (int t = 0; t < count; t++, to += head_dim, values += half) {
        const int levels = is_key ? KEY_LEVELS : VALUE_LEVELS;
        for (int i = 0; i < half; i++) {
            to[i] = (int8_t)((values[i] & 15) - levels);
            to[half + i] = (int8_t)((values[i] >> 4) - levels);
        }
        if (is_key) {
            for (int part = 0; part < 4; part++) {
                for (int i = 0; i < quarter; i++) {
                    int8_t *element = to + part * quarter + i;
                    *element = (int8_t)(*element + ((bits[i] >> 2 * part & 3) << 4));
                }
            }
            bits += quarter;
            continue;
        }
        for (int i = 0; i < half; i++) {
            int two = bits[i / 4] >> i % 4 * 2;
            to[i] = (int8_t)(to[i] + ((two & 1) << 4));
            to[half + i] = (int8_t)(to[half + i] + ((two & 2) << 3));
        }
        bits += quarter / 2;
    }
}
