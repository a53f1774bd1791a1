/* Access to the rows [head_dim] of a layer's KV cache. */
#pragma once
#include "op_kernels.h"
#include "vector.h"

INLINE int element_bytes(int format) { return format == KV_F32 ? 4 : format <= KV_BF16 ? 2 : 1; }

/* Bytes of a row in `values`. */
INLINE int row_bytes(int format, int head_dim) {
    return format == KV_INT5 ? head_dim / 2 : head_dim * element_bytes(format);
}

/* The row of a token, of all rows of the cache; `head` counts the keys', then the values' heads. */
INLINE int64_t cache_row(const LayerCache *cache, int num_kv_heads, int block, int head,
                         int offset) {
    return ((int64_t)block * 2 * num_kv_heads + head) * cache->block_size + offset;
}

#if defined(__F16C__) || defined(__aarch64__)
enum { FP8_UNIT = 256 }; /* the loaded elements of KV_FP8 are to be multiplied by it */

/* The exponent and the fraction at fp16's place are the number times 2^-8. */
INLINE Floats fp8_to_floats(HalfWords bytes) {
    return fp16_to_floats((bytes & 0x80) << 8 | (bytes & 0x7f) << 7);
}
#else
enum { FP8_UNIT = 1 };

INLINE Floats fp8_to_floats(HalfWords bytes) {
    Uints wide = __builtin_convertvector(bytes, Uints);
    return (Floats)((wide & 0x80) << 24 | (wide & 0x7f) << 20) * 0x1p120f;
}
#endif

INLINE Floats load_fp8(const uint8_t *from) {
    uint8_t __attribute__((vector_size(LANES))) bytes;
    memcpy(&bytes, from, sizeof bytes);
    return fp8_to_floats(__builtin_convertvector(bytes, HalfWords));
}

/* What the loaded elements of a row are to be multiplied by. */
INLINE float row_scale(int format, float scale) {
    return format == KV_FP8 ? scale * FP8_UNIT : scale;
}

/* Elements of a cache row, for KV_INT8 and KV_FP8 without `row_scale`. The NaN of fp8 becomes a
   finite number: it occurs only in rows whose scale is not finite. */
INLINE Floats load_elements(int format, const uint8_t *from) {
    if (format == KV_F32) return load_floats(from);
    if (format == KV_F16) return load_fp16(from);
    if (format == KV_FP8) return load_fp8(from);
    if (format == KV_BF16) return load_bf16(from);
    int8_t __attribute__((vector_size(LANES))) bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Floats);
}

/* Element number `index` of LANES words of 32 bits from as many rows: as `load_elements`. */
INLINE Floats word_elements(int format, Uints words, int index) {
    if (format == KV_F32) return (Floats)words;
    if (format == KV_BF16) return (Floats)(index ? words & 0xffff0000 : words << 16);
    if (format == KV_F16) {
        return fp16_to_floats(__builtin_convertvector(words >> 16 * index, HalfWords));
    }
    if (format == KV_FP8) {
        return fp8_to_floats(__builtin_convertvector(words >> 8 * index & 0xff, HalfWords));
    }
    return __builtin_convertvector((Ints)(words << (24 - 8 * index)) >> 24, Floats);
}

/* The same for the last `count` < LANES elements of a row; the others become zero. */
INLINE Floats load_last_elements(int format, const uint8_t *from, int count) {
    uint8_t padded[4 * LANES] = {0};
    memcpy(padded, from, (size_t)count * element_bytes(format));
    return load_elements(format, padded);
}
