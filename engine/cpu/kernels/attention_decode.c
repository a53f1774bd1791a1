/* Attention of one row, for the query heads of one kv head together: K and V are read once.

   Tokens are taken in units of up to SPLIT_TOKENS: scores of all of them, one maximum,
   exponentials, then the weighted sum of values (online softmax: Milakov and Gimelshein, 2018,
   arXiv:1805.02867). Units begin at multiples of SPLIT_TOKENS. */
#include "attention.h"

#if defined(__AVX512F__) || defined(__aarch64__)
enum { MAX_PASS_QUERIES = 4 }; /* queries whose sums fit the registers */
#else
enum { MAX_PASS_QUERIES = 3 };
#endif
enum { KEYS = 4, UNIT_STRIDE = SPLIT_TOKENS + 16 };

typedef struct {
    int num_queries, head_dim, stride; /* floats from query to query, and from sum to sum */
    int partial_stride;
    float *queries;      /* [num_queries][stride], times the scale */
    float *scores;       /* [num_queries][UNIT_STRIDE] */
    float *key_scales;   /* [UNIT_STRIDE] */
    float *value_scales; /* [UNIT_STRIDE] */
    int8_t *unpacked;    /* [SPLIT_TOKENS][head_dim] with KV_INT5 */
    float *partials;
} Unit;

size_t decode_memory_bytes(const AttentionOp *op) {
    size_t floats = (size_t)group_size(op) * (padded_head_dim(op) + UNIT_STRIDE) + 2 * UNIT_STRIDE;
    size_t unpacked = op->cache.format == KV_INT5 ? (size_t)SPLIT_TOKENS * op->head_dim : 0;
    return floats * sizeof(float) + unpacked;
}

INLINE void prefetch(const uint8_t *from, int num_bytes) {
    for (int i = 0; i < num_bytes; i += 64) __builtin_prefetch(from + i);
}

/* scores[q][k] = queries[q] . keys[k], for `num_queries` and `count` keys. The last keys repeat so
   that there are always KEYS of them; what is written for the repeated ones is meaningless. */
INLINE void score_pass(const Unit *unit, int format, int num_queries, int first_query,
                       const uint8_t *keys, const uint8_t *next, int count, float *scores) {
    const int head_dim = unit->head_dim, bytes = element_bytes(format);
    const int64_t row_bytes = head_dim * bytes;
    const float *queries = unit->queries + first_query * unit->stride;
    for (int k = 0; k < count; k += KEYS) {
        const uint8_t *key[KEYS];
        Floats sums[MAX_PASS_QUERIES][KEYS] = {0};
        if (first_query == 0) prefetch(next + k * row_bytes, KEYS * (int)row_bytes);
        for (int i = 0; i < KEYS; i++) {
            key[i] = keys + min_int(k + i, count - 1) * row_bytes;
        }
        int d = 0;
        for (; d + LANES <= head_dim; d += LANES) {
            for (int i = 0; i < KEYS; i++) {
                Floats elements = load_elements(format, key[i] + d * bytes);
                for (int q = 0; q < num_queries; q++) {
                    Floats query = load_floats(queries + q * unit->stride + d);
                    sums[q][i] = add_product(sums[q][i], elements, query);
                }
            }
        }
        for (int i = 0; d < head_dim && i < KEYS; i++) {
            Floats elements = load_last_elements(format, key[i] + d * bytes, head_dim - d);
            for (int q = 0; q < num_queries; q++) {
                Floats query = load_floats(queries + q * unit->stride + d);
                sums[q][i] = add_product(sums[q][i], elements, query);
            }
        }
        for (int q = 0; q < num_queries; q++) {
            Floats4 four = add_elements_of_four(sums[q][0], sums[q][1], sums[q][2], sums[q][3]);
            memcpy(scores + (first_query + q) * UNIT_STRIDE + k, &four, sizeof four);
        }
    }
}

