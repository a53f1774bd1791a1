/* Stands for gemm_tiles.c and gemm_float.c until they are written. */
#include "gemm.h"

size_t gemm_panel_bytes(const Matrix *m, int num_tiles) {
    (void)m, (void)num_tiles;
    return 0;
}

void gemm_tiles(const Matrix *m, int first_tile, int num_tiles, const QuantizedRows *x, int first_vector,
                int num_vectors, float *y, int y_stride, uint8_t *panel) {
    (void)m, (void)first_tile, (void)num_tiles, (void)x, (void)first_vector, (void)num_vectors, (void)y;
    (void)y_stride, (void)panel;
}

void gemm_float(const Matrix *m, int first_tile, int num_tiles, const float *x, int num_vectors, float *y,
                int y_stride, uint8_t *panel) {
    (void)m, (void)first_tile, (void)num_tiles, (void)x, (void)num_vectors, (void)y, (void)y_stride;
    (void)panel;
}
