/* Head norms, rotary position embedding, the factors of late queries and the write to the KV cache, for rows of q, k and v.

   A chunk is a number of (row, head) pairs; with norms over all heads, whole rows. */
#include "chunks.h"
#include "layer_cache.h"
#include "norm.h"
#include "packed_cache.h"

static int num_row_heads(const RotaryOp *op) {
    return op->num_heads + (op->values_are_keys ? 1 : 2) * op->num_kv_heads;
}

static int chunk_heads(const RotaryOp *op) {
    int heads = max_int(1, CHUNK_ELEMENTS / op->head_dim), row = num_row_heads(op);
    return op->norm_width == op->head_dim ? heads : (heads + row - 1) / row * row;
}

static int num_phases(const Op *base, const Run *run) {
    (void)base, (void)run;
    return 1;
}

static int num_chunks(const Op *base, const Run *run, int phase) {
    const RotaryOp *op = &base->rotary;
    const int size = chunk_heads(op);
    (void)phase;
    return (int)(((int64_t)run->num_tokens * num_row_heads(op) + size - 1) / size);
}

/* Rotate pairs first .. end of x [head_dim] in place; pair i is x[i] and x[head_dim / 2 + i]. */
static void rotate(float *x, int head_dim, const float *cos_sin, int first, int end) {
    float *low = x, *high = x + head_dim / 2;
    const float *cosines = cos_sin, *sines = cos_sin + head_dim / 2;
    for (int i = first; i < end; i++) {
        float a = low[i], b = high[i];
        low[i] = a * cosines[i] - b * sines[i];
        high[i] = b * cosines[i] + a * sines[i];
    }
}

static void rotate_head(const RotaryOp *op, const Run *run, int row, float *x) {
    const int pairs = op->head_dim / 2, first_pairs = op->two_dimensional ? pairs / 2 : pairs;
    const float *first = op->cos_sin + (int64_t)run->positions[row] * op->head_dim;
    rotate(x, op->head_dim, first, 0, first_pairs);
    if (op->two_dimensional) {
        const float *second = op->cos_sin + (int64_t)run->second_positions[row] * op->head_dim;
        rotate(x, op->head_dim, second, first_pairs, pairs);
    }
}

/* Round to e4m3, to the nearest, ties to even; above 464 NaN. */
INLINE uint8_t float_to_fp8(float value) {
    const uint32_t bits = bits_of_float(value) & 0x7fffffff;
    const uint32_t sign = bits_of_float(value) >> 24 & 0x80;
    /* Below 2^-6 the numbers are multiples of 2^-9, which is the step of fp32 at 2^14. */
    uint32_t small = bits_of_float(float_of_bits(bits) + 0x1p14f) - bits_of_float(0x1p14f);
    uint32_t normal = (bits - (120u << 23) + 0x7ffff + (bits >> 20 & 1)) >> 20;
    uint32_t magnitude = bits < 121u << 23 ? small : normal;
    return (uint8_t)(sign | (magnitude < 0x7f ? magnitude : 0x7f));
}

/* Quantize x [n] as `quantize_kv` of engine/model/quantized_kv.py: return the scale. */
static float quantize(int format, const float *x, int n, uint8_t *to) {
    /* Absolute values compare as integers, and a NaN is the largest. */
    int32_t largest = 0;
    for (int i = 0; i < n; i++) largest = max_int(largest, bits_of_float(x[i]) & 0x7fffffff);
    float scale = float_of_bits(largest) / (format == KV_INT8 ? 127.0f : 448.0f);
    scale = scale < 0x1p-100f ? 0x1p-100f : scale;
    if (format == KV_FP8) {
        for (int i = 0; i < n; i++) to[i] = float_to_fp8(x[i] / scale);
        return scale;
    }
    for (int i = 0; i < n; i++) {
        float value = rintf(x[i] / scale);
        to[i] = (uint8_t)(int8_t)(value == value ? value : 0);
    }
    return scale;
}

/* Quantize the rotated x [n] to 0 .. 2 * levels - 1 as `_quantize` of engine/model/int5_kv.py: return
   the scale. */
static float quantize_levels(const float *x, int n, int levels, uint8_t *to) {
    float smallest = x[0], largest = x[0];
    /* If an element is not finite, none is. */
    for (int i = 1; i < n; i++) {
        smallest = x[i] < smallest ? x[i] : smallest;
        largest = x[i] > largest ? x[i] : largest;
    }
    float scale = (largest > -smallest ? largest : smallest) / (float)-levels;
    if (fabsf(scale) < 0x1p-100f) scale = 0x1p-100f;
    for (int i = 0; i < n; i++) {
        float value = rintf(x[i] / scale) + (float)levels;
        value = value > 0 ? value : 0;
        to[i] = (uint8_t)(value < (float)(2 * levels - 1) ? value : (float)(2 * levels - 1));
    }
    return scale;
}

enum { MAX_HEAD_DIM = 1024 };

static void pack_key(const uint8_t *u, int n, uint8_t *to, uint8_t *bits) {
    const int half = n / 2, quarter = n / 4;
    for (int i = 0; i < half; i++) to[i] = (uint8_t)((u[i] & 15) | (u[half + i] & 15) << 4);
    for (int i = 0; i < quarter; i++) {
        bits[i] = 0;
        for (int part = 0; part < 4; part++) {
            bits[i] = (uint8_t)(bits[i] | u[part * quarter + i] >> 4 << 2 * part);
        }
    }
}

