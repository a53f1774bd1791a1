/* Embedding: rows of the table, and of the learned positions. */
#include "chunks.h"
#include "matrix_row.h"
#include "op_kernels.h"

static int num_phases(const Op *op, const Run *run) {
    (void)op, (void)run;
    return 1;
}

static int num_chunks(const Op *op, const Run *run, int phase) {
    (void)phase;
    return count_row_chunks(rows_of(run, op->header.row_set), run->widths[op->embed.out].width);
}

static void compute(const Op *op, const Run *run, int phase, int chunk, Scratch *scratch) {
    (void)phase;
    const EmbedOp *o = &op->embed;
    int width = run->widths[o->out].width;
    float *position = (float *)scratch->memory;
    Part part = row_chunk(rows_of(run, op->header.row_set), width, chunk);
    for (int row = part.first_row; row < part.first_row + part.num_rows; row++) {
        float *out = run->buffers[o->out] + (size_t)row * width;
        int has_given = o->table.data && run->embeddings && !o->is_second_table;
        const float *given = has_given ? run->embeddings[row] : 0;
        int id = run->ids[row];
        if (o->is_second_table && id >= o->table.rows) id = 0;
        if (given)
            memcpy(out, given, (size_t)width * sizeof(float));
        else if (o->table.data)
            matrix_row(&o->table, id, out);
        for (int i = 0; i < width; i++) out[i] = o->table.data ? out[i] * o->scale : 0.0f;
        if (!o->positions.data) continue;
        matrix_row(&o->positions, run->positions[row] + o->position_offset, position);
        for (int i = 0; i < width; i++) out[i] += position[i];
    }
}

static size_t workspace_bytes(const Op *op, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)op, (void)buffers, (void)num_tokens, (void)num_logits;
    return 0;
}

static size_t scratch_bytes(const Op *op, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)num_tokens, (void)num_logits;
    return (size_t)buffers[op->embed.out].width * sizeof(float);
}

const OpKernels embed_kernels = {num_phases, num_chunks, 0, compute, workspace_bytes, scratch_bytes};
