/* The recurrence of Mamba-2 (`Mamba2Op`; Dao and Gu, 2024, arXiv:2405.21060). With H [head_dim,
   state_size] the state of a head: H = decay * H + step * x b^T, out = H c + skip * x; then output
   gates and norms.

   A chunk of the first phase is a head of one sequence, whose tokens it computes one after the other: so
   a token's result does not depend on how a prompt is divided. The rows of H are independent;
   BLOCK_ROWS of them go through all tokens in the scratch, with zeros after each up to whole vectors.
   The second phase gates and normalizes rows of the batch. */
#include "chunks.h"
#include "fast_math.h"
#include "norm.h"
#include "states.h"
#include "vector.h"

enum { BLOCK_ROWS = 16 };

static int num_phases(const Op *base, const Run *run) {
    (void)base, (void)run;
    return 2;
}

static int num_chunks(const Op *base, const Run *run, int phase) {
    const Mamba2Op *op = &base->mamba2;
    if (phase == 0) return run->num_spans * op->num_heads;
    return count_row_chunks(run->num_tokens, op->num_heads * op->head_dim);
}

/* Advance the rows H [BLOCK_ROWS, size] by one token: `inputs` [BLOCK_ROWS] are step * x; out
   [BLOCK_ROWS]. `size` is a multiple of LANES. */
static void advance(float *rows, const float *b, const float *c, int size, float decay,
                    const float *inputs, float *out) {
    for (int i = 0; i < BLOCK_ROWS; i += 4) {
        Floats sums[4] = {{0}};
        for (int j = 0; j < size; j += LANES) {
            const Floats writes = load_floats(b + j), reads = load_floats(c + j);
            for (int r = 0; r < 4; r++) {
                float *h = rows + (size_t)(i + r) * size + j;
                Floats state = decay * load_floats(h);
                state = add_product(state, writes, broadcast_float(inputs + i + r));
                store_floats(h, state);
                sums[r] = add_product(sums[r], state, reads);
            }
        }
        Floats4 four = add_elements_of_four(sums[0], sums[1], sums[2], sums[3]);
        memcpy(out + i, &four, sizeof four);
    }
}

/* The rows of a head's state from `first` on. */
static float *state_of(const Mamba2Op *op, int slot, int head, int first) {
    const size_t rows = ((size_t)slot * op->num_heads + head) * op->head_dim + first;
    return op->state + rows * op->state_size;
}

/* Compute the rows first .. first + BLOCK_ROWS of a head for all tokens of the span. */
static void scan(const Mamba2Op *op, const Run *run, const Span *span, int head, int first,
                 float *memory) {
    const int width = op->num_heads * op->head_dim, size = round_up_lanes(op->state_size);
    const int groups = op->num_groups * op->state_size, x_width = run->widths[op->x].width;
    const int b_first = 2 * width + head / (op->num_heads / op->num_groups) * op->state_size;
    const int n = min_int(BLOCK_ROWS, op->head_dim - first);
    const size_t nbytes = (size_t)op->state_size * sizeof(float);
    const float rate = expf(op->decay[head]), skip = op->skip[head];
    float *b = memory, *c = b + size, *rows = c + size;
    memset(memory, 0, (size_t)(2 + BLOCK_ROWS) * size * sizeof(float));
    if (!is_first(span)) {
        const float *state = state_of(op, span->state_slot, head, first);
        for (int i = 0; i < n; i++)
            memcpy(rows + (size_t)i * size, state + (size_t)i * op->state_size, nbytes);
    }
    for (int t = 0; t < span->num_rows; t++) {
        const size_t row = (size_t)span->first_row + t;
        const float *projected = run->buffers[op->x] + row * x_width;
        const float *x = projected + width + head * op->head_dim + first;
        float *out = run->buffers[op->out] + row * width + head * op->head_dim + first;
        const float scaled = op->step_scale * projected[2 * width + 2 * groups + head];
        const float free_step = softplus(scaled + op->step_bias[head]);
        const float step = free_step < op->min_step ? op->min_step : free_step;
        float inputs[BLOCK_ROWS] = {0}, sums[BLOCK_ROWS];
        memcpy(b, projected + b_first, nbytes);
        memcpy(c, projected + b_first + groups, nbytes);
        for (int i = 0; i < n; i++) inputs[i] = step * x[i];
        advance(rows, b, c, size, fast_exp(-rate * step), inputs, sums);
        for (int i = 0; i < n; i++) out[i] = sums[i] + skip * x[i];
        const int slot = slot_after(span, t);
        for (int i = 0; slot >= 0 && i < n; i++)
            memcpy(state_of(op, slot, head, first + i), rows + (size_t)i * size, nbytes);
    }
}

/* out [n] *= silu(scale * z). */
static void gate(const float *z, float scale, int n, float *out) {
    for (int i = 0; i < n; i++) out[i] *= scale * z[i] * fast_sigmoid(scale * z[i]);
}

static void finish_row(const Mamba2Op *op, const float *z, float *out) {
    const int width = op->num_heads * op->head_dim, size = width / op->num_groups;
    if (!op->gate_last) gate(z, op->z_scale, width, out);
    for (int group = 0; op->norm.kind != NORM_NONE && group < op->num_groups; group++) {
        Norm norm = op->norm;
        norm.weight += group * size;
        norm_row(&norm, out + group * size, size, out + group * size);
    }
    if (op->gate_last) gate(z, op->z_scale, width, out);
}

static void compute(const Op *base, const Run *run, int phase, int chunk, Scratch *scratch) {
    const Mamba2Op *op = &base->mamba2;
    const int heads = op->num_heads, width = heads * op->head_dim;
    if (phase == 0) {
        const Span *span = run->spans + chunk / heads;
        for (int first = 0; first < op->head_dim; first += BLOCK_ROWS)
            scan(op, run, span, chunk % heads, first, (float *)(void *)scratch->memory);
        return;
    }
    Part part = row_chunk(run->num_tokens, width, chunk);
    for (int row = part.first_row; row < part.first_row + part.num_rows; row++)
        finish_row(op, run->buffers[op->x] + (size_t)row * run->widths[op->x].width,
                   run->buffers[op->out] + (size_t)row * width);
}

static size_t no_bytes(const Op *base, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)base, (void)buffers, (void)num_tokens, (void)num_logits;
    return 0;
}

static size_t scratch_bytes(const Op *base, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)buffers, (void)num_tokens, (void)num_logits;
    const int size = round_up_lanes(base->mamba2.state_size);
    return (size_t)(2 + BLOCK_ROWS) * size * sizeof(float);
}

const OpKernels mamba2_kernels = {num_phases, num_chunks, 0, compute, no_bytes, scratch_bytes};
