/* The input rows of linear operations. */
#include "linear_inputs.h"

#include "norm.h"

enum { MUST_COPY = 1, MUST_ROUND = 2, MUST_QUANTIZE = 4 };

/* What must be made of x. Float matrices read x itself if nothing changes it. */
static int needs_of(const LinearOp *op, int num_rows) {
    int needs = 0;
    for (int i = 0; i < op->num_parts; i++) {
        if (is_quantized(op, op->parts + i))
            needs |= MUST_QUANTIZE;
        else if (is_bf16_gemm(op, op->parts + i, num_rows))
            needs |= MUST_ROUND;
        else if (op->norm.kind != NORM_NONE || op->x == op->out)
            needs |= MUST_COPY;
    }
    return needs;
}

int shares_inputs(const LinearOp *op, int num_rows) {
    return needs_of(op, num_rows) != 0 && (num_rows > MAX_GEMV_ROWS || op->x == op->out);
}

static size_t copy_bytes(const LinearOp *op, int num_rows) {
    return needs_of(op, num_rows) & MUST_COPY ? round_up_64((size_t)num_rows * linear_cols(op) * 4) : 0;
}

static size_t rounded_bytes(const LinearOp *op, int num_rows) {
    size_t nbytes = (size_t)num_rows * bf16_row_stride(linear_cols(op)) * 2;
    return needs_of(op, num_rows) & MUST_ROUND ? round_up_64(nbytes) : 0;
}

size_t inputs_bytes(const LinearOp *op, int num_rows) {
    size_t nbytes = copy_bytes(op, num_rows) + rounded_bytes(op, num_rows);
    if (!(needs_of(op, num_rows) & MUST_QUANTIZE)) return nbytes;
    return nbytes + quantized_rows_bytes(num_rows, linear_cols(op));
}

Inputs place_inputs(const LinearOp *op, int num_rows, const float *x, uint8_t *memory) {
    const int needs = needs_of(op, num_rows);
    Inputs inputs = {.x = x};
    if (needs & MUST_COPY) inputs.floats = (float *)memory;
    memory += copy_bytes(op, num_rows);
    if (needs & MUST_ROUND) inputs.rounded = (uint16_t *)memory;
    memory += rounded_bytes(op, num_rows);
    if (needs & MUST_QUANTIZE) inputs.quantized = place_quantized_rows(memory, num_rows, linear_cols(op));
    return inputs;
}

void prepare_input(const LinearOp *op, const Inputs *inputs, int row, float *scratch) {
    const int cols = linear_cols(op);
    const float *x = inputs->x + (size_t)row * cols;
    float *copy = inputs->floats ? inputs->floats + (size_t)row * cols : scratch;
    if (op->norm.kind != NORM_NONE) {
        norm_row(&op->norm, x, cols, copy);
        x = copy;
    } else if (inputs->floats) {
        memcpy(copy, x, (size_t)cols * 4);
    }
    if (inputs->rounded)
        round_row_to_bf16(x, cols, inputs->rounded + (size_t)row * bf16_row_stride(cols));
    if (inputs->quantized.num_rows) quantize_row(x, cols, &inputs->quantized, row);
}