/* partials[q][d ..] += sum over t of weights[q][t] * values[t][d ..], for `num_vectors` of d. */
INLINE void value_pass(const Unit *unit, int format, int num_queries, int num_vectors,
                       int first_query, int d, const uint8_t *values, const uint8_t *next,
                       int count, const float *weights) {
    const int bytes = element_bytes(format), row_bytes = unit->head_dim * bytes;
    const int remaining = unit->head_dim - d;
    float *partials = unit->partials + first_query * unit->partial_stride + d;
    Floats sums[MAX_PASS_QUERIES][8];
    for (int q = 0; q < num_queries; q++) {
        for (int v = 0; v < num_vectors; v++) {
            sums[q][v] = load_floats(partials + q * unit->partial_stride + v * LANES);
        }
    }
    values += d * bytes;
    for (int t = 0; t < count; t++, values += row_bytes) {
        if (first_query == 0 && d == 0) prefetch(next + (int64_t)t * row_bytes, row_bytes);
        Floats weight[MAX_PASS_QUERIES];
        for (int q = 0; q < num_queries; q++) {
            weight[q] = broadcast(weights[(first_query + q) * UNIT_STRIDE + t]);
        }
        for (int v = 0; v < num_vectors; v++) {
            Floats elements = remaining < LANES
                                  ? load_last_elements(format, values, remaining)
                                  : load_elements(format, values + v * LANES * bytes);
            for (int q = 0; q < num_queries; q++) {
                sums[q][v] = add_product(sums[q][v], elements, weight[q]);
            }
        }
    }
    for (int q = 0; q < num_queries; q++) {
        for (int v = 0; v < num_vectors; v++) {
            store_floats(partials + q * unit->partial_stride + v * LANES, sums[q][v]);
        }
    }
}

INLINE void value_passes(const Unit *unit, int format, int num_queries, int first_query,
                         const uint8_t *values, const uint8_t *next, int count,
                         const float *weights) {
    int d = 0;
    if (num_queries == 1) {
        for (; d + 8 * LANES <= unit->head_dim; d += 8 * LANES) {
            value_pass(unit, format, num_queries, 8, first_query, d, values, next, count, weights);
        }
    }
    for (; d + 4 * LANES <= unit->head_dim; d += 4 * LANES) {
        value_pass(unit, format, num_queries, 4, first_query, d, values, next, count, weights);
    }
    for (; d + 2 * LANES <= unit->head_dim; d += 2 * LANES) {
        value_pass(unit, format, num_queries, 2, first_query, d, values, next, count, weights);
    }
    for (; d < unit->head_dim; d += LANES) {
        value_pass(unit, format, num_queries, 1, first_query, d, values, next, count, weights);
    }
}

/* Queries are taken in as few passes as possible, of equal numbers. */
INLINE int pass_queries(int remaining) {
    int passes = (remaining + MAX_PASS_QUERIES - 1) / MAX_PASS_QUERIES;
    return (remaining + passes - 1) / passes;
}

INLINE void score_keys(const Unit *unit, int format, const uint8_t *keys, const uint8_t *next,
                       int count, float *scores) {
    for (int q = 0, n; q < unit->num_queries; q += n) {
        n = pass_queries(unit->num_queries - q);
        if (n == 1) score_pass(unit, format, 1, q, keys, next, count, scores);
        if (n == 2) score_pass(unit, format, 2, q, keys, next, count, scores);
        if (n == 3) score_pass(unit, format, 3, q, keys, next, count, scores);
        if (n == MAX_PASS_QUERIES && n > 3) {
            score_pass(unit, format, MAX_PASS_QUERIES, q, keys, next, count, scores);
        }
    }
}

INLINE void add_values(const Unit *unit, int format, const uint8_t *values, const uint8_t *next,
                       int count, const float *weights) {
    for (int q = 0, n; q < unit->num_queries; q += n) {
        n = pass_queries(unit->num_queries - q);
        if (n == 1) value_passes(unit, format, 1, q, values, next, count, weights);
        if (n == 2) value_passes(unit, format, 2, q, values, next, count, weights);
        if (n == 3) value_passes(unit, format, 3, q, values, next, count, weights);
        if (n == MAX_PASS_QUERIES && n > 3) {
            value_passes(unit, format, MAX_PASS_QUERIES, q, values, next, count, weights);
        }
    }
}

typedef void Kernel(const Unit *unit, const uint8_t *rows, const uint8_t *next, int count,
                    float *scores);

