#include "matrix_row.h"

#include "numbers.h"

/* Entry `index` of a tile's scales or minimums. */
INLINE float table_entry(const Matrix *m, const uint8_t *table, size_t index) {
    if (entry_bytes(m) == 1) return byte_scale(m->format, table[index]);
    if (m->wide_tables) return ((const float *)table)[index];
    return fp16_to_float(((const uint16_t *)table)[index]);
}

/* Dequantize the columns of one block of row r of a tile: out [num_cols] = the integers. */
static void block_integers(const Matrix *m, const uint8_t *values, int r, int num_cols, float *out) {
    for (int col = 0; col < num_cols; col++) {
        int at = (col % 16 / 4 * 16 + r) * 4 + col % 4;
        if (m->format == FORMAT_INT8)
            out[col] = (float)(int8_t)values[at + col / 16 * 256];
        else if (numbers_of(m->format))
            out[col] = (float)numbers_of(m->format)[values[at] >> (col < 16 ? 0 : 4) & 15];
        else
            out[col] = (float)((values[at] >> (col < 16 ? 0 : 4) & 15) -
                               (m->has_minimum ? 0 : INT4_CENTER));
    }
}

/* scale * q + minimum for the columns first .. first + n, which share a group. */
static void scale_group(const Matrix *m, const uint8_t *tile, int r, int first, int n, float *out) {
    float scale = 1.0f, minimum = 0.0f;
    if (m->group_cols) {
        size_t entry = (size_t)(first / m->group_cols) * TILE_ROWS + (size_t)r;
        scale = table_entry(m, tile, entry);
        if (m->has_minimum) minimum = table_entry(m, tile + table_bytes(m), entry);
    }
    for (int i = 0; i < n; i++) out[first + i] = scale * out[first + i] + minimum;
}

static void tiled_row(const Matrix *m, int row, float *out) {
    const uint8_t *tile = m->data + (int64_t)(row / TILE_ROWS) * m->stride;
    const uint8_t *values = tile_values(m, tile);
    int r = row % TILE_ROWS;
    int group_cols = m->group_cols ? m->group_cols : m->cols;
    for (int block = 0; block < num_blocks(m->cols); block++) {
        int first = block * BLOCK_COLS;
        block_integers(m, values + (size_t)block * block_value_bytes(m), r,
                       min_int(BLOCK_COLS, m->cols - first), out + first);
    }
    for (int first = 0; first < m->cols; first += group_cols)
        scale_group(m, tile, r, first, min_int(group_cols, m->cols - first), out);
}

/* Element `index` of a row of 16-bit floats, which may start at any byte of a mapped file. */
INLINE uint16_t load_half(const uint8_t *data, int index) {
    uint16_t bits;
    memcpy(&bits, data + (size_t)index * 2, 2);
    return bits;
}

static void float_row(const Matrix *m, int row, float *out) {
    const uint8_t *data = m->data + (int64_t)row * m->stride;
    switch (m->format) {
        case FORMAT_F32:
            memcpy(out, data, (size_t)m->cols * sizeof(float));
            break;
        case FORMAT_F16:
            for (int i = 0; i < m->cols; i++) out[i] = fp16_to_float(load_half(data, i));
            break;
        case FORMAT_BF16:
            for (int i = 0; i < m->cols; i++) out[i] = bf16_to_float(load_half(data, i));
            break;
        default:
            for (int i = 0; i < m->cols; i++) out[i] = fp8_to_float(data[i]);
            for (int i = 0; m->group_scale && i < m->cols; i++)
                out[i] *= group_scales(m, row)[i / m->group_cols];
    }
}

void matrix_row(const Matrix *m, int row, float *out) {
    if (row < 0 || row >= m->rows) {
        memset(out, 0, (size_t)m->cols * sizeof(float));
        return;
    }
    if (is_tiled(m))
        tiled_row(m, row, out);
    else
        float_row(m, row, out);
    if (m->row_scale)
        for (int i = 0; i < m->cols; i++) out[i] *= m->row_scale[row];
}
