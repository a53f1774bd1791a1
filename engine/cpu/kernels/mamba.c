/* The recurrence of Mamba (`MambaOp`; Gu and Dao, 2023, arXiv:2312.00752). With h [state_size] the state
   of a channel and a < 0 its decays: h = exp(step * a) * h + step * x * b, out = h c + skip * x; then
   output gates. Steps, b and c are projections of all channels of x.

   The first phase computes them, PROJECTED rows of the matrix per chunk, for all tokens; the second
   normalizes them. A chunk of the third are BLOCK channels of one sequence, whose tokens it computes one
   after the other: so a token's result does not depend on how a prompt is divided. States are in the
   scratch, with zeros up to whole vectors. */
#include "chunks.h"
#include "fast_math.h"
#include "norm.h"
#include "states.h"
#include "vector.h"
#include "vector_math.h"

enum { BLOCK = 16, PROJECTED = 4 };

static int parts_width(const MambaOp *op) { return op->step_rank + 2 * op->state_size; }

static int groups_of(int count, int each) { return (count + each - 1) / each; }

static int num_phases(const Op *base, const Run *run) {
    (void)base, (void)run;
    return 3;
}

static int num_chunks(const Op *base, const Run *run, int phase) {
    const MambaOp *op = &base->mamba;
    if (phase == 0) return groups_of(parts_width(op), PROJECTED);
    if (phase == 1) return count_row_chunks(run->num_tokens, parts_width(op));
    return run->num_spans * groups_of(op->width, BLOCK);
}

static float *parts_of(const MambaOp *op, const Run *run, int row) {
    return (float *)(void *)run->workspace + (size_t)row * parts_width(op);
}

/* out [4] = four rows of a matrix [n], `count` of them different, times x [n]. */
static void multiply_four(const float *matrix, int count, const float *x, int n, float *out) {
    const float *rows[4];
    Floats sums[4] = {{0}};
    int j = 0;
    for (int r = 0; r < 4; r++) rows[r] = matrix + (size_t)min_int(r, count - 1) * n;
    for (; j + LANES <= n; j += LANES) {
        const Floats values = load_floats(x + j);
        for (int r = 0; r < 4; r++) sums[r] = add_product(sums[r], load_floats(rows[r] + j), values);
    }
    Floats4 four = add_elements_of_four(sums[0], sums[1], sums[2], sums[3]);
    memcpy(out, &four, sizeof four);
    for (; j < n; j++)
        for (int r = 0; r < 4; r++) out[r] += rows[r][j] * x[j];
}

static void project(const MambaOp *op, const Run *run, int first) {
    const int x_width = run->widths[op->x].width, n = min_int(PROJECTED, parts_width(op) - first);
    const float *matrix = op->to_parts + (size_t)first * op->width;
    for (int row = 0; row < run->num_tokens; row++) {
        float found[4];
        multiply_four(matrix, n, run->buffers[op->x] + (size_t)row * x_width, op->width, found);
        memcpy(parts_of(op, run, row) + first, found, (size_t)n * sizeof(float));
    }
}

static void normalize(const MambaOp *op, float *parts) {
    float *b = parts + op->step_rank, *c = b + op->state_size;
    if (op->step_norm.kind == NORM_NONE) return;
    norm_row(&op->step_norm, parts, op->step_rank, parts);
    norm_row(&op->b_norm, b, op->state_size, b);
    norm_row(&op->c_norm, c, op->state_size, c);
}

/* Return h c after advancing h [size], a multiple of LANES, by one token. */
static float advance(float *h, const float *decay, const float *b, const float *c, int size, float step,
                     float input) {
    Floats sum = {0};
    for (int j = 0; j < size; j += LANES) {
        Floats state = exp_floats(step * load_floats(decay + j)) * load_floats(h + j);
        state = add_product(state, broadcast(input), load_floats(b + j));
        store_floats(h + j, state);
        sum = add_product(sum, state, load_floats(c + j));
    }
    float total = 0.0f;
    for (int lane = 0; lane < LANES; lane++) total += sum[lane];
    return total;
}

static float *state_of(const MambaOp *op, int slot, int channel) {
    return op->state + ((size_t)slot * op->width + channel) * op->state_size;
}

static void scan(const MambaOp *op, const Run *run, const Span *span, int first, float *memory) {
    const int size = round_up_lanes(op->state_size), x_width = run->widths[op->x].width;
    const int n = min_int(BLOCK, op->width - first);
    const size_t nbytes = (size_t)op->state_size * sizeof(float);
    float *b = memory, *c = b + size, *decays = c + size, *rows = decays + BLOCK * size;
    memset(memory, 0, (size_t)(2 + 2 * BLOCK) * size * sizeof(float));
    for (int i = 0; i < n; i++) {
        const size_t from = (size_t)(first + i) * op->state_size;
        memcpy(decays + i * size, op->decay + from, nbytes);
        if (!is_first(span))
            memcpy(rows + i * size, state_of(op, span->state_slot, first + i), nbytes);
    }
    for (int t = 0; t < span->num_rows; t++) {
        const size_t row = (size_t)span->first_row + t;
        const float *x = run->buffers[op->x] + row * x_width + first, *z = x + op->width;
        const float *parts = parts_of(op, run, (int)row);
        float *out = run->buffers[op->out] + row * op->width + first, steps[BLOCK + 4];
        memcpy(b, parts + op->step_rank, nbytes);
        memcpy(c, parts + op->step_rank + op->state_size, nbytes);
        for (int i = 0; i < n; i += 4)
            multiply_four(op->to_step + (size_t)(first + i) * op->step_rank, min_int(4, n - i), parts,
                          op->step_rank, steps + i);
        for (int i = 0; i < n; i++) {
            const float step = softplus(steps[i] + op->step_bias[first + i]);
            const float read =
                advance(rows + i * size, decays + i * size, b, c, size, step, step * x[i]);
            out[i] = (read + op->skip[first + i] * x[i]) * z[i] * fast_sigmoid(z[i]);
        }
        const int slot = slot_after(span, t);
        for (int i = 0; slot >= 0 && i < n; i++)
            memcpy(state_of(op, slot, first + i), rows + i * size, nbytes);
    }
}

static void compute(const Op *base, const Run *run, int phase, int chunk, Scratch *scratch) {
    const MambaOp *op = &base->mamba;
    if (phase == 0) {
        project(op, run, chunk * PROJECTED);
    } else if (phase == 1) {
        Part part = row_chunk(run->num_tokens, parts_width(op), chunk);
        for (int i = 0; i < part.num_rows; i++) normalize(op, parts_of(op, run, part.first_row + i));
    } else {
        const int blocks = groups_of(op->width, BLOCK);
        scan(op, run, run->spans + chunk / blocks, chunk % blocks * BLOCK,
             (float *)(void *)scratch->memory);
    }
}

static size_t workspace_bytes(const Op *base, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)buffers, (void)num_logits;
    return (size_t)num_tokens * parts_width(&base->mamba) * sizeof(float);
}

static size_t scratch_bytes(const Op *base, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)buffers, (void)num_tokens, (void)num_logits;
    return (size_t)(2 + 2 * BLOCK) * round_up_lanes(base->mamba.state_size) * sizeof(float);
}

const OpKernels mamba_kernels = {num_phases, num_chunks, 0, compute, workspace_bytes, scratch_bytes};
