/* Attention of many rows: FlashAttention (Dao, 2023, arXiv:2307.08691), queries as vector lanes.

   A thread takes a tile of queries and goes through the context in units, which it converts to fp32
   once. For each panel of the tile, PANEL queries:
     scores [keys][PANEL] = K [keys][head_dim] * queries [head_dim][PANEL]
     maximums, exponentials and their sums, element by element: there is no sum over lanes
     sums [head_dim][PANEL] = sums * old + new * (transposed V [head_dim][keys] * scores [keys][PANEL])
   Both matrix products broadcast an element of K or V, so neither K nor V is transposed. The sums
   of a query are in the order of d, or of the tokens, whatever tile it is in: a masked token adds
   zero, and is left out where no query of the panel sees it. */
#include "attention.h"

#if defined(__AVX512F__) || defined(__aarch64__)
enum { PRODUCT_ROWS = 8, PANEL_VECTORS = 3 }; /* sums for which there are registers: 24 of 32 */
#else
/* 12 of 16. With 4 x 3 all 16 are in use, and clang spills: half the speed. */
enum { PRODUCT_ROWS = 6, PANEL_VECTORS = 2 };
#endif
enum {
    PANEL = PANEL_VECTORS * LANES,
    KEY_ROWS = UNIT_TOKENS + PRODUCT_ROWS, /* so many are multiplied at most */
    MAX_TILE_QUERIES = 192,
};

/* The partial results of a panel. */
typedef struct {
    float *sums; /* [stride][PANEL] */
    float max[PANEL], denominator[PANEL];
} Partials;

/* By what partial results are multiplied before they are added. */
typedef struct {
    float old[PANEL], new[PANEL];
} Factors;

typedef struct {
    int num_queries; /* more lanes repeat the last one's tokens; their queries are zero */
    int num_vectors;
    float *queries; /* [stride][PANEL], times the scale */
    Partials all, split; /* of the splits that are complete, and of one that has several units */
    float slope[PANEL];
    int32_t position[PANEL], first[PANEL], end[PANEL]; /* of visible tokens */
} Panel;

typedef struct {
    int num_panels, stride;
    Panel *panels;
    float *scores;        /* [KEY_ROWS][PANEL] */
    float *keys, *values; /* [KEY_ROWS][stride] */
    float key_scales[UNIT_TOKENS], value_scales[UNIT_TOKENS];
    int8_t *unpacked; /* [UNIT_TOKENS][head_dim] with KV_INT5 */
} Tile;

/* Not a power of two, so that the rows of K and V spread over the sets of the cache. The elements
   of a row that follow head_dim are multiplied too, but their sums are not used. */
static int tile_stride(const AttentionOp *op) { return padded_head_dim(op) + 16; }

static int max_tile_panels(const AttentionOp *op) {
    /* The queries and sums of a tile stay in the second-level cache. */
    int queries = min_int(MAX_TILE_QUERIES, 32768 / op->head_dim);
    return max_int(1, queries / PANEL);
}

int queries_per_tile(const AttentionOp *op, const Run *run) {
    int64_t queries = (int64_t)run->num_tokens * op->num_heads;
    int panels = (int)(queries / (4 * (int64_t)run->num_threads) / PANEL);
    return max_int(1, min_int(panels, max_tile_panels(op))) * PANEL;
}

size_t prefill_memory_bytes(const AttentionOp *op) {
    const size_t stride = (size_t)tile_stride(op), panels = (size_t)max_tile_panels(op);
    size_t floats = KEY_ROWS * (2 * stride + PANEL) + panels * 3 * stride * PANEL;
    size_t unpacked = op->cache.format == KV_INT5 ? (size_t)UNIT_TOKENS * op->head_dim : 0;
    return panels * round_up_64(sizeof(Panel)) + floats * sizeof(float) + unpacked;
}

/* c[r][v] = sum over k of a(r, k) * b[k][v], for PRODUCT_ROWS rows and `num_vectors` vectors; a(r, k)
   is a[r * row_stride + k * depth_stride]. With `factors` c[r][v] = old * c[r][v] + new * the sum. */
