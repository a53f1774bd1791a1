/* Attention of many rows: FlashAttention (Dao, 2023, arXiv:2307.08691), queries as vector lanes.

   A thread takes a tile of queries and goes through the context in blocks of BLOCK_KEYS, which it
   converts to fp32 once. For each panel of the tile, PANEL queries:
     scores [keys][PANEL] = K [keys][head_dim] * queries [head_dim][PANEL]
     maximums, exponentials and their sums, element by element: there is no sum over lanes
     sums [head_dim][PANEL] = sums * factor + transposed V [head_dim][keys] * scores [keys][PANEL]
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
enum { PANEL = PANEL_VECTORS * LANES, BLOCK_KEYS = 96, MAX_TILE_QUERIES = 192 };

typedef struct {
    int num_queries; /* more lanes repeat the last one's tokens; their queries are zero */
    int num_vectors;
    float *queries; /* [stride][PANEL], times the scale */
    float *sums;    /* [stride][PANEL] */
    float max[PANEL], denominator[PANEL], slope[PANEL];
    int32_t position[PANEL], first[PANEL], end[PANEL]; /* of visible tokens */
} Panel;

typedef struct {
    int num_panels, stride;
    Panel *panels;
    float *scores;        /* [BLOCK_KEYS][PANEL] */
    float *keys, *values; /* [BLOCK_KEYS][stride] */
    int8_t *unpacked;     /* [BLOCK_KEYS][head_dim] with KV_INT5 */
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
    size_t floats = BLOCK_KEYS * (2 * stride + PANEL) + panels * 2 * stride * PANEL;
    size_t unpacked = op->cache.format == KV_INT5 ? (size_t)BLOCK_KEYS * op->head_dim : 0;
    return panels * round_up_64(sizeof(Panel)) + floats * sizeof(float) + unpacked;
}

/* c[r][v] = factor * c[r][v] + sum over k of a(r, k) * b[k][v], for PRODUCT_ROWS rows and
   `num_vectors` vectors; a(r, k) is a[r * row_stride + k * depth_stride]. c [..][PANEL] is not read
   without `factor`. */
INLINE void multiply_by(int num_vectors, const float *a, int row_stride, int depth_stride,
                        const float *b, int depth, float *c, const float *factor) {
    Floats sums[PRODUCT_ROWS][PANEL_VECTORS] = {0};
    for (int r = 0; factor && r < PRODUCT_ROWS; r++) {
        for (int v = 0; v < num_vectors; v++) {
            sums[r][v] = load_floats(c + r * PANEL + v * LANES) * load_floats(factor + v * LANES);
        }
    }
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
        for (int v = 0; v < num_vectors; v++) store_floats(c + r * PANEL + v * LANES, sums[r][v]);
    }
}

/* Functions of their own, because the sums need all registers. */
typedef void Multiply(const float *a, int row_stride, int depth_stride, const float *b, int depth,
                      float *c, const float *factor);
#define MULTIPLY(name, num_vectors)                                                                \
    static __attribute__((noinline)) void name(const float *a, int row_stride, int depth_stride,   \
                                               const float *b, int depth, float *c,                \
                                               const float *factor) {                              \
        multiply_by(num_vectors, a, row_stride, depth_stride, b, depth, c, factor);                \
    }
MULTIPLY(multiply_panel, PANEL_VECTORS)
MULTIPLY(multiply_two, 2)
MULTIPLY(multiply_one, 1)

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

/* Turn scores [num_keys][PANEL] into exp(score - max), and update the maximums and denominators.
   `factor` [PANEL] becomes what earlier sums must be multiplied by. */
INLINE void weigh(Panel *panel, int num_vectors, int num_keys, float *scores, float *factor) {
    Floats max[PANEL_VECTORS], sum[PANEL_VECTORS];
    for (int v = 0; v < num_vectors; v++) max[v] = load_floats(panel->max + v * LANES);
    for (int k = 0; k < num_keys; k++) {
        for (int v = 0; v < num_vectors; v++) {
            max[v] = max_floats(load_floats(scores + k * PANEL + v * LANES), max[v]);
        }
    }
    for (int v = 0; v < num_vectors; v++) {
        Floats scale = exp_floats(load_floats(panel->max + v * LANES) - max[v]);
        sum[v] = load_floats(panel->denominator + v * LANES) * scale;
        store_floats(factor + v * LANES, scale);
        store_floats(panel->max + v * LANES, max[v]);
    }
    for (int k = 0; k < num_keys; k++) {
        for (int v = 0; v < num_vectors; v++) {
            float *place = scores + k * PANEL + v * LANES;
            Floats weight = exp_floats(load_floats(place) - max[v]);
            sum[v] += weight;
            store_floats(place, weight);
        }
    }
    for (int v = 0; v < num_vectors; v++) {
        store_floats(panel->denominator + v * LANES, sum[v]);
    }
}

