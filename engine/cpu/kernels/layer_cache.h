/* Access to the rows [head_dim] of a layer's KV cache. */
#pragma once
#include "program.h"
#include "vector.h"

INLINE int element_bytes(int format) { return format == KV_F32 ? 4 : format <= KV_BF16 ? 2 : 1; }

/* The row of a token, of all rows of the cache; `head` counts the keys', then the values' heads. */
INLINE int64_t cache_row(const LayerCache *cache, int num_kv_heads, int block, int head,
                         int offset) {
    return ((int64_t)block * 2 * num_kv_heads + head) * cache->block_size + offset;
}

#if defined(__F16C__) || defined(__aarch64__)
typedef _Float16 HalfVector __attribute__((vector_size(2 * LANES)));
enum { FP8_UNIT = 256 }; /* the loaded elements of KV_FP8 are to be multiplied by it */

INLINE Vector load_fp16(const uint8_t *from) {
    HalfVector halves;
    memcpy(&halves, from, sizeof halves);
    return __builtin_convertvector(halves, Vector);
}

/* The exponent and the fraction at fp16's place are the number times 2^-8. */
INLINE Vector load_fp8(const uint8_t *from) {
    int8_t __attribute__((vector_size(LANES))) bytes;
    memcpy(&bytes, from, sizeof bytes);
    uint16_t __attribute__((vector_size(2 * LANES))) halves;
    /* A negative byte has its sign twice after the shift. */
    halves = __builtin_convertvector(bytes, __typeof__(halves)) << 7 & 0xbfff;
    return __builtin_convertvector((HalfVector)halves, Vector);
}
#else
enum { FP8_UNIT = 1 };

/* The exponent and the fraction at fp32's place are the number times 2^-112. */
INLINE Vector load_fp16(const uint8_t *from) {
    uint16_t __attribute__((vector_size(2 * LANES))) halves;
    memcpy(&halves, from, sizeof halves);
    BitVector wide = __builtin_convertvector(halves, BitVector);
    BitVector magnitude = (wide & 0x7fff) << 13, sign = (wide & 0x8000) << 16;
    Vector finite = (Vector)magnitude * 0x1p112f;
    IntVector is_special = (IntVector)magnitude >= 0x7c00 << 13;
    Vector value = select_vector(is_special, (Vector)(magnitude | 0x7f800000), finite);
    return (Vector)((BitVector)value | sign);
}

INLINE Vector load_fp8(const uint8_t *from) {
    uint8_t __attribute__((vector_size(LANES))) bytes;
    memcpy(&bytes, from, sizeof bytes);
    BitVector wide = __builtin_convertvector(bytes, BitVector);
    return (Vector)((wide & 0x80) << 24 | (wide & 0x7f) << 20) * 0x1p120f;
}
#endif

/* What the loaded elements of a row are to be multiplied by. */
INLINE float row_scale(int format, float scale) {
    return format == KV_FP8 ? scale * FP8_UNIT : scale;
}

/* Elements of a cache row, for KV_INT8 and KV_FP8 without `row_scale`. The NaN of fp8 becomes a
   finite number: it occurs only in rows whose scale is not finite. */
INLINE Vector load_elements(int format, const uint8_t *from) {
    if (format == KV_F32) return load_vector((const float *)(const void *)from);
    if (format == KV_F16) return load_fp16(from);
    if (format == KV_FP8) return load_fp8(from);
    if (format == KV_BF16) {
        uint16_t __attribute__((vector_size(2 * LANES))) halves;
        memcpy(&halves, from, sizeof halves);
        return (Vector)(__builtin_convertvector(halves, BitVector) << 16);
    }
    int8_t __attribute__((vector_size(LANES))) bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, IntVector), Vector);
}

/* The same for the last `count` < LANES elements of a row; the others become zero. */
INLINE Vector load_last_elements(int format, const uint8_t *from, int count) {
    uint8_t padded[4 * LANES] = {0};
    memcpy(padded, from, (size_t)count * element_bytes(format));
    return load_elements(format, padded);
}
