/* Rows of matrices of all formats, as floats. */
#pragma once
#include "matrix_layout.h"

/* out fp32 [cols] = row `row` of m; zeros if there is no such row. */
void matrix_row(const Matrix *m, int row, float *out);