INLINE void multiply_by(int num_vectors, const float *a, int row_stride, int depth_stride,
                        const float *b, int depth, float *c, const Factors *factors) {
    Floats sums[PRODUCT_ROWS][PANEL_VECTORS] = {0};
    for (int k = 0; k < depth; k++, a += depth_stride, b += PANEL) {
        Floats vectors[PANEL_VECTORS];
        for (int v = 0; v < num_vectors; v++) vectors[v] = load_floats(b + v * LANES);
        for (int r = 0; r < PRODUCT_ROWS; r++) {
            Floats element = broadcast(a[r * row_stride]);
            for (int v = 0; v < num_vectors; v++) {
                sums[r][v] = add_product(sums[r][v], element, vectors[v]);
            }
        }
    }
    for (int r = 0; r < PRODUCT_ROWS; r++) {
        for (int v = 0; v < num_vectors; v++) {
            float *to = c + r * PANEL + v * LANES;
            if (factors) {
                Floats scaled = load_floats(to) * load_floats(factors->old + v * LANES);
                sums[r][v] = add_product(scaled, sums[r][v], load_floats(factors->new + v * LANES));
            }
            store_floats(to, sums[r][v]);
        }
    }
}

/* Functions of their own, because the sums need all registers. */
typedef void Multiply(const float *a, int row_stride, int depth_stride, const float *b, int depth,
                      float *c, const Factors *factors);
#define MULTIPLY(name, num_vectors)                                                                \
    static __attribute__((noinline)) void name(const float *a, int row_stride, int depth_stride,   \
                                               const float *b, int depth, float *c,                \
                                               const Factors *factors) {                           \
        multiply_by(num_vectors, a, row_stride, depth_stride, b, depth, c, factors);               \
    }
MULTIPLY(multiply_panel, PANEL_VECTORS)
MULTIPLY(multiply_two, 2)
MULTIPLY(multiply_one, 1)

/* Multiply the scores [num_keys][PANEL] by the scales of the keys. */
INLINE void scale_scores(const float *scales, int num_vectors, int num_keys, float *scores) {
    for (int k = 0; k < num_keys; k++) {
        const Floats scale = broadcast_float(scales + k);
        for (int v = 0; v < num_vectors; v++) {
            float *place = scores + k * PANEL + v * LANES;
            store_floats(place, load_floats(place) * scale);
        }
    }
}

/* Apply the soft cap and ALiBi's bias to scores [num_keys][PANEL]. */
INLINE void adjust_scores(const AttentionOp *op, const Panel *panel, int num_vectors,
                          int first_token, int num_keys, float *scores) {
    const Floats cap = broadcast(op->softcap);
    for (int k = 0; k < num_keys; k++) {
        for (int v = 0; v < num_vectors; v++) {
            float *place = scores + k * PANEL + v * LANES;
            Floats score = load_floats(place);
            if (op->softcap != 0) score = cap * tanh_floats(score / cap);
            if (op->slopes) {
                Ints distance = first_token + k - load_ints(panel->position + v * LANES);
                Floats slope = load_floats(panel->slope + v * LANES);
                score = add_product(score, slope, __builtin_convertvector(distance, Floats));
            }
            store_floats(place, score);
        }
    }
}

/* Set the scores of tokens that a query does not see to -inf. */
INLINE void mask_scores(const Panel *panel, int num_vectors, int first_token, int num_keys,
                        float *scores) {
    for (int k = 0; k < num_keys; k++) {
        for (int v = 0; v < num_vectors; v++) {
            float *place = scores + k * PANEL + v * LANES;
            Ints first = load_ints(panel->first + v * LANES) - (first_token + k);
            Ints end = load_ints(panel->end + v * LANES) - (first_token + k);
            Ints is_visible = (first <= 0) & (end > 0);
            Floats score = select_floats(is_visible, load_floats(place), broadcast(-INFINITY));
            store_floats(place, score);
        }
    }
}

/* Clear partial results, whose sums are [stride][PANEL]: no token was seen. */
static void clear_partials(Partials *partials, int stride) {
    for (int lane = 0; lane < PANEL; lane++) {
        partials->max[lane] = -0x1p127f; /* not -inf: -inf - -inf is NaN */
        partials->denominator[lane] = 0;
    }
    memset(partials->sums, 0, (size_t)stride * PANEL * sizeof(float));
}

/* Add the maximum and the denominator of other partial results, and find the factors for their
   sums: `add_partial` of lanes. */
