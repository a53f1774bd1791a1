/* Stands for quantized_rows.c, gemv_tiles.c and gemv_float.c until they are written. */
#include "gemv.h"

size_t quantized_rows_bytes(int num_rows, int cols) {
    (void)num_rows, (void)cols;
    return 0;
}

QuantizedRows place_quantized_rows(uint8_t *memory, int num_rows, int cols) {
    (void)memory;
    return (QuantizedRows){num_rows, num_blocks(cols), 0, 0, 0, 0, 0, 0};
}

void quantize_row(const float *x, int cols, const QuantizedRows *to, int row) {
    (void)x, (void)cols, (void)to, (void)row;
}

void gemv_tiles(const Matrix *m, int first_tile, int num_tiles, const QuantizedRows *x, float *y,
                int y_stride, const uint8_t *next) {
    (void)m, (void)first_tile, (void)num_tiles, (void)x, (void)y, (void)y_stride, (void)next;
}

void gemv_float(const Matrix *m, int first_row, int num_rows, const float *x, int num_vectors, float *y,
                int y_stride, const uint8_t *next) {
    (void)m, (void)first_row, (void)num_rows, (void)x, (void)num_vectors, (void)y, (void)y_stride, (void)next;
}