static void pack_value(const uint8_t *u, int n, uint8_t *to, uint8_t *bits) {
    for (int i = 0; i < n; i += 8, u += 8, bits++) {
        for (int j = 0; j < 2; j++) { /* two words of three elements and a bit of the eighth */
            int word = u[3 * j] | u[3 * j + 1] << 5 | u[3 * j + 2] << 10 | (u[7] >> (3 + j) & 1) << 15;
            *to++ = (uint8_t)word;
            *to++ = (uint8_t)(word >> 8);
        }
        *bits = (uint8_t)(u[6] | u[7] << 5);
    }
}

/* Rotate x [head_dim] in place and pack it to the slot's row of KV_INT5. */
static void store_packed(const RotaryOp *op, int slot, int head, float *x) {
    const LayerCache *cache = &op->cache;
    const int n = op->head_dim, size = cache->block_size;
    const int is_key = head < op->num_kv_heads;
    const int64_t row = cache_row(cache, op->num_kv_heads, slot / size, head, slot % size);
    uint8_t *to = (uint8_t *)cache->values + row * (n / 2), all[MAX_HEAD_DIM];
    uint8_t *bits = upper_bits(cache, op->num_kv_heads, n, slot / size, head, slot % size);
    rotate_by_hadamard(x, n);
    cache->scales[row] = quantize_levels(x, n, is_key ? KEY_LEVELS : VALUE_LEVELS, all);
    if (is_key) pack_key(all, n, to, bits);
    else pack_value(all, n, to, bits);
}

/* Write x [head_dim] to the slot's row of a head, which counts as in `cache_row`. */
static void store_row(const RotaryOp *op, int slot, int head, const float *x) {
    const LayerCache *cache = &op->cache;
    const int n = op->head_dim, size = cache->block_size;
    const int64_t row = cache_row(cache, op->num_kv_heads, slot / size, head, slot % size);
    uint8_t *to = (uint8_t *)cache->values + row * n * element_bytes(cache->format);
    if (cache->format == KV_F32) {
        memcpy(to, x, (size_t)n * sizeof(float));
    } else if (cache->format == KV_F16) {
        for (int i = 0; i < n; i++) ((uint16_t *)(void *)to)[i] = float_to_fp16(x[i]);
    } else if (cache->format == KV_BF16) {
        for (int i = 0; i < n; i++) ((uint16_t *)(void *)to)[i] = float_to_bf16(x[i]);
    } else {
        cache->scales[row] = quantize(cache->format, x, n, to);
    }
}

/* Store x [head_dim], which may change. */
static void store(const RotaryOp *op, int slot, int head, float *x) {
    if (op->cache.format == KV_INT5) store_packed(op, slot, head, x);
    else store_row(op, slot, head, x);
}

static void store_value(const RotaryOp *op, int slot, int head, float *x) {
    if (op->v_norm.kind != NORM_NONE) norm_row(&op->v_norm, x, op->head_dim, x);
    store(op, slot, head, x);
}

/* Normalize a head; with norms over all heads the whole part when its first head comes. */
static void norm_head(const RotaryOp *op, int head, float *x) {
    const int is_key = head >= op->num_heads, index = head - (is_key ? op->num_heads : 0);
    const int is_whole = op->norm_width != op->head_dim;
    Norm norm = is_key ? op->k_norm : op->q_norm;
    if (norm.kind == NORM_NONE || (is_whole && index > 0)) return;
    norm.weight += index * op->head_dim;
    norm.bias = norm.bias ? norm.bias + index * op->head_dim : NULL;
    int num_heads = is_key ? op->num_kv_heads : op->num_heads;
    norm_row(&norm, x, is_whole ? num_heads * op->head_dim : op->head_dim, x);
}

static void compute(const Op *base, const Run *run, int phase, int chunk, Scratch *scratch) {
    const RotaryOp *op = &base->rotary;
    const int row_heads = num_row_heads(op), size = chunk_heads(op);
    const int64_t all = (int64_t)run->num_tokens * row_heads, first = (int64_t)chunk * size;
    (void)phase, (void)scratch;
    for (int64_t i = first; i < first + size && i < all; i++) {
        const int row = (int)(i / row_heads), head = (int)(i % row_heads);
        const int kv_row = head - op->num_heads; /* keys' heads, then values' */
        float *x = run->buffers[op->qkv] + i * op->head_dim;
        if (kv_row >= 0 && op->values_are_keys) {
            float value[MAX_HEAD_DIM];
            memcpy(value, x, (size_t)op->head_dim * sizeof(float));
            store_value(op, run->slots[row], kv_row + op->num_kv_heads, value);
        }
        if (kv_row >= op->num_kv_heads) {
            store_value(op, run->slots[row], kv_row, x);
            continue;
        }
        if (!op->norm_after) norm_head(op, head, x);
        if (op->cos_sin) rotate_head(op, run, row, x);
        if (op->norm_after) norm_head(op, head, x);
        if (kv_row < 0 && op->query_factors) {
            const float factor = op->query_factors[run->positions[row]];
            for (int j = 0; j < op->head_dim; j++) x[j] *= factor;
        }
        if (kv_row >= 0) store(op, run->slots[row], kv_row, x);
        else if (op->cache.format == KV_INT5) rotate_by_hadamard(x, op->head_dim);
    }
}

static size_t no_bytes(const Op *base, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)base, (void)buffers, (void)num_tokens, (void)num_logits;
    return 0;
}

const OpKernels rotary_kernels = {num_phases, num_chunks, NULL, compute, no_bytes, no_bytes};