INLINE void join(Partials *to, const Floats *max, const Floats *denominator, int num_vectors,
                 Factors *factors) {
    for (int v = 0; v < num_vectors; v++) {
        Floats before = load_floats(to->max + v * LANES);
        Floats larger = max_floats(before, max[v]);
        Floats old = exp_floats(before - larger), new = exp_floats(max[v] - larger);
        Floats sum = load_floats(to->denominator + v * LANES) * old + denominator[v] * new;
        store_floats(to->max + v * LANES, larger);
        store_floats(to->denominator + v * LANES, sum);
        store_floats(factors->old + v * LANES, old);
        store_floats(factors->new + v * LANES, new);
    }
}

/* Turn the scores [num_keys][PANEL] of a unit into exp(score - max), times the values' scales, if
   any; add the maximums and sums to the partial results. */
INLINE void weigh(Partials *to, const float *value_scales, int num_vectors, int num_keys,
                  float *scores, Factors *factors) {
    Floats max[PANEL_VECTORS], sums[4][PANEL_VECTORS] = {0};
    for (int v = 0; v < num_vectors; v++) max[v] = broadcast(-0x1p127f);
    for (int k = 0; k < num_keys; k++) {
        for (int v = 0; v < num_vectors; v++) {
            max[v] = max_floats(load_floats(scores + k * PANEL + v * LANES), max[v]);
        }
    }
    for (int k = 0; k < num_keys; k += 4) {
        for (int i = 0; i < 4 && k + i < num_keys; i++) {
            float *place = scores + (k + i) * PANEL;
            for (int v = 0; v < num_vectors; v++) {
                Floats weight = exp_floats(load_floats(place + v * LANES) - max[v]);
                sums[i][v] += weight;
                if (value_scales) weight *= broadcast_float(value_scales + k + i);
                store_floats(place + v * LANES, weight);
            }
        }
    }
    for (int v = 0; v < num_vectors; v++) {
        sums[0][v] = (sums[0][v] + sums[1][v]) + (sums[2][v] + sums[3][v]);
    }
    join(to, max, sums[0], num_vectors, factors);
}

/* Add the unit that the tile has converted, tokens first_token .. first_token + num_keys, to partial
   results of a panel. */
INLINE void attend_panel(const AttentionOp *op, const Tile *tile, Panel *panel, Partials *to,
                         int num_vectors, Multiply *multiply, int first_token, int num_keys) {
    const int last = panel->num_queries - 1, stride = tile->stride, has_scales = op->cache.scales != NULL;
    Factors factors;
    /* Later rows see later tokens: the last row's limits are the largest. */
    num_keys = min_int(num_keys, panel->end[last] - first_token);
    if (first_token + num_keys <= panel->first[0] || num_keys <= 0) return;
    for (int k = 0; k < num_keys; k += PRODUCT_ROWS) {
        multiply(tile->keys + k * stride, stride, 1, panel->queries, op->head_dim,
                 tile->scores + k * PANEL, NULL);
    }
    if (has_scales) scale_scores(tile->key_scales, num_vectors, num_keys, tile->scores);
    if (op->softcap != 0 || op->slopes) {
        adjust_scores(op, panel, num_vectors, first_token, num_keys, tile->scores);
    }
    if (first_token < panel->first[last] || first_token + num_keys > panel->end[0]) {
        mask_scores(panel, num_vectors, first_token, num_keys, tile->scores);
    }
    weigh(to, has_scales ? tile->value_scales : NULL, num_vectors, num_keys, tile->scores, &factors);
    for (int d = 0; d < op->head_dim; d += PRODUCT_ROWS) {
        multiply(tile->values + d, 1, stride, tile->scores, num_keys, to->sums + d * PANEL, &factors);
    }
}

/* Add the split of a panel, which is complete, to all. */
static void join_split(const AttentionOp *op, Panel *panel) {
    Partials *all = &panel->all, *split = &panel->split;
    Floats max[PANEL_VECTORS], denominator[PANEL_VECTORS];
    Factors factors;
    for (int v = 0; v < panel->num_vectors; v++) {
        max[v] = load_floats(split->max + v * LANES);
        denominator[v] = load_floats(split->denominator + v * LANES);
    }
    join(all, max, denominator, panel->num_vectors, &factors);
    for (int d = 0; d < op->head_dim; d++) {
        for (int v = 0; v < panel->num_vectors; v++) {
            float *sum = all->sums + d * PANEL + v * LANES;
            Floats scaled = load_floats(sum) * load_floats(factors.old + v * LANES);
            Floats added = load_floats(split->sums + d * PANEL + v * LANES);
            store_floats(sum, add_product(scaled, added, load_floats(factors.new + v * LANES)));
        }
    }
}

