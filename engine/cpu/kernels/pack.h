/* Pack quantized matrices into tiles. The functions may run on several threads at once, for
   different tiles; they read any bytes without a fault. */
#pragma once
#include "common.h"
#include "matrix_layout.h"
#include "pack_source.h"

/* Packs columns first_col .. first_col + num_cols of the source's rows from first_row on into the
   tiles first_tile .. first_tile + num_tiles of `to`, from its column to_col on; rows after the
   source's last are zeros. first_col and to_col are multiples of 32, and num_cols too unless these
   are the last columns of both. Scales and minimums are times `multiplier`. Returns 0
   or a sum of PackError. */
EXPORT int pack_tiles(const PackSource *source, int first_row, int first_col, int num_cols,
                      const Matrix *to, int first_tile, int num_tiles, int to_col,
                      float multiplier);
/* Row i of `to` becomes row order[i] of `from`, in the same layout, for i in the tiles first_tile
   .. first_tile + num_tiles of `to`. */
EXPORT void reorder_tiles(const Matrix *from, const int32_t *order, const Matrix *to,
                          int first_tile, int num_tiles);
