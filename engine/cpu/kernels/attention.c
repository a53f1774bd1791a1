/* Attention: the chunks of a batch. Phase 0 computes; phase 1 merges the split contexts of decode
   rows, if there are any.

   Chunks of a prefill span: its tiles, the last ones, which see the most tokens, first. Chunks of
   the others: (row, kv head, split). If there are many decode rows one chunk computes all splits of a
   row and adds them up in the same order. */
#include "attention.h"

static int is_prefill(const Span *span) { return span->num_rows >= MIN_PREFILL_ROWS; }

static int num_decode_rows(const Run *run) {
    int rows = 0;
    for (int s = 0; s < run->num_spans; s++) {
        rows += is_prefill(run->spans + s) ? 0 : run->spans[s].num_rows;
    }
    return rows;
}

/* Splits of which a row sees tokens. */
static int num_splits(TokenRange visible) {
    return split_at(visible.end - 1) - split_at(visible.first) + 1;
}

/* The visible tokens of split `split` of a row. */
static TokenRange visible_split(TokenRange visible, int split) {
    TokenRange range = split_range(split_at(visible.first) + split);
    return (TokenRange){max_int(visible.first, range.first), min_int(visible.end, range.end)};
}

/* The most splits of a row of a decode span; 1 without `is_split`. */
static int span_splits(const AttentionOp *op, const Span *span, int is_split) {
    int splits = 1;
    for (int i = 0; is_split && i < span->num_rows; i++) {
        splits = max_int(splits, num_splits(visible_tokens(op, span, i)));
    }
    return splits;
}

static int num_span_chunks(const AttentionOp *op, const Run *run, const Span *span, int phase,
                           int is_split) {
    if (is_prefill(span)) {
        int tile = queries_per_tile(op, run);
        int tiles = (span->num_rows * group_size(op) + tile - 1) / tile;
        return phase == 0 ? tiles * op->num_kv_heads : 0;
    }
    int rows = span->num_rows * op->num_kv_heads;
    return phase == 0 ? rows * span_splits(op, span, is_split) : rows;
}

/* Whether contexts are split among the threads. */
static int are_contexts_split(const AttentionOp *op, const Run *run) {
    if (num_decode_rows(run) > MAX_SPLIT_ROWS) return 0;
    for (int s = 0; s < run->num_spans; s++) {
        const Span *span = run->spans + s;
        if (!is_prefill(span) && span_splits(op, span, 1) > 1) return 1;
    }
    return 0;
}

static int num_phases(const Op *base, const Run *run) {
    return are_contexts_split(&base->attention, run) ? 2 : 1;
}

static int num_chunks(const Op *base, const Run *run, int phase) {
    const int is_split = are_contexts_split(&base->attention, run);
    int chunks = 0;
    for (int s = 0; s < run->num_spans; s++) {
        chunks += num_span_chunks(&base->attention, run, run->spans + s, phase, is_split);
    }
    return chunks;
}

static size_t group_bytes(const AttentionOp *op) {
    return (size_t)group_size(op) * partial_floats(op) * sizeof(float);
}

/* The partial results [MAX_SPLITS][group_size][partial_floats] of a decode row. */
static float *row_partials(const AttentionOp *op, const Run *run, int decode_row, int kv_head) {
    int64_t index = ((int64_t)decode_row * op->num_kv_heads + kv_head) * MAX_SPLITS;
    return (float *)(void *)(run->workspace + index * group_bytes(op));
}

static void clear_group(const AttentionOp *op, float *partials) {
    for (int q = 0; q < group_size(op); q++) clear_partial(op, partials + q * partial_floats(op));
}

static void add_group(const AttentionOp *op, float *sums, const float *partials) {
    for (int q = 0; q < group_size(op); q++) {
        add_partial(op, sums + q * partial_floats(op), partials + q * partial_floats(op));
    }
}

static void finish_group(const AttentionOp *op, const Run *run, int row, int kv_head, float *sums) {
    const int first_head = kv_head * group_size(op);
    float *out = output_row(op, run, row) + first_head * op->head_dim;
    for (int q = 0; q < group_size(op); q++, out += op->head_dim) {
        finish_partial(op, first_head + q, sums + q * partial_floats(op), out);
    }
}