/* Convert rows to fp32 [..][stride], without their scales. */
INLINE void convert_rows(const AttentionOp *op, int format, const uint8_t *from, int num_rows,
                         float *to, int stride) {
    const int bytes = element_bytes(format);
    for (int t = 0; t < num_rows; t++, from += op->head_dim * bytes, to += stride) {
        int d = 0;
        for (; d + LANES <= op->head_dim; d += LANES) {
            store_floats(to + d, load_elements(format, from + d * bytes));
        }
        if (d < op->head_dim) {
            store_floats(to + d, load_last_elements(format, from + d * bytes, op->head_dim - d));
        }
    }
}

/* Convert the rows of tokens range.first .. range.end of a head, which counts as in `cache_row`, and
   copy their scales, if any. */
static void convert_unit(const AttentionOp *op, const Span *span, int head, TokenRange range,
                         int8_t *unpacked, float *to, int stride, float *scales) {
    const LayerCache *cache = &op->cache;
    for (int token = range.first, count; token < range.end; token += count, to += count * stride) {
        count = tokens_in_block(op, token, range.end);
        const int64_t row = token_row(op, span, head, token);
        const uint8_t *from = row_elements(op, row);
        switch (cache->format) {
        case KV_F32: convert_rows(op, KV_F32, from, count, to, stride); break;
        case KV_F16: convert_rows(op, KV_F16, from, count, to, stride); break;
        case KV_BF16: convert_rows(op, KV_BF16, from, count, to, stride); break;
        case KV_INT8: convert_rows(op, KV_INT8, from, count, to, stride); break;
        case KV_FP8: convert_rows(op, KV_FP8, from, count, to, stride); break;
        case KV_INT5:
            unpack_rows(from, token_bits(op, span, head, token), head < op->num_kv_heads,
                        op->head_dim, count, unpacked);
            convert_rows(op, KV_INT8, (const uint8_t *)unpacked, count, to, stride);
            break;
        }
        for (int i = 0; cache->scales && i < count; i++) {
            *scales++ = row_scale(cache->format, cache->scales[row + i]);
        }
    }
}

/* Lay a tile out in `memory`. */
static Tile place_tile(const AttentionOp *op, int num_queries, uint8_t *memory) {
    const int stride = tile_stride(op);
    Tile tile = {.num_panels = (num_queries + PANEL - 1) / PANEL, .stride = stride};
    float *next = (float *)(void *)memory;
    tile.scores = next, next += KEY_ROWS * PANEL;
    tile.keys = next, next += KEY_ROWS * stride;
    tile.values = next, next += KEY_ROWS * stride;
    tile.panels = (Panel *)(void *)(next + tile.num_panels * 3 * stride * PANEL);
    tile.unpacked = (int8_t *)(void *)(tile.panels + tile.num_panels);
    for (int p = 0; p < tile.num_panels; p++, next += 3 * stride * PANEL) {
        Panel *panel = tile.panels + p;
        panel->num_queries = min_int(PANEL, num_queries - p * PANEL);
        panel->num_vectors = (panel->num_queries + LANES - 1) / LANES;
        panel->queries = next;
        panel->all.sums = next + stride * PANEL;
        panel->split.sums = next + 2 * stride * PANEL;
        memset(panel->queries, 0, (size_t)stride * PANEL * sizeof(float));
        clear_partials(&panel->all, stride);
    }
    return tile;
}

/* Fill in the queries of a panel, which begins at query `first_query`. */
static void load_panel(const AttentionOp *op, const Run *run, const Span *span, int kv_head,
                       int first_query, Panel *panel) {
    const int group = group_size(op);
    for (int lane = 0; lane < PANEL; lane++) {
        int query = first_query + min_int(lane, panel->num_queries - 1);
        int index = query / group, head = kv_head * group + query % group;
        TokenRange visible = visible_tokens(op, span, index);
        panel->first[lane] = visible.first;
        panel->end[lane] = visible.end;
        panel->position[lane] = row_position(span, index);
        panel->slope[lane] = op->slopes ? op->slopes[head] : 0;
        if (lane >= panel->num_queries) continue;
        const float *row = query_row(op, run, span->first_row + index) + head * op->head_dim;
        float *queries = panel->queries + lane;
        for (int d = 0; d < op->head_dim; d++) queries[d * PANEL] = op->scale * row[d];
    }
}

