/* Chunks of operations whose elements, or rows, are independent: about CHUNK_ELEMENTS each. */
#pragma once
#include "common.h"

enum { CHUNK_ELEMENTS = 4096 };

/* A part of a matrix: whole rows, or a range of one row's columns. */
typedef struct {
    int first_row, num_rows, first_col, num_cols;
} Part;

/* Whole rows per chunk: at least one. */
INLINE int rows_per_chunk(int width) { return max_int(1, CHUNK_ELEMENTS / max_int(1, width)); }

INLINE int count_row_chunks(int rows, int width) {
    int each = rows_per_chunk(width);
    return (rows + each - 1) / each;
}

INLINE Part row_chunk(int rows, int width, int chunk) {
    int first = chunk * rows_per_chunk(width);
    return (Part){first, min_int(rows_per_chunk(width), rows - first), 0, width};
}

/* The same, and wide rows are split. */
INLINE int count_element_chunks(int rows, int width) {
    int per_row = (width + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS;
    return per_row > 1 ? rows * per_row : count_row_chunks(rows, width);
}

INLINE Part element_chunk(int rows, int width, int chunk) {
    int per_row = (width + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS;
    if (per_row <= 1) return row_chunk(rows, width, chunk);
    int first = chunk % per_row * CHUNK_ELEMENTS;
    return (Part){chunk / per_row, 1, first, min_int(CHUNK_ELEMENTS, width - first)};
}
