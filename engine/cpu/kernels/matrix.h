/* Weight matrices as the kernels read them.

   A float matrix is row-major, as in the file: it can be a view of the mapped file. FP8 may have a
   scale for each `group_cols` columns of a row.

   Every other matrix is packed into tiles of 16 rows. A tile is its table of scales, then that of its
   minimums (if it has them), then its values; each of the three starts at a multiple of 64 bytes. A
   missing row of the last tile has zeros.

   A value has as many bits as the format says (tile_values.h), and is an integer, or stands for one of
   a list of numbers. A block of values is 32 columns; the last one is padded (the activations there
   are zero). It has planes of 4, 2 and 1 bits, which make up the format's bits, the lowest bits first:
     8 bits  [8][16][4] bytes: byte (j, r, c) is column 4j+c of row r, signed
     4 bits  [4][16][4] bytes: byte (j, r, c) holds column 4j+c in its low half, 16+4j+c in its high half
     2 bits  [2][16][4] bytes: byte (h, r, c) holds column 16h+4j+c in its bits 2j and 2j+1
     1 bit   [16][4] bytes: byte (r, c) holds column 4j+c in bit j
   Four neighboring bytes of a row are the operands of one int32 sum of dot-product instructions, and
   16 rows are one AVX-512 register of sums, two with AVX2, four with NEON.

   A table has an entry for each group of a row:
     fp16, fp32      [groups][16]
     e8m0            [groups][16] bytes b: 2^(b - 127)
     e4m3            [groups][16] bytes, times `unit`
     bytes, nibbles  [factors][16] fp16, then [groups][16] bytes, or [groups/2][16] bytes with the entry
                     of an even group in their low halves. An entry is that integer (of scales signed
                     bytes, else unsigned), times `unit`, times the factor of the group's columns.

   A weight is scale * (q - center) without minimums, and scale * q + minimum with them. The center is
   half of an integer's range, for INT2 1. */
#pragma once
#include <stdint.h>

enum Format {
    FORMAT_F32,
    FORMAT_F16,
    FORMAT_BF16,
    FORMAT_FP8,
    FORMAT_INT2,
    FORMAT_INT3,
    FORMAT_INT4,
    FORMAT_INT5,
    FORMAT_INT6,
    FORMAT_INT8,
    FORMAT_IQ1,
    FORMAT_IQ2,
    FORMAT_IQ3_XXS,
    FORMAT_IQ3_S,
    FORMAT_IQ4,
    FORMAT_E2M1,
    NUM_FORMATS
};
enum Tables { TABLES_FP16, TABLES_FP32, TABLES_E8M0, TABLES_E4M3, TABLES_BYTES, TABLES_NIBBLES, NUM_TABLES };
enum { TILE_ROWS = 16, BLOCK_COLS = 32, INT4_CENTER = 8 };

typedef struct {
    int32_t format;
    int32_t rows, cols;
    int32_t group_cols;  /* columns per scale: 16 or, FP8 always, a multiple of 32; 0: `row_scale` only */
    int32_t has_minimum;
    int32_t tables;      /* bytes have groups of 16 or 32 columns, nibbles of 16 */
    int32_t factor_cols; /* columns of a factor, a multiple of 32 */
    float unit;
    int64_t stride; /* bytes from row to row, or from tile to tile */
    const uint8_t *data;
    const float *row_scale; /* [rows], multiplied with the results; NULL: none */
    const float *group_scale; /* FP8 with group_cols: [rows][groups] */
} Matrix;
