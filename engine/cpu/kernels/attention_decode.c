/* Attention of one row, for the query heads of one kv head together: K and V are read once.

   A unit of tokens at a time: scores of all of them, one maximum, exponentials, then the weighted
   sum of values. Keys are vector lanes, so that a score is the sum over d in its order. */
#include "attention.h"
#include "transpose.h"

#if defined(__AVX512F__) || defined(__aarch64__)
enum { MAX_PASS_QUERIES = 4 }; /* queries whose sums fit the registers */
#else
enum { MAX_PASS_QUERIES = 3 };
#endif
enum { KEYS = 16, KEY_VECTORS = KEYS / LANES, UNIT_STRIDE = UNIT_TOKENS + KEYS };

/* What is computed of a unit. The arrays of scores and scales begin at the token `start`. */
typedef struct {
    int num_queries, head_dim, stride; /* floats from query to query */
    int sum_stride;                    /* and from sum to sum: `partial_floats` */
    int start;
    float *queries;      /* [num_queries][stride], times the scale, then zeros */
    float *scores;       /* [num_queries][UNIT_STRIDE] */
    float *key_scales;   /* [UNIT_STRIDE] */
    float *value_scales; /* [UNIT_STRIDE] */
    float *sums;         /* [num_queries][sum_stride]: the partial results of the unit */
    uint8_t *rows;       /* [KEYS][4 * stride]: copies of some keys */
    float *columns;      /* [stride][KEYS]: the words of 32 bits of KEYS keys, transposed */
    int8_t *unpacked;    /* [UNIT_TOKENS][head_dim] with KV_INT5 */
} Unit;

size_t decode_memory_bytes(const AttentionOp *op) {
    const size_t stride = (size_t)padded_head_dim(op), group = (size_t)group_size(op);
    size_t floats = group * (stride + UNIT_STRIDE + (size_t)partial_floats(op)) + 2 * UNIT_STRIDE;
    floats += 2 * KEYS * stride;
    size_t unpacked = op->cache.format == KV_INT5 ? (size_t)UNIT_TOKENS * op->head_dim : 0;
    return floats * sizeof(float) + unpacked;
}

INLINE void prefetch(const uint8_t *from, int num_bytes) {
    for (int i = 0; i < num_bytes; i += 64) __builtin_prefetch(from + i);
}

/* Transpose the words of KEYS keys. If there are fewer, the last one of `count` repeats. */
INLINE void load_keys(const Unit *unit, int row_bytes, const uint8_t *keys, int count) {
    const int padded = (row_bytes + 15) / 16 * 16;
    if (count < KEYS || row_bytes < padded) {
        for (int k = 0; k < KEYS; k++) {
            uint8_t *row = unit->rows + k * padded;
            memset(row + padded - 16, 0, 16);
            memcpy(row, keys + (int64_t)min_int(k, count - 1) * row_bytes, (size_t)row_bytes);
        }
        keys = unit->rows;
    }
    for (int byte = 0; byte < padded; byte += 16) {
        transpose_columns(keys + byte, padded, unit->columns + byte / 4 * KEYS, KEYS);
    }
}

/* scores[q][0 .. KEYS] = queries[q] . the keys that are loaded. */
INLINE void score_pass(const Unit *unit, int format, int num_queries, int first_query,
                       float *scores) {
    const int elements = 4 / element_bytes(format); /* of a word */
    const float *queries = unit->queries + first_query * unit->stride, *column = unit->columns;
    Floats sums[MAX_PASS_QUERIES][KEY_VECTORS] = {0};
    for (int d = 0; d < unit->head_dim; d += elements, column += KEYS) {
        Uints words[KEY_VECTORS];
        for (int v = 0; v < KEY_VECTORS; v++) words[v] = (Uints)load_ints(column + v * LANES);
        for (int e = 0; e < elements; e++) {
            Floats keys[KEY_VECTORS];
            for (int v = 0; v < KEY_VECTORS; v++) keys[v] = word_elements(format, words[v], e);
            for (int q = 0; q < num_queries; q++) {
                Floats query = broadcast_float(queries + q * unit->stride + d + e);
                for (int v = 0; v < KEY_VECTORS; v++) {
                    sums[q][v] = add_product(sums[q][v], keys[v], query);
                }
            }
        }
    }
    for (int q = 0; q < num_queries; q++) {
        for (int v = 0; v < KEY_VECTORS; v++) {
            store_floats(scores + (first_query + q) * UNIT_STRIDE + v * LANES, sums[q][v]);
        }
    }
}

