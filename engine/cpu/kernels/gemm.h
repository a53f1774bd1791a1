/* Matrix times many vectors: a tile of weights is unpacked once and stays in the cache. */
#pragma once
#include "common.h"
#include "matrix.h"
#include "quantized_rows.h"

/* Bytes of the memory `panel`, for unpacked weights and converted activations. */
enum { GEMM_PANEL_BYTES = 512 * 1024 };
EXPORT size_t gemm_panel_bytes(const Matrix *m, int num_tiles);
/* As `gemv_tiles`, bitwise equal, for vectors first_vector .. first_vector + num_vectors of x;
   y[0] belongs to first_vector. */
EXPORT void gemm_tiles(const Matrix *m, int first_tile, int num_tiles, const QuantizedRows *x,
                       int first_vector, int num_vectors, float *y, int y_stride, uint8_t *panel);
/* As `gemv_float` for 16 * num_tiles rows (the last tile may have fewer), any number of vectors, and
   matrices of every format: integers are dequantized to fp32, exactly. */
EXPORT void gemm_float(const Matrix *m, int first_tile, int num_tiles, const float *x, int num_vectors,
                       float *y, int y_stride, uint8_t *panel);
