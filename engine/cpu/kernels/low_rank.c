/* Low-rank changes of a matmul's results (Hu et al., 2021, arXiv:2106.09685), for the rows that have
   adapters. Phase 0 multiplies with the narrow matrices a, phase 1 with b. */
#include "op_kernels.h"
#include "vector.h"

enum { CHUNK_RANKS = 8, CHUNK_COLS = 256 };

INLINE Floats load_elements(int format, const uint8_t *data, int i) {
    if (format == FORMAT_F32) return load_floats(data + 4 * (size_t)i);
    return format == FORMAT_BF16 ? load_bf16(data + 2 * (size_t)i) : load_fp16(data + 2 * (size_t)i);
}

/* The sum of m[row] * x, in an order that depends only on the instruction set. */
INLINE float dot(const Matrix *m, int row, const float *x) {
    const uint8_t *data = (const uint8_t *)m->data + (size_t)row * m->stride;
    Floats sums[2] = {{0}, {0}};
    int i = 0;
    for (; i + 2 * LANES <= m->cols; i += 2 * LANES) {
        sums[0] = add_product(sums[0], load_elements(m->format, data, i), load_floats(x + i));
        sums[1] = add_product(sums[1], load_elements(m->format, data, i + LANES),
                              load_floats(x + i + LANES));
    }
    for (; i + LANES <= m->cols; i += LANES)
        sums[0] = add_product(sums[0], load_elements(m->format, data, i), load_floats(x + i));
    float rest = 0;
    uint8_t last[4 * LANES] = {0};
    for (; i < m->cols; i += LANES) {
        int n = min_int(LANES, m->cols - i), size = m->format == FORMAT_F32 ? 4 : 2;
        memcpy(last, data + (size_t)i * size, (size_t)n * size);
        Floats wide = load_elements(m->format, last, 0);
        for (int j = 0; j < n; j++) rest += wide[j] * x[i + j];
    }
    return add_elements(sums[0] + sums[1]) + rest;
}

/* The changes of a row of results, NULL: none. */
static const Delta *delta_of(const LowRankOp *op, const Run *run, int row) {
    int token = op->header.row_set == ROWS_LOGITS ? run->logits_rows[row] : row;
    int set = run->sets[token];
    if (set < 0 || set >= op->num_sets) return 0;
    const Delta *delta = &op->deltas[set];
    return delta->num_parts || delta->gain || delta->offset ? delta : 0;
}

static int largest_rank(const LowRankOp *op) {
    int largest = 0;
    for (int i = 0; i < op->num_sets; i++)
        if (op->deltas[i].rank > largest) largest = op->deltas[i].rank;
    return largest;
}

static int num_phases(const Op *op, const Run *run) {
    (void)op;
    return run->sets ? 2 : 0;
}

static int chunks_per_row(const Op *op, const Run *run, int phase) {
    const LowRankOp *o = &op->low_rank;
    if (phase == 0) return (largest_rank(o) + CHUNK_RANKS - 1) / CHUNK_RANKS;
    return (run->widths[o->out].width + CHUNK_COLS - 1) / CHUNK_COLS;
}

static int num_chunks(const Op *op, const Run *run, int phase) {
    return rows_of(run, op->header.row_set) * chunks_per_row(op, run, phase);
}

/* a * x for the ranks first .. end of all parts, counted through. */
static void shrink(const Delta *delta, const float *x, int first, int end, float *narrow) {
    int start = 0;
    for (int i = 0; i < delta->num_parts; i++) {
        const LowRank *part = &delta->parts[i];
        int stop = min_int(end, start + part->rank);
        for (int k = max_int(first, start); k < stop; k++) narrow[k] = dot(&part->a, k - start, x);
        start += part->rank;
    }
}

/* out[start .. stop] += the sum of narrow[k] times row k of b. */
static void add_rows(const LowRank *part, const float *narrow, int start, int stop, float *out) {
    const Matrix *b = &part->b;
    int size = b->format == FORMAT_F32 ? 4 : 2, j = start;
    for (; j < stop; j += LANES) {
        int n = min_int(LANES, stop - j);
        const uint8_t *data = (const uint8_t *)b->data + (size_t)(j - part->first) * size;
        Floats sum = {0};
        for (int k = 0; k < part->rank; k++, data += b->stride) {
            uint8_t last[4 * LANES] = {0};
            if (n < LANES) memcpy(last, data, (size_t)n * size);
            Floats row = load_elements(b->format, n < LANES ? last : data, 0);
            sum = add_product(sum, broadcast(narrow[k]), row);
        }
        for (int i = 0; i < n; i++) out[j + i] += sum[i];
    }
}

static void expand(const Delta *delta, const float *bias, const float *x, const float *narrow,
                   int first, int end, float *out) {
    if (delta->gain) {
        for (int j = first; j < end; j++) {
            float constant = bias ? bias[j] : 0.0f;
            out[j] = (out[j] - constant) * delta->gain[j] + constant;
        }
    }
    if (delta->offset)
        for (int j = first; j < end; j++) out[j] += delta->offset[j];
    for (int i = 0; i < delta->num_parts; i++) {
        const LowRank *part = &delta->parts[i];
        int start = max_int(first, part->first), stop = min_int(end, part->first + part->columns);
        if (part->a.data)
            add_rows(part, narrow, start, stop, out);
        else
            for (int j = start; j < stop; j++) out[j] += dot(&part->b, j - part->first, x);
        narrow += part->rank;
    }
}

static void compute(const Op *op, const Run *run, int phase, int chunk, Scratch *scratch) {
    (void)scratch;
    const LowRankOp *o = &op->low_rank;
    int per_row = chunks_per_row(op, run, phase), row = chunk / per_row, within = chunk % per_row;
    const Delta *delta = delta_of(o, run, row);
    if (!delta) return;
    int x_width = run->widths[o->x].width, width = run->widths[o->out].width;
    const float *x = run->buffers[o->x] + (size_t)row * x_width;
    float *narrow = (float *)run->workspace + (size_t)row * largest_rank(o);
    if (phase == 0) {
        int first = within * CHUNK_RANKS;
        shrink(delta, x, first, min_int(first + CHUNK_RANKS, delta->rank), narrow);
    } else {
        int first = within * CHUNK_COLS;
        expand(delta, o->bias, x, narrow, first, min_int(first + CHUNK_COLS, width),
               run->buffers[o->out] + (size_t)row * width);
    }
}

static size_t workspace_bytes(const Op *op, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)buffers;
    int rows = op->header.row_set == ROWS_LOGITS ? num_logits : num_tokens;
    return (size_t)rows * largest_rank(&op->low_rank) * sizeof(float);
}

static size_t no_bytes(const Op *op, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)op, (void)buffers, (void)num_tokens, (void)num_logits;
    return 0;
}

const OpKernels low_rank_kernels = {num_phases, num_chunks, 0, compute, workspace_bytes, no_bytes};