/* Add a block of the tile, tokens first_token .. first_token + num_keys, to a panel's sums. */
INLINE void attend_panel(const AttentionOp *op, const Tile *tile, Panel *panel, int num_vectors,
                         Multiply *multiply, int first_token, int num_keys) {
    const int last = panel->num_queries - 1, stride = tile->stride;
    float factor[PANEL];
    /* Later rows see later tokens: the last row's limits are the largest. */
    num_keys = min_int(num_keys, panel->end[last] - first_token);
    if (first_token + num_keys <= panel->first[0] || num_keys <= 0) return;
    for (int k = 0; k < num_keys; k += PRODUCT_ROWS) {
        multiply(tile->keys + k * stride, stride, 1, panel->queries, op->head_dim,
                 tile->scores + k * PANEL, NULL);
    }
    if (op->softcap != 0 || op->slopes) {
        adjust_scores(op, panel, num_vectors, first_token, num_keys, tile->scores);
    }
    if (first_token < panel->first[last] || first_token + num_keys > panel->end[0]) {
        mask_scores(panel, num_vectors, first_token, num_keys, tile->scores);
    }
    weigh(panel, num_vectors, num_keys, tile->scores, factor);
    for (int d = 0; d < op->head_dim; d += PRODUCT_ROWS) {
        multiply(tile->values + d, 1, stride, tile->scores, num_keys, panel->sums + d * PANEL,
                 factor);
    }
}

/* Convert the rows of tokens first .. end to fp32, times their scales: to [..][stride]. */
INLINE void convert_rows(const AttentionOp *op, int format, const uint8_t *from,
                         const float *scales, int num_rows, float *to, int stride) {
    const int bytes = element_bytes(format);
    for (int t = 0; t < num_rows; t++, from += op->head_dim * bytes, to += stride) {
        const Floats scale = broadcast(scales ? row_scale(format, scales[t]) : 1.0f);
        int d = 0;
        for (; d + LANES <= op->head_dim; d += LANES) {
            Floats elements = load_elements(format, from + d * bytes);
            store_floats(to + d, scales ? elements * scale : elements);
        }
        if (d < op->head_dim) {
            Floats elements = load_last_elements(format, from + d * bytes, op->head_dim - d);
            store_floats(to + d, scales ? elements * scale : elements);
        }
    }
}

/* Convert the rows of tokens range.first .. range.end of a head, which counts as in `cache_row`. */
static void convert_block(const AttentionOp *op, const Span *span, int head, TokenRange range,
                          int8_t *unpacked, float *to, int stride) {
    const LayerCache *cache = &op->cache;
    for (int token = range.first, count; token < range.end; token += count, to += count * stride) {
        count = tokens_in_block(op, token, range.end);
        const int64_t row = token_row(op, span, head, token);
        const uint8_t *from = row_elements(op, row);
        const float *scales = cache->scales ? cache->scales + row : NULL;
        switch (cache->format) {
        case KV_F32: convert_rows(op, KV_F32, from, NULL, count, to, stride); break;
        case KV_F16: convert_rows(op, KV_F16, from, NULL, count, to, stride); break;
        case KV_BF16: convert_rows(op, KV_BF16, from, NULL, count, to, stride); break;
        case KV_INT8: convert_rows(op, KV_INT8, from, scales, count, to, stride); break;
        case KV_FP8: convert_rows(op, KV_FP8, from, scales, count, to, stride); break;
        case KV_INT5:
            unpack_rows(from, token_bits(op, span, head, token), head < op->num_kv_heads,
                        op->head_dim, count, unpacked);
            convert_rows(op, KV_INT8, (const uint8_t *)unpacked, scales, count, to, stride);
            break;
        }
    }
}

