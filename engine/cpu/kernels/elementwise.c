/* Operations on elements: act_and_mul, add_scaled, softcap, and gathering rows. */
#include "activation.h"
#include "chunks.h"
#include "fast_math.h"

static int num_phases(const Op *op, const Run *run) {
    (void)op, (void)run;
    return 1;
}

static size_t no_bytes(const Op *op, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)op, (void)buffers, (void)num_tokens, (void)num_logits;
    return 0;
}

/* out [n] = act(gate) * up, where the gates are x; see `_clamp` in engine/reference/ops.py for the
   limit. out and x do not overlap. */
static void gate_elements(const ActAndMulOp *op, const float *x, const float *up, int n, float *out) {
    float limit = op->gate_limit, scale = op->gate_scale != 0.0f ? op->gate_scale : 1.0f;
    for (int i = 0; i < n; i++) {
        float gate = x[i];
        out[i] = scale * (limit > 0.0f && gate > limit ? limit : gate);
    }
    activate(op->activation, out, n);
    for (int i = 0; i < n; i++) {
        float y = up[i];
        if (limit > 0.0f) y = (y > limit ? limit : y < -limit ? -limit : y) + 1.0f;
        out[i] *= y;
    }
}

void act_and_mul_row(const ActAndMulOp *op, const float *x, int width, int first, int n, float *out) {
    if (!op->gated) {
        if (out != x) memcpy(out + first, x + first, (size_t)n * sizeof(float));
        activate(op->activation, out + first, n);
    } else {
        gate_elements(op, x + first, x + width + first, n, out + first);
    }
}

static int act_chunks(const Op *op, const Run *run, int phase) {
    (void)phase;
    int width = run->widths[op->act_and_mul.out].width;
    return count_element_chunks(rows_of(run, op->header.row_set), width);
}

static void act_compute(const Op *op, const Run *run, int phase, int chunk, Scratch *scratch) {
    (void)phase, (void)scratch;
    const ActAndMulOp *o = &op->act_and_mul;
    int width = run->widths[o->out].width, x_width = run->widths[o->x].width;
    Part part = element_chunk(rows_of(run, op->header.row_set), width, chunk);
    for (int row = part.first_row; row < part.first_row + part.num_rows; row++)
        act_and_mul_row(o, run->buffers[o->x] + (size_t)row * x_width, width, part.first_col,
                        part.num_cols, run->buffers[o->out] + (size_t)row * width);
}

static int add_chunks(const Op *op, const Run *run, int phase) {
    (void)phase;
    int width = run->widths[op->add_scaled.out].width;
    return count_element_chunks(rows_of(run, op->header.row_set), width);
}

static void add_compute(const Op *op, const Run *run, int phase, int chunk, Scratch *scratch) {
    (void)phase, (void)scratch;
    const AddScaledOp *o = &op->add_scaled;
    int width = run->widths[o->out].width;
    Part part = element_chunk(rows_of(run, op->header.row_set), width, chunk);
    size_t first = (size_t)part.first_row * width + part.first_col;
    const float *x = run->buffers[o->x] + first;
    float *out = run->buffers[o->out] + first, alpha = o->alpha, beta = o->beta;
    for (int i = 0; i < part.num_rows * part.num_cols; i++)
        out[i] = (alpha != 0.0f ? alpha * out[i] : 0.0f) + beta * x[i];
}

static int softcap_chunks(const Op *op, const Run *run, int phase) {
    (void)phase;
    return count_element_chunks(rows_of(run, op->header.row_set), run->widths[op->softcap.x].width);
}

static void softcap_compute(const Op *op, const Run *run, int phase, int chunk, Scratch *scratch) {
    (void)phase, (void)scratch;
    int width = run->widths[op->softcap.x].width;
    Part part = element_chunk(rows_of(run, op->header.row_set), width, chunk);
    float *x = run->buffers[op->softcap.x] + (size_t)part.first_row * width + part.first_col;
    float cap = op->softcap.cap;
    for (int i = 0; i < part.num_rows * part.num_cols; i++) x[i] = cap * fast_tanh(x[i] / cap);
}

static int gather_chunks(const Op *op, const Run *run, int phase) {
    (void)phase;
    return count_row_chunks(run->num_logits, run->widths[op->gather.out].width);
}

static void gather_compute(const Op *op, const Run *run, int phase, int chunk, Scratch *scratch) {
    (void)phase, (void)scratch;
    const GatherOp *o = &op->gather;
    int width = run->widths[o->out].width;
    Part part = row_chunk(run->num_logits, width, chunk);
    for (int row = part.first_row; row < part.first_row + part.num_rows; row++)
        memcpy(run->buffers[o->out] + (size_t)row * width,
               run->buffers[o->x] + (size_t)run->logits_rows[row] * width, (size_t)width * sizeof(float));
}

const OpKernels act_and_mul_kernels = {num_phases, act_chunks, 0, act_compute, no_bytes, no_bytes};
const OpKernels add_scaled_kernels = {num_phases, add_chunks, 0, add_compute, no_bytes, no_bytes};
const OpKernels softcap_kernels = {num_phases, softcap_chunks, 0, softcap_compute, no_bytes, no_bytes};
const OpKernels gather_kernels = {num_phases, gather_chunks, 0, gather_compute, no_bytes, no_bytes};