/* Write the results of a panel. */
static void store_panel(const AttentionOp *op, const Run *run, const Span *span, int kv_head,
                        int first_query, const Panel *panel) {
    const int group = group_size(op);
    for (int lane = 0; lane < panel->num_queries; lane++) {
        int query = first_query + lane;
        int index = query / group, head = kv_head * group + query % group;
        float denominator = panel->all.denominator[lane];
        if (op->sinks) denominator += expf(op->sinks[head] - panel->all.max[lane]);
        float *out = output_row(op, run, span->first_row + index) + head * op->head_dim;
        const float factor = 1.0f / denominator;
        for (int d = 0; d < op->head_dim; d++) out[d] = panel->all.sums[d * PANEL + lane] * factor;
        if (op->cache.format == KV_INT5) rotate_by_hadamard(out, op->head_dim);
    }
}

/* Add the unit that the tile has converted to the partial results of all panels: of a split that
   has several units, or of all. */
static void attend_unit(const AttentionOp *op, const Tile *tile, int is_part, int first_token,
                        int num_keys) {
    for (int p = 0; p < tile->num_panels; p++) {
        Panel *panel = tile->panels + p;
        Partials *to = is_part ? &panel->split : &panel->all;
        if (panel->num_vectors == PANEL_VECTORS) {
            attend_panel(op, tile, panel, to, PANEL_VECTORS, multiply_panel, first_token, num_keys);
        } else if (panel->num_vectors == 2) {
            attend_panel(op, tile, panel, to, 2, multiply_two, first_token, num_keys);
        } else {
            attend_panel(op, tile, panel, to, 1, multiply_one, first_token, num_keys);
        }
    }
}

/* Convert the keys and values of the tokens of `range` that are in the unit from `start` on. */
static void load_unit(const AttentionOp *op, const Span *span, int kv_head, int start,
                      TokenRange range, Tile *tile) {
    TokenRange unit = {max_int(range.first, start), min_int(range.end, start + UNIT_TOKENS)};
    const int skipped = unit.first - start, stride = tile->stride;
    memset(tile->keys, 0, (size_t)skipped * stride * sizeof(float));
    memset(tile->values, 0, (size_t)skipped * stride * sizeof(float));
    memset(tile->key_scales, 0, (size_t)skipped * sizeof(float));
    memset(tile->value_scales, 0, (size_t)skipped * sizeof(float));
    convert_unit(op, span, kv_head, unit, tile->unpacked, tile->keys + skipped * stride, stride,
                 tile->key_scales + skipped);
    convert_unit(op, span, op->num_kv_heads + kv_head, unit, tile->unpacked,
                 tile->values + skipped * stride, stride, tile->value_scales + skipped);
}

void attend_prefill(const AttentionOp *op, const Run *run, const Span *span, QueryTile tile,
                    uint8_t *memory) {
    Tile tiles = place_tile(op, tile.num_queries, memory);
    for (int p = 0; p < tiles.num_panels; p++) {
        load_panel(op, run, span, tile.kv_head, tile.first_query + p * PANEL, tiles.panels + p);
    }
    const Panel *last = tiles.panels + tiles.num_panels - 1;
    TokenRange all = {tiles.panels[0].first[0], last->end[last->num_queries - 1]};
    /* Keys that follow the last token are multiplied too, and then masked. */
    memset(tiles.keys, 0, (size_t)KEY_ROWS * tiles.stride * sizeof(float));
    int is_begun = 0; /* a split that has several units */
    for (int start = all.first / UNIT_TOKENS * UNIT_TOKENS; start < all.end; start += UNIT_TOKENS) {
        const TokenRange split = split_range(split_at(start));
        const int is_part = split.end - split.first > UNIT_TOKENS;
        for (int p = 0; is_part && !is_begun && p < tiles.num_panels; p++) {
            clear_partials(&tiles.panels[p].split, tiles.stride);
        }
        load_unit(op, span, tile.kv_head, start, all, &tiles);
        attend_unit(op, &tiles, is_part, start, min_int(all.end - start, UNIT_TOKENS));
        const int is_complete = start + UNIT_TOKENS >= min_int(split.end, all.end);
        for (int p = 0; is_part && is_complete && p < tiles.num_panels; p++) {
            join_split(op, tiles.panels + p);
        }
        is_begun = is_part && !is_complete;
    }
    for (int p = 0; p < tiles.num_panels; p++) {
        store_panel(op, run, span, tile.kv_head, tile.first_query + p * PANEL, tiles.panels + p);
    }
}