/* unit->sums[q][d ..] += sum over t of weights[q][t] * values[t][d ..], for `num_vectors` of d. */
INLINE void value_pass(const Unit *unit, int format, int num_queries, int num_vectors,
                       int first_query, int d, const uint8_t *values, const uint8_t *next,
                       int count, const float *weights) {
    const int bytes = element_bytes(format), row_bytes = unit->head_dim * bytes;
    const int remaining = unit->head_dim - d;
    float *unit_sums = unit->sums + first_query * unit->sum_stride + d;
    Floats sums[MAX_PASS_QUERIES][8];
    for (int q = 0; q < num_queries; q++) {
        for (int v = 0; v < num_vectors; v++) {
            sums[q][v] = load_floats(unit_sums + q * unit->sum_stride + v * LANES);
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
            store_floats(unit_sums + q * unit->sum_stride + v * LANES, sums[q][v]);
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

/* scores[q][k] = queries[q] . keys[k], for `count` keys; what is written after them is
   meaningless. */
INLINE void score_keys(const Unit *unit, int format, const uint8_t *keys, const uint8_t *next,
                       int count, float *scores) {
    const int64_t row_bytes = unit->head_dim * element_bytes(format);
    for (int k = 0; k < count; k += KEYS, keys += KEYS * row_bytes, next += KEYS * row_bytes) {
        prefetch(next, KEYS * (int)row_bytes);
        load_keys(unit, (int)row_bytes, keys, count - k);
        for (int q = 0, n; q < unit->num_queries; q += n) {
            n = pass_queries(unit->num_queries - q);
            if (n == 1) score_pass(unit, format, 1, q, scores + k);
            if (n == 2) score_pass(unit, format, 2, q, scores + k);
            if (n == 3) score_pass(unit, format, 3, q, scores + k);
            if (n == MAX_PASS_QUERIES && n > 3) score_pass(unit, format, MAX_PASS_QUERIES, q, scores + k);
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
        kernel(unit, unpacked, unpacked, count, unit->scores + token - unit->start);
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
        kernel(unit, rows, next, count, unit->scores + token - unit->start);
    }
}

/* Copy the scales of the rows of `range` to an array of the unit. */
static void gather_scales(const AttentionOp *op, const Span *span, int head, TokenRange range,
                          const Unit *unit, float *scales) {
    const LayerCache *cache = &op->cache;
    for (int token = range.first, count; token < range.end; token += count) {
        count = tokens_in_block(op, token, range.end);
        const float *from = cache->scales + token_row(op, span, head, token);
        for (int i = 0; i < count; i++) {
            scales[token - unit->start + i] = row_scale(cache->format, from[i]);
        }
    }
}

/* Add LANES weights of tokens, those whose numbers are equal modulo 4 one after the other. */
INLINE Floats4 add_weights(Floats4 sums, Floats weights) {
    for (int i = 0; i < LANES; i += 4) {
        Floats4 four;
        memcpy(&four, (const float *)&weights + i, sizeof four);
        sums += four;
    }
    return sums;
}

/* Turn a query's raw scores of the tokens of `range` into weights exp(score - max), times the
   values' scales, and begin its partial result: the largest score, and the sum of the weights. */
static void weigh(const AttentionOp *op, const Unit *unit, int query, int head, int position,
                  TokenRange range) {
    const int first = range.first - unit->start, end = range.end - unit->start;
    const int padded = round_up_lanes(end), head_dim = padded_head_dim(op);
    float *scores = unit->scores + query * UNIT_STRIDE;
    float *partial = unit->sums + query * unit->sum_stride;
    const Floats cap = broadcast(op->softcap);
    const Floats slope = broadcast(op->slopes ? op->slopes[head] : 0);
    Floats largest = broadcast(-INFINITY);
    for (int i = 0; i < padded; i += LANES) {
        Floats score = load_floats(scores + i), number = lane_numbers(i);
        if (op->cache.scales) score *= load_floats(unit->key_scales + i);
        if (op->softcap != 0) score = cap * tanh_floats(score / cap);
        if (op->slopes) {
            score = add_product(score, slope, lane_numbers(unit->start - position + i));
        }
        Ints is_visible = (number >= (float)first) & (number < (float)end);
        score = select_floats(is_visible, score, broadcast(-INFINITY));
        store_floats(scores + i, score);
        largest = max_floats(score, largest);
    }
    const float max = max_element(largest);
    Floats4 sums = {0};
    for (int i = 0; i < padded; i += LANES) {
        Floats weight = exp_floats(load_floats(scores + i) - max);
        sums = add_weights(sums, weight);
        if (op->cache.scales) weight *= load_floats(unit->value_scales + i);
        store_floats(scores + i, weight);
    }
    partial[head_dim] = max;
    partial[head_dim + 1] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* Place the arrays of a unit in `memory` and fill in the queries. */
static Unit prepare_unit(const AttentionOp *op, const float *row, uint8_t *memory) {
    const int group = group_size(op), stride = padded_head_dim(op);
    Unit unit = {.num_queries = group, .head_dim = op->head_dim, .stride = stride};
    unit.sum_stride = partial_floats(op);
    unit.queries = (float *)(void *)memory;
    unit.scores = unit.queries + group * stride;
    unit.key_scales = unit.scores + group * UNIT_STRIDE;
    unit.value_scales = unit.key_scales + UNIT_STRIDE;
    unit.sums = unit.value_scales + UNIT_STRIDE;
    unit.columns = unit.sums + group * unit.sum_stride;
    unit.rows = (uint8_t *)(unit.columns + KEYS * stride);
    unit.unpacked = (int8_t *)(unit.rows + (size_t)4 * KEYS * stride);
    for (int q = 0; q < group; q++, row += op->head_dim) {
        float *query = unit.queries + q * stride;
        memset(query + stride - 16, 0, 16 * sizeof(float));
        for (int d = 0; d < op->head_dim; d++) query[d] = op->scale * row[d];
    }
    return unit;
}

/* Compute the partial results of a unit. */
static void attend_unit(const AttentionOp *op, const Span *span, int index, int kv_head,
                        TokenRange range, const Unit *unit) {
    const int format = op->cache.format, first_head = kv_head * group_size(op);
    const int value_head = op->num_kv_heads + kv_head;
    const uint8_t *values = row_elements(op, token_row(op, span, value_head, range.first));
    visit_blocks(op, span, kv_head, range, unit, key_kernels[format], values);
    if (op->cache.scales) {
        gather_scales(op, span, kv_head, range, unit, unit->key_scales);
        gather_scales(op, span, value_head, range, unit, unit->value_scales);
    }
    memset(unit->sums, 0, (size_t)unit->num_queries * unit->sum_stride * sizeof(float));
    for (int q = 0; q < unit->num_queries; q++) {
        weigh(op, unit, q, first_head + q, row_position(span, index), range);
    }
    const int next = min_int(range.end, visible_tokens(op, span, index).end - 1);
    const uint8_t *keys = row_elements(op, token_row(op, span, kv_head, next));
    visit_blocks(op, span, value_head, range, unit, value_kernels[format], keys);
}

void attend_decode(const AttentionOp *op, const Run *run, const Span *span, int index, int kv_head,
                   TokenRange range, float *partials, uint8_t *memory) {
    const int first_head = kv_head * group_size(op), size = partial_floats(op);
    const float *row = query_row(op, run, span->first_row + index) + first_head * op->head_dim;
    Unit unit = prepare_unit(op, row, memory);
    unit.start = range.first / UNIT_TOKENS * UNIT_TOKENS;
    for (int end; unit.start < range.end; unit.start = end) {
        end = unit.start + UNIT_TOKENS;
        TokenRange part = {max_int(range.first, unit.start), min_int(range.end, end)};
        attend_unit(op, span, index, kv_head, part, &unit);
        for (int q = 0; q < unit.num_queries; q++) {
            add_partial(op, partials + q * size, unit.sums + q * size);
        }
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
