/* Rows of the matrices of linear operations, which lie one below the other, times input rows. */
#pragma once
#include "linear_inputs.h"

/* Input rows first_input .. first_input + num_inputs of all_inputs, and where results go. */
typedef struct {
    const LinearOp *op;
    const Inputs *inputs;
    int all_inputs, first_input, num_inputs;
    int stride;     /* floats from the results of an input row to those of the next */
    uint8_t *panel; /* panel_bytes */
} LinearRows;

/* Bytes of all weights. */
size_t all_weight_bytes(const LinearOp *op);
/* Bytes of the panel for GEMMs of num_inputs input rows. */
size_t panel_bytes(const LinearOp *op, int num_inputs);
/* Where row `row` of all matrices, or its tile, begins; NULL after the last. */
const uint8_t *weights_at(const LinearOp *op, int row);
/* y[i * stride + r - first] = row r times input i, first <= r < end; up to 15 floats before and after
   are overwritten too. `next`: what the thread will read next, for prefetching; NULL: unknown. */
void multiply_weight_rows(const LinearRows *rows, int first, int end, float *y, const uint8_t *next);