/* Compute all splits of row `index` of the span. */
static void compute_row(const AttentionOp *op, const Run *run, const Span *span, int index,
                        int kv_head, uint8_t *memory) {
    const TokenRange visible = visible_tokens(op, span, index);
    float *sums = (float *)(void *)memory, *partials = sums + group_bytes(op) / sizeof(float);
    memory += 2 * group_bytes(op);
    clear_group(op, sums);
    attend_decode(op, run, span, index, kv_head, visible_split(visible, 0), sums, memory);
    for (int split = 1; split < num_splits(visible); split++) {
        clear_group(op, partials);
        attend_decode(op, run, span, index, kv_head, visible_split(visible, split), partials, memory);
        add_group(op, sums, partials);
    }
    finish_group(op, run, span->first_row + index, kv_head, sums);
}

/* Compute a split of row `index` of the span, which is number `decode_row` of the decode rows. */
static void compute_split(const AttentionOp *op, const Run *run, const Span *span, int index,
                          int decode_row, int kv_head, int split, uint8_t *memory) {
    const TokenRange visible = visible_tokens(op, span, index);
    if (split >= num_splits(visible)) return; /* other rows of the span have more */
    float *partials = row_partials(op, run, decode_row, kv_head);
    partials += split * (group_bytes(op) / sizeof(float));
    clear_group(op, partials);
    attend_decode(op, run, span, index, kv_head, visible_split(visible, split), partials, memory);
}

static void merge_row(const AttentionOp *op, const Run *run, const Span *span, int index,
                      int decode_row, int kv_head) {
    const int splits = num_splits(visible_tokens(op, span, index));
    float *partials = row_partials(op, run, decode_row, kv_head);
    for (int split = 1; split < splits; split++) {
        add_group(op, partials, partials + split * (group_bytes(op) / sizeof(float)));
    }
    finish_group(op, run, span->first_row + index, kv_head, partials);
}

static void compute_prefill(const AttentionOp *op, const Run *run, const Span *span, int chunk,
                            uint8_t *memory) {
    const int queries = span->num_rows * group_size(op), size = queries_per_tile(op, run);
    const int tile = (queries + size - 1) / size - 1 - chunk / op->num_kv_heads;
    const int first = tile * size;
    attend_prefill(op, run, span,
                   (QueryTile){chunk % op->num_kv_heads, first, min_int(size, queries - first)},
                   memory);
}

static void compute(const Op *base, const Run *run, int phase, int chunk, Scratch *scratch) {
    const AttentionOp *op = &base->attention;
    const int is_split = are_contexts_split(op, run);
    int decode_row = 0; /* the number of the span's first one */
    const Span *span = run->spans;
    for (int chunks; chunk >= (chunks = num_span_chunks(op, run, span, phase, is_split)); span++) {
        chunk -= chunks;
        decode_row += is_prefill(span) ? 0 : span->num_rows;
    }
    if (is_prefill(span)) {
        compute_prefill(op, run, span, chunk, scratch->memory);
        return;
    }
    const int kv_head = chunk % op->num_kv_heads;
    const int index = chunk / op->num_kv_heads % span->num_rows;
    const int split = chunk / op->num_kv_heads / span->num_rows;
    if (phase == 1) {
        merge_row(op, run, span, index, decode_row + index, kv_head);
    } else if (is_split) {
        compute_split(op, run, span, index, decode_row + index, kv_head, split,
                      scratch->memory);
    } else {
        compute_row(op, run, span, index, kv_head, scratch->memory);
    }
}

static size_t workspace_bytes(const Op *base, const Buffer *buffers, int num_tokens,
                              int num_logits) {
    const AttentionOp *op = &base->attention;
    (void)buffers, (void)num_logits;
    return min_int(num_tokens, MAX_SPLIT_ROWS) * (size_t)op->num_kv_heads * MAX_SPLITS *
           group_bytes(op);
}

static size_t scratch_bytes(const Op *base, const Buffer *buffers, int num_tokens, int num_logits) {
    const AttentionOp *op = &base->attention;
    (void)buffers, (void)num_logits;
    size_t decode = 2 * group_bytes(op) + decode_memory_bytes(op);
    size_t prefill = num_tokens < MIN_PREFILL_ROWS ? 0 : prefill_memory_bytes(op);
    return decode > prefill ? decode : prefill;
}

const OpKernels attention_kernels = {num_phases,      num_chunks,   NULL, compute,
                                     workspace_bytes, scratch_bytes};
