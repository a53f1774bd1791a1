/* Rows of the matrices of linear operations times input rows. */
#include "linear_rows.h"

size_t all_weight_bytes(const LinearOp *op) {
    size_t nbytes = 0;
    for (int i = 0; i < op->num_parts; i++) {
        const Matrix *m = op->parts + i;
        nbytes += (size_t)m->stride * (is_tiled(m) ? num_tiles(m) : m->rows);
    }
    return nbytes;
}

/* Whether a matrix is multiplied by a GEMM. */
static int needs_gemm(const LinearOp *op, const Matrix *m, int num_inputs) {
    return num_inputs > MAX_GEMV_ROWS || (is_tiled(m) && op->exact);
}

size_t panel_bytes(const LinearOp *op, int num_inputs) {
    size_t most = 0;
    for (int i = 0; i < op->num_parts; i++) {
        if (!needs_gemm(op, op->parts + i, num_inputs)) continue;
        size_t nbytes = gemm_panel_bytes(op->parts + i, num_tiles(op->parts + i));
        if (nbytes > most) most = nbytes;
    }
    return most;
}

const uint8_t *weights_at(const LinearOp *op, int row) {
    for (int i = 0; i < op->num_parts; i++) {
        const Matrix *m = op->parts + i;
        if (row < m->rows) return m->data + (is_tiled(m) ? row / TILE_ROWS : row) * m->stride;
        row -= m->rows;
    }
    return NULL;
}

/* Rows first .. end of one matrix; y belongs to `first`. */
static void multiply_part(const LinearRows *rows, const Matrix *m, int first, int end, float *y,
                          const uint8_t *next) {
    const Inputs *in = rows->inputs;
    const int first_tile = first / TILE_ROWS, tiles = (end + TILE_ROWS - 1) / TILE_ROWS - first_tile;
    const int n = rows->num_inputs, all = rows->all_inputs, stride = rows->stride;
    const float *x = (in->floats ? in->floats : in->x) + (size_t)rows->first_input * m->cols;
    float *y_tile = y - first % TILE_ROWS;
    if (is_quantized(rows->op, m)) {
        if (needs_gemm(rows->op, m, all))
            gemm_tiles(m, first_tile, tiles, &in->quantized, rows->first_input, n, y_tile, stride,
                       rows->panel);
        else
            gemv_tiles(m, first_tile, tiles, &in->quantized, y_tile, stride, next);
    } else if (is_bf16_gemm(rows->op, m, all)) {
        const uint16_t *rounded = in->rounded + (size_t)rows->first_input * bf16_row_stride(m->cols);
        gemm_bf16(m, first_tile, tiles, rounded, n, y_tile, stride, rows->panel);
    } else if (needs_gemm(rows->op, m, all)) {
        gemm_float(m, first_tile, tiles, x, n, y_tile, stride, rows->panel);
    } else {
        gemv_float(m, first, end - first, x, n, y, stride, next);
    }
}

void multiply_weight_rows(const LinearRows *rows, int first, int end, float *y, const uint8_t *next) {
    const LinearOp *op = rows->op;
    for (int i = 0, part_row = 0; i < op->num_parts; part_row += op->parts[i].rows, i++) {
        const Matrix *m = op->parts + i;
        int from = max_int(first - part_row, 0), to = min_int(end - part_row, m->rows);
        if (from >= to) continue;
        const uint8_t *after = part_row + to < end ? weights_at(op, part_row + to) : next;
        multiply_part(rows, m, from, to, y + part_row + from - first, after);
    }
}
