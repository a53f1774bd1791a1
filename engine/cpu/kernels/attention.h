/* The two kernels of attention, and how its work is divided.

   Spans of few rows use the decode kernel: one row at a time, K and V straight from the cache, long
   contexts split among the threads. Spans of many rows use the prefill kernel: tiles of queries,
   units of K and V converted to fp32 once for a tile. Both compute in fp32.

   Both kernels compute the same sums in the same order, so a row has the same bits from either,
   whatever its span, the other rows, the number of threads and the width of vectors are:
   - The context is divided into units of UNIT_TOKENS, and these are joined to splits, which grow
     with the position (`split_at`).
   - A score is the sum over d in its order. A unit has one maximum; its exponentials are added up
     by the token's number modulo 4, its weighted values in the order of tokens.
   - The units of a split are added up in their order (`add_partial`), and so are the splits.
   (One exception: in a prefill, a value that is not finite makes results of earlier rows NaN, since
   0 times it is NaN.) */
#pragma once
#include "layer_cache.h"
#include "packed_cache.h"
#include "vector_math.h"

enum {
    MIN_PREFILL_ROWS = 8, /* of a span, from which on the prefill kernel computes */
    MAX_SPLIT_ROWS = 16,  /* decode rows whose contexts are split among the threads */
    UNIT_TOKENS = 128,
    /* The first splits have one unit, the next ones SPLIT_GROWTH units, and so on: 32 splits reach
       to 4k tokens, 64 to 36k, 96 to 299k, 128 to 2.4 million. */
    SPLITS_OF_SIZE = 32,
    SPLIT_GROWTH = 8,
    MAX_SPLITS = 4 * SPLITS_OF_SIZE,
};

/* Context tokens first .. end. */
typedef struct {
    int first, end;
} TokenRange;

/* What a thread computes at a time with the prefill kernel: `num_queries` (row, head) pairs of a kv
   head, which are numbered row by row. */
typedef struct {
    int kv_head, first_query, num_queries;
} QueryTile;

INLINE int group_size(const AttentionOp *op) { return op->num_heads / op->num_kv_heads; }

/* Floats of a head's padded rows in scratch and workspace memory. */
INLINE int padded_head_dim(const AttentionOp *op) { return (op->head_dim + 15) / 16 * 16; }

INLINE const float *query_row(const AttentionOp *op, const Run *run, int row) {
    return run->buffers[op->qkv] + (int64_t)row * run->widths[op->qkv].width;
}

INLINE float *output_row(const AttentionOp *op, const Run *run, int row) {
    return run->buffers[op->out] + (int64_t)row * op->num_heads * op->head_dim;
}

/* The position in its sequence of row `index` of the span. */
INLINE int row_position(const Span *span, int index) {
    return span->context_len - span->num_rows + index;
}

/* The tokens that row `index` of the span sees. */
INLINE TokenRange visible_tokens(const AttentionOp *op, const Span *span, int index) {
    int position = row_position(span, index);
    int first = op->window ? max_int(0, position - op->window + 1) : 0;
    return (TokenRange){first, max_int(position + 1, min_int(span->prefix_len, span->context_len))};
}

/* The tokens of split number `split` of every context. */
INLINE TokenRange split_range(int split) {
    const int is_last = split == MAX_SPLITS - 1;
    int start = 0, size = UNIT_TOKENS;
    for (; split >= SPLITS_OF_SIZE; split -= SPLITS_OF_SIZE, size *= SPLIT_GROWTH) {
        start += SPLITS_OF_SIZE * size;
    }
    start += split * size;
    return (TokenRange){start, is_last ? INT32_MAX : start + size};
}

/* The number of the split that has a token. */
INLINE int split_at(int token) {
    int split = 0, size = UNIT_TOKENS;
    while (split < MAX_SPLITS - SPLITS_OF_SIZE && token >= SPLITS_OF_SIZE * size) {
        token -= SPLITS_OF_SIZE * size;
        split += SPLITS_OF_SIZE;
        size *= SPLIT_GROWTH;
    }
    return min_int(split + token / size, MAX_SPLITS - 1);
}

/* The row of the cache of a token of the span; `head` counts as in `cache_row`. */
INLINE int64_t token_row(const AttentionOp *op, const Span *span, int head, int token) {
    const int size = op->cache.block_size, block = span->block_table[token / size];
    return cache_row(&op->cache, op->num_kv_heads, block, head, token % size);
}

INLINE const uint8_t *row_elements(const AttentionOp *op, int64_t row) {
    const uint8_t *values = op->cache.values;
    return values + row * row_bytes(op->cache.format, op->head_dim);
}

/* Tokens from `token` on that lie in the same block and before `end`. */
INLINE int tokens_in_block(const AttentionOp *op, int token, int end) {
    return min_int(end - token, op->cache.block_size - token % op->cache.block_size);
}

/* The upper bits of a token's row with KV_INT5. */
INLINE const uint8_t *token_bits(const AttentionOp *op, const Span *span, int head, int token) {
    const int size = op->cache.block_size, block = span->block_table[token / size];
    return upper_bits(&op->cache, op->num_kv_heads, op->head_dim, block, head, token % size);
}

/* A partial result of a head: the sum of exp(score - max) * value [padded_head_dim], then max, then
   the sum of exp(score - max) (online softmax: Milakov and Gimelshein, 2018, arXiv:1805.02867). */
INLINE int partial_floats(const AttentionOp *op) { return padded_head_dim(op) + 16; }
/* Clear a partial result: no token was seen. */
void clear_partial(const AttentionOp *op, float *partial);
/* Add a partial result of other tokens to `sum`. */
void add_partial(const AttentionOp *op, float *sum, const float *partial);
/* Write the result of a head, out [head_dim], with its sink. Changes `partial`. */
void finish_partial(const AttentionOp *op, int head, float *partial, float *out);

/* Add the tokens of `range` to the partial results of a kv head's queries, of row `index` of the
   span: partials [group_size][partial_floats]. */
void attend_decode(const AttentionOp *op, const Run *run, const Span *span, int index, int kv_head,
                   TokenRange range, float *partials, uint8_t *memory);
size_t decode_memory_bytes(const AttentionOp *op);

/* Compute a tile of the span. */
void attend_prefill(const AttentionOp *op, const Run *run, const Span *span, QueryTile tile,
                    uint8_t *memory);
/* Queries of a tile: a multiple of those that one pass over a block computes. Smaller for few
   queries, so that each thread has several tiles. */
int queries_per_tile(const AttentionOp *op, const Run *run);
size_t prefill_memory_bytes(const AttentionOp *op);