#define KERNELS(format)                                                                        \
    static void score_keys_##format(const Unit *unit, const uint8_t *rows, const uint8_t *next, \
                                    int count, float *scores) {                                \
        score_keys(unit, KV_##format, rows, next, count, scores);                              \
    }                                                                                          \
    static void add_values_##format(const Unit *unit, const uint8_t *rows, const uint8_t *next, \
                                    int count, float *weights) {                               \
        add_values(unit, KV_##format, rows, next, count, weights);                             \
    }
KERNELS(F32)
KERNELS(F16)
KERNELS(BF16)
KERNELS(INT8)
KERNELS(FP8)

/* By enum KVFormat; rows of KV_INT5 are unpacked to those of KV_INT8 first. */
static Kernel *const key_kernels[] = {score_keys_F32, score_keys_F16, score_keys_BF16,
                                      score_keys_INT8, score_keys_FP8, score_keys_INT8};
static Kernel *const value_kernels[] = {add_values_F32, add_values_F16, add_values_BF16,
                                        add_values_INT8, add_values_FP8, add_values_INT8};

/* The same as `visit_blocks` for KV_INT5. */
static void visit_packed_blocks(const AttentionOp *op, const Span *span, int head, TokenRange range,
                                const Unit *unit, Kernel *kernel) {
    for (int token = range.first, count; token < range.end; token += count) {
        count = tokens_in_block(op, token, range.end);
        const uint8_t *rows = row_elements(op, token_row(op, span, head, token));
        const uint8_t *bits = token_bits(op, span, head, token);
        unpack_rows(rows, bits, head < op->num_kv_heads, op->head_dim, count, unit->unpacked);
        const uint8_t *unpacked = (const uint8_t *)unit->unpacked;
        kernel(unit, unpacked, unpacked, count, unit->scores + token - range.first);
    }
}

/* Call a kernel for each part of `range` that lies in one block. `head` counts as in `cache_row`.
   The kernel prefetches what comes next: the next block, after the last one `after`. */
static void visit_blocks(const AttentionOp *op, const Span *span, int head, TokenRange range,
                         const Unit *unit, Kernel *kernel, const uint8_t *after) {
    const uint8_t *rows = row_elements(op, token_row(op, span, head, range.first)), *next;
    if (op->cache.format == KV_INT5) {
        visit_packed_blocks(op, span, head, range, unit, kernel);
        return;
    }
    for (int token = range.first, count; token < range.end; token += count, rows = next) {
        count = tokens_in_block(op, token, range.end);
        int is_last = token + count == range.end;
        next = is_last ? after : row_elements(op, token_row(op, span, head, token + count));
        kernel(unit, rows, next, count, unit->scores + token - range.first);
    }
}

/* Copy the scales of the rows of `range`; zeros follow them. */
static void gather_scales(const AttentionOp *op, const Span *span, int head, TokenRange range,
                          float *scales) {
    const LayerCache *cache = &op->cache;
    for (int token = range.first, count; token < range.end; token += count) {
        count = tokens_in_block(op, token, range.end);
        const float *from = cache->scales + token_row(op, span, head, token);
        for (int i = 0; i < count; i++) {
            scales[token - range.first + i] = row_scale(cache->format, from[i]);
        }
    }
    memset(scales + range.end - range.first, 0, 16 * sizeof(float));
}

/* Turn a query's raw scores into weights exp(score - max), times the values' scales; scale the
   partial result to the new maximum. */
static void weigh(const AttentionOp *op, const Unit *unit, int query, int head, int distance,
                  int count) {
    const int padded = round_up_lanes(count), head_dim = padded_head_dim(op);
    float *scores = unit->scores + query * UNIT_STRIDE;
    float *partial = unit->partials + query * unit->partial_stride;
    const Floats cap = broadcast(op->softcap);
    const Floats slope = broadcast(op->slopes ? op->slopes[head] : 0);
    Floats largest = broadcast(partial[head_dim]), sum = {0};
    for (int i = 0; i < padded; i += LANES) {
        Floats score = load_floats(scores + i);
        if (op->cache.scales) score *= load_floats(unit->key_scales + i);
        if (op->softcap != 0) score = cap * tanh_floats(score / cap);
        if (op->slopes) score = add_product(score, slope, lane_numbers(distance + i));
        score = select_floats(lane_numbers(i) < (float)count, score, broadcast(-INFINITY));
        store_floats(scores + i, score);
        largest = max_floats(score, largest);
    }
    const Floats max = broadcast(max_element(largest));
    for (int i = 0; i < padded; i += LANES) {
        Floats weight = exp_floats(load_floats(scores + i) - max);
        sum += weight;
        if (op->cache.scales) weight *= load_floats(unit->value_scales + i);
        store_floats(scores + i, weight);
    }
    const float factor = exp_floats(broadcast(partial[head_dim]) - max)[0];
    for (int d = 0; d < head_dim; d += LANES) {
        store_floats(partial + d, load_floats(partial + d) * factor);
    }
    partial[head_dim] = max[0];
    partial[head_dim + 1] = partial[head_dim + 1] * factor + add_elements(sum);
}

/* Place the arrays of a unit in `memory` and fill in the queries. */
static Unit prepare_unit(const AttentionOp *op, const float *row, float *partials,
                         uint8_t *memory) {
    const int group = group_size(op), stride = padded_head_dim(op);
    Unit unit = {.num_queries = group, .head_dim = op->head_dim, .stride = stride};
    unit.partial_stride = partial_floats(op);
    unit.partials = partials;
    unit.queries = (float *)(void *)memory;
    unit.scores = unit.queries + group * stride;
    unit.key_scales = unit.scores + group * UNIT_STRIDE;
    unit.value_scales = unit.key_scales + UNIT_STRIDE;
    unit.unpacked = (int8_t *)(void *)(unit.value_scales + UNIT_STRIDE);
    for (int q = 0; q < group; q++, row += op->head_dim) {
        float *query = unit.queries + q * stride;
        memset(query + stride - 16, 0, 16 * sizeof(float));
        for (int d = 0; d < op->head_dim; d++) query[d] = op->scale * row[d];
    }
    return unit;
}

void attend_decode(const AttentionOp *op, const Run *run, const Span *span, int index, int kv_head,
                   TokenRange range, float *partials, uint8_t *memory) {
    const int format = op->cache.format, first_head = kv_head * group_size(op);
    const int value_head = op->num_kv_heads + kv_head;
    const float *row = query_row(op, run, span->first_row + index) + first_head * op->head_dim;
    const Unit unit = prepare_unit(op, row, partials, memory);
    TokenRange part = range;
    for (; part.first < range.end; part.first = part.end) {
        part.end = min_int(range.end, (part.first / SPLIT_TOKENS + 1) * SPLIT_TOKENS);
        const int64_t values = token_row(op, span, value_head, part.first);
        visit_blocks(op, span, kv_head, part, &unit, key_kernels[format],
                     row_elements(op, values));
        if (op->cache.scales) {
            gather_scales(op, span, kv_head, part, unit.key_scales);
            gather_scales(op, span, value_head, part, unit.value_scales);
        }
        int distance = part.first - row_position(span, index);
        for (int q = 0; q < unit.num_queries; q++) {
            weigh(op, &unit, q, first_head + q, distance, part.end - part.first);
        }
        const int64_t keys = token_row(op, span, kv_head, min_int(part.end, range.end - 1));
        visit_blocks(op, span, value_head, part, &unit, value_kernels[format],
                     row_elements(op, keys));
    }
}

void clear_partial(const AttentionOp *op, float *partial) {
    const int head_dim = padded_head_dim(op);
    memset(partial, 0, (size_t)partial_floats(op) * sizeof(float));
    partial[head_dim] = -INFINITY;
}

void add_partial(const AttentionOp *op, float *sum, const float *partial) {
    const int head_dim = padded_head_dim(op);
    const float max = sum[head_dim] > partial[head_dim] ? sum[head_dim] : partial[head_dim];
    const Floats old = exp_floats(broadcast(sum[head_dim] - max));
    const Floats new = exp_floats(broadcast(partial[head_dim] - max));
    for (int d = 0; d < head_dim; d += LANES) {
        Floats scaled = load_floats(sum + d) * old;
        store_floats(sum + d, add_product(scaled, load_floats(partial + d), new));
    }
    sum[head_dim] = max;
    sum[head_dim + 1] = sum[head_dim + 1] * old[0] + partial[head_dim + 1] * new[0];
}

void finish_partial(const AttentionOp *op, int head, float *partial, float *out) {
    const int head_dim = padded_head_dim(op);
    if (op->sinks) {
        /* A sink is a score whose value is zero: it counts in the denominator only. */
        partial[head_dim + 1] += expf(op->sinks[head] - partial[head_dim]);
    }
    const float factor = 1.0f / partial[head_dim + 1];
    for (int d = 0; d < op->head_dim; d++) out[d] = partial[d] * factor;
    if (op->cache.format == KV_INT5) rotate_by_hadamard(out, op->head_dim);
}
