/* Matrix times many vectors: a tile of weights is unpacked once and stays in the cache.

   Calls for 8 to 16 tiles and up to 512 vectors are best, with a y of its own for them: rows of y
   that are a few KB apart, or more results than the L2 cache holds, cost up to 15 %. AVX-512
   computes two tiles at once. */
#pragma once
#include "common.h"
#include "matrix_layout.h"
#include "quantized_rows.h"

/* Bytes of the memory `panel`, for unpacked weights. */
enum { GEMM_PANEL_BYTES = 40 * 1024 };
EXPORT size_t gemm_panel_bytes(const Matrix *m, int num_tiles);
/* As `gemv_tiles`, bitwise equal, for vectors first_vector .. first_vector + num_vectors of x;
   y[0] belongs to first_vector. */
EXPORT void gemm_tiles(const Matrix *m, int first_tile, int num_tiles, const QuantizedRows *x,
                       int first_vector, int num_vectors, float *y, int y_stride, uint8_t *panel);
/* As `gemv_float` for 16 * num_tiles rows (of the last tile only those that exist), any number of
   vectors, and matrices of every format: integers are dequantized to fp32, exactly. */
EXPORT void gemm_float(const Matrix *m, int first_tile, int num_tiles, const float *x,
                       int num_vectors, float *y, int y_stride, uint8_t *panel);

/* The same for a bf16 matrix and activations rounded to bf16; sums are fp32. The rows of x are
   bf16_row_stride(cols) elements apart. Faster than gemm_float with HAS_BF16_DOT only. */
EXPORT void gemm_bf16(const Matrix *m, int first_tile, int num_tiles, const uint16_t *x,
                      int num_vectors, float *y, int y_stride, uint8_t *panel);
/* Round x [cols] to a row of bf16. */
EXPORT void round_row_to_bf16(const float *x, int cols, uint16_t *to);
/* At least cols, and even; rows are not a multiple of 2 KB apart. */
static inline int bf16_row_stride(int cols) {
    int stride = (cols + 31) / 32 * 32;
    return stride % 1024 ? stride : stride + 32;
}
#if defined(__AVX512BF16__)
enum { HAS_BF16_DOT = 1 };
#else
enum { HAS_BF16_DOT = 0 };
#endif
