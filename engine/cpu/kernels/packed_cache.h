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

INLINE void unpack_key(const uint8_t *values, const uint8_t *bits, int head_dim, int8_t *to) {
    const int half = head_dim / 2, quarter = head_dim / 4;
    for (int i = 0; i < half; i++) {
        to[i] = (int8_t)((values[i] & 15) - KEY_LEVELS);
        to[half + i] = (int8_t)((values[i] >> 4) - KEY_LEVELS);
    }
    for (int part = 0; part < 4; part++) {
        for (int i = 0; i < quarter; i++) {
            int8_t *element = to + part * quarter + i;
            *element = (int8_t)(*element + ((bits[i] >> 2 * part & 3) << 4));
        }
    }
}

/* Eight elements at a time, as bytes of a 64-bit integer, so that compilers use vectors. */
INLINE void unpack_value(const uint8_t *values, const uint8_t *bits, int head_dim, int8_t *to) {
    const uint64_t sign = 0x8080808080808080, levels = 0x0101010101010101 * VALUE_LEVELS;
    for (int i = 0; i < head_dim / 8; i++) {
        uint32_t words;
        memcpy(&words, values + 4 * i, 4);
        uint64_t w = words, byte = bits[i], eighth = byte >> 5 | (w >> 12 & 8) | (w >> 27 & 16);
        uint64_t u = (w & 31) | (w & 31 << 5) << 3 | (w & 31 << 10) << 6 | (w & 31 << 16) << 8 |
                     (w & 31 << 21) << 11 | (w & (uint64_t)31 << 26) << 14 | (byte & 31) << 48 | eighth << 56;
        u = ((u | sign) - levels) ^ sign;
        memcpy(to + 8 * i, &u, 8);
    }
}

/* Unpack `count` rows of keys or values to int8 [count][head_dim]. */
INLINE void unpack_rows(const uint8_t *values, const uint8_t *bits, int is_key, int head_dim,
                        int count, int8_t *to) {
    for (int t = 0; t < count; t++, to += head_dim, values += head_dim / 2) {
        if (is_key) unpack_key(values, bits, head_dim, to);
        else unpack_value(values, bits, head_dim, to);
        bits += is_key ? head_dim / 4 : head_dim / 8;
    }
}
