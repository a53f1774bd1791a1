#include "matrix_row.h"

#include "tile_table.h"
#include "tile_values.h"

/* Element r of rows. */
INLINE float element(Floats16 rows, int r) { return rows.part[r / LANES][r % LANES]; }

/* scale * q + minimum for the columns first .. first + n, which share a group. */
static void scale_group(const Matrix *m, const uint8_t *tile, int r, int first, int n, float *out) {
    const int group = m->group_cols ? first / m->group_cols : 0;
    const Table scales = table_of(m, tile, 0), minimums = table_of(m, tile, 1);
    const float scale = element(entries_of(&scales, group), r);
    const float minimum = m->has_minimum ? element(entries_of(&minimums, group), r) : 0;
    for (int i = 0; i < n; i++) out[first + i] = scale * out[first + i] + minimum;
}

static void tiled_row(const Matrix *m, int row, float *out) {
    const uint8_t *tile = m->data + (int64_t)(row / TILE_ROWS) * m->stride;
    const uint8_t *values = tile_values(m, tile);
    const Values kind = values_of(m->format, m->has_minimum);
    int r = row % TILE_ROWS;
    int group_cols = m->group_cols ? m->group_cols : m->cols;
    for (int col = 0; col < m->cols; col++) {
        const uint8_t *block = values + (size_t)(col / BLOCK_COLS) * 64 * kind.bits;
        out[col] = (float)value_at(kind, block, r, col % BLOCK_COLS);
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
