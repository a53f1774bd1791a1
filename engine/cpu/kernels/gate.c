/* What gated attention output needs: separating the gates from queries, keys and values
   (`DropColumnsOp`), and multiplying with the sigmoid of the gates, or with columns as they are
   (`GateOp`). */
#include "chunks.h"
#include "fast_math.h"
#include "op_kernels.h"

static int num_phases(const Op *op, const Run *run) {
    (void)op, (void)run;
    return 1;
}

static size_t no_bytes(const Op *op, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)op, (void)buffers, (void)num_tokens, (void)num_logits;
    return 0;
}

static int drop_chunks(const Op *op, const Run *run, int phase) {
    (void)phase;
    return count_row_chunks(rows_of(run, op->header.row_set), run->widths[op->drop_columns.out].width);
}

static void drop_compute(const Op *op, const Run *run, int phase, int chunk, Scratch *scratch) {
    (void)phase, (void)scratch;
    const DropColumnsOp *o = &op->drop_columns;
    const int width = run->widths[o->out].width, x_width = run->widths[o->x].width;
    Part part = row_chunk(rows_of(run, op->header.row_set), width, chunk);
    for (int row = part.first_row; row < part.first_row + part.num_rows; row++) {
        const float *x = run->buffers[o->x] + (size_t)row * x_width;
        float *out = run->buffers[o->out] + (size_t)row * width;
        memcpy(out, x, (size_t)o->first * sizeof(float));
        memcpy(out + o->first, x + o->first + x_width - width,
               (size_t)(width - o->first) * sizeof(float));
    }
}

static int gate_chunks(const Op *op, const Run *run, int phase) {
    (void)phase;
    return count_element_chunks(rows_of(run, op->header.row_set), run->widths[op->gate.out].width);
}

static void gate_compute(const Op *op, const Run *run, int phase, int chunk, Scratch *scratch) {
    (void)phase, (void)scratch;
    const GateOp *o = &op->gate;
    const int width = run->widths[o->out].width, x_width = run->widths[o->x].width;
    Part part = element_chunk(rows_of(run, op->header.row_set), width, chunk);
    for (int row = part.first_row; row < part.first_row + part.num_rows; row++) {
        const float *x = run->buffers[o->x] + (size_t)row * x_width + o->first + part.first_col;
        float *out = run->buffers[o->out] + (size_t)row * width + part.first_col;
        if (o->is_plain)
            for (int i = 0; i < part.num_cols; i++) out[i] *= x[i];
        else
            for (int i = 0; i < part.num_cols; i++) out[i] *= fast_sigmoid(x[i]);
    }
}

const OpKernels drop_columns_kernels = {num_phases, drop_chunks, 0, drop_compute, no_bytes, no_bytes};
const OpKernels gate_kernels = {num_phases, gate_chunks, 0, gate_compute, no_bytes, no_bytes};
