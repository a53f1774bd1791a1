/* The input rows of linear operations, normalized and in the forms that its matrices need. */
#pragma once
#include "common.h"
#include "gemm.h"
#include "gemv.h"
#include "op_kernels.h"

/* `floats` fp32 [num_rows][cols] and `rounded` bf16 [num_rows][bf16_row_stride(cols)], NULL: no matrix
   needs them; `quantized` without rows: likewise. They are made of x fp32 [num_rows][cols]. */
typedef struct {
    const float *x;
    float *floats;
    uint16_t *rounded;
    QuantizedRows quantized;
} Inputs;

INLINE int linear_cols(const LinearOp *op) { return op->parts[0].cols; }
/* Whether a matrix is multiplied with quantized rows. */
INLINE int is_quantized(const LinearOp *op, const Matrix *m) { return is_tiled(m) && !op->exact; }

/* Whether a matrix is multiplied with bf16 rows. */
INLINE int is_bf16_gemm(const LinearOp *op, const Matrix *m, int num_rows) {
    return HAS_BF16_DOT && m->format == FORMAT_BF16 && !op->exact && num_rows > MAX_GEMV_ROWS;
}

/* Whether inputs are prepared once for all threads, in a phase of its own: they are many, or the
   output overwrites them. */
int shares_inputs(const LinearOp *op, int num_rows);
/* Bytes of the memory for the inputs of so many rows. */
size_t inputs_bytes(const LinearOp *op, int num_rows);
/* The inputs of num_rows rows x, laid out in `memory` (64-byte aligned). */
Inputs place_inputs(const LinearOp *op, int num_rows, const float *x, uint8_t *memory);
/* Fill row `row` of the inputs; `scratch` fp32 [cols]. */
void prepare_input(const LinearOp *op, const Inputs *inputs, int row, float *scratch);