/* Lay a tile out in `memory`. */
static Tile place_tile(const AttentionOp *op, int num_queries, uint8_t *memory) {
    const int stride = tile_stride(op);
    Tile tile = {.num_panels = (num_queries + PANEL - 1) / PANEL, .stride = stride};
    float *next = (float *)(void *)memory;
    tile.scores = next, next += BLOCK_KEYS * PANEL;
    tile.keys = next, next += BLOCK_KEYS * stride;
    tile.values = next, next += BLOCK_KEYS * stride;
    tile.panels = (Panel *)(void *)(next + tile.num_panels * 2 * stride * PANEL);
    tile.unpacked = (int8_t *)(void *)(tile.panels + tile.num_panels);
    for (int p = 0; p < tile.num_panels; p++, next += 2 * stride * PANEL) {
        Panel *panel = tile.panels + p;
        panel->num_queries = min_int(PANEL, num_queries - p * PANEL);
        panel->num_vectors = (panel->num_queries + LANES - 1) / LANES;
        panel->queries = next;
        panel->sums = next + stride * PANEL;
        memset(next, 0, (size_t)2 * stride * PANEL * sizeof(float));
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
        panel->max[lane] = -0x1p127f; /* not -inf: -inf - -inf is NaN */
        panel->denominator[lane] = 0;
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
        float denominator = panel->denominator[lane];
        if (op->sinks) denominator += expf(op->sinks[head] - panel->max[lane]);
        float *out = output_row(op, run, span->first_row + index) + head * op->head_dim;
        const float factor = 1.0f / denominator;
        for (int d = 0; d < op->head_dim; d++) out[d] = panel->sums[d * PANEL + lane] * factor;
        if (op->cache.format == KV_INT5) rotate_by_hadamard(out, op->head_dim);
    }
}

static void attend_block(const AttentionOp *op, const Tile *tile, int first_token, int num_keys) {
    for (int p = 0; p < tile->num_panels; p++) {
        Panel *panel = tile->panels + p;
        if (panel->num_vectors == PANEL_VECTORS) {
            attend_panel(op, tile, panel, PANEL_VECTORS, multiply_panel, first_token, num_keys);
        } else if (panel->num_vectors == 2) {
            attend_panel(op, tile, panel, 2, multiply_two, first_token, num_keys);
        } else {
            attend_panel(op, tile, panel, 1, multiply_one, first_token, num_keys);
        }
    }
}

void attend_prefill(const AttentionOp *op, const Run *run, const Span *span, QueryTile tile,
                    uint8_t *memory) {
    const int kv_head = tile.kv_head, value_head = op->num_kv_heads + kv_head;
    Tile tiles = place_tile(op, tile.num_queries, memory);
    for (int p = 0; p < tiles.num_panels; p++) {
        load_panel(op, run, span, kv_head, tile.first_query + p * PANEL, tiles.panels + p);
    }
    const Panel *last = tiles.panels + tiles.num_panels - 1;
    TokenRange all = {tiles.panels[0].first[0], last->end[last->num_queries - 1]};
    /* Keys that follow the last token are multiplied too, and then masked. */
    memset(tiles.keys, 0, (size_t)BLOCK_KEYS * tiles.stride * sizeof(float));
    for (int token = all.first / BLOCK_KEYS * BLOCK_KEYS; token < all.end; token += BLOCK_KEYS) {
        TokenRange block = {max_int(all.first, token), min_int(all.end, token + BLOCK_KEYS)};
        const int64_t skipped = (int64_t)(block.first - token) * tiles.stride;
        memset(tiles.keys, 0, (size_t)skipped * sizeof(float));
        memset(tiles.values, 0, (size_t)skipped * sizeof(float));
        convert_block(op, span, kv_head, block, tiles.unpacked, tiles.keys + skipped, tiles.stride);
        convert_block(op, span, value_head, block, tiles.unpacked, tiles.values + skipped,
                      tiles.stride);
        attend_block(op, &tiles, token, block.end - token);
    }
    for (int p = 0; p < tiles.num_panels; p++) {
        store_panel(op, run, span, kv_head, tile.first_query + p * PANEL, tiles.panels + p);
    }
}
