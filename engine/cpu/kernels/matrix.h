/* Weight matrices as the kernels read them.

   A float matrix is row-major, as in the file: it can be a view of the mapped file. FP8 may have a
   scale for each `group_cols` columns of a row.

   An integer or 4-bit float matrix is packed into tiles of 16 rows. A tile is its scales, then its minimums (if it
   has them), then its values; each of the three starts at a multiple of 64 bytes. A missing row of
   the last tile has zeros.
     scales, minimums   [groups][16] fp16, or fp32 with `wide_tables`; MXFP4, NVFP4: bytes
     values, INT4, MXFP4, NVFP4
                        [blocks][4][16][4] bytes: byte (j, r, c) of a block holds column 4j+c of row
                        r in its low half and column 16+4j+c in its high half, unsigned
     values, INT8       [blocks][8][16][4] bytes: byte (j, r, c) is column 4j+c of row r, signed
   A block is 32 columns; the last one is padded (the activations there are zero). Four neighboring
   bytes of a row are the operands of one int32 sum of dot-product instructions, and 16 rows are one
   AVX-512 register of sums, two with AVX2, four with NEON.

   A weight is scale * (q - 8) for INT4 without minimums, scale * q for INT8 without minimums, and
   scale * q + minimum with them. MXFP4 and NVFP4 have groups and no minimums: for
   MXFP4 it is 2^(scale - 127) * e2m1(q), for NVFP4 2^-7 * e4m3(scale) * e2m1(q), which `row_scale` makes up for. */
#pragma once
#include <stdint.h>

enum Format { FORMAT_F32, FORMAT_F16, FORMAT_BF16, FORMAT_FP8, FORMAT_INT4, FORMAT_INT8, FORMAT_MXFP4, FORMAT_NVFP4 };
enum { TILE_ROWS = 16, BLOCK_COLS = 32, INT4_CENTER = 8, E2M1_CENTER = 12 };

typedef struct {
    int32_t format;
    int32_t rows, cols;
    int32_t group_cols;  /* columns per scale: 16 or, FP8 always, a multiple of 32; 0: `row_scale` only */
    int32_t has_minimum;
    int32_t wide_tables; /* scales and minimums are fp32, not fp16 */
    int64_t stride;      /* bytes from row to row, or from tile to tile */
    const uint8_t *data;
    const float *row_scale; /* [rows], multiplied with the results; NULL: none */
    const float *group_scale; /* FP8 with group_cols: [rows][groups] */
} Matrix;
