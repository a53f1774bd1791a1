/* GEMV of float matrices, row after row as they lie in the file. The order of a row's sums depends
   neither on the number of vectors nor on the row. */
#include "gemv.h"

#include "vector.h"
#include "weight_lanes.h"

enum {
    PREFETCH_BYTES = 2048,
    CHAINS = 4, /* sums per vector, so that multiply-adds need not wait for each other */
    STEP_COLS = CHAINS * LANES,
    VECTORS_PER_PASS = LANES == 16 ? 4 : 2,
};

/* Weights to prefetch: those PREFETCH_BYTES further, and after `end` what is `jump` bytes further. */
typedef struct {
    const uint8_t *end;
    ptrdiff_t jump;
} Ahead;

INLINE void prefetch_ahead(Ahead ahead, const uint8_t *at, int nbytes) {
    at += PREFETCH_BYTES;
    at += at < ahead.end ? 0 : ahead.jump;
    for (int i = 0; i < nbytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

INLINE float add_lanes(Floats v) {
    float sums[LANES];
    store_floats(sums, v);
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) sums[i] += sums[i + n];
    return sums[0];
}

/* Add the columns c .. end of row * x[v] to sums[v] for v < n. `scale`, if any, multiplies the weights. `format` and n
   are constants. */
INLINE void multiply_cols(int format, const uint8_t *row, int cols, int c, int end, const float *scale,
                          const float *x, int n, Ahead ahead, Floats sums[VECTORS_PER_PASS][CHAINS]) {
    const int bytes = weight_bytes(format);
    for (; c + STEP_COLS <= end; c += STEP_COLS) {
        prefetch_ahead(ahead, row + c * (ptrdiff_t)bytes, STEP_COLS * bytes);
#pragma GCC unroll 4
        for (int i = 0; i < CHAINS; i++) {
            const int col = c + i * LANES;
            Floats weights = load_weights(format, row + col * (ptrdiff_t)bytes);
            if (scale) weights *= *scale;
#pragma GCC unroll 4
            for (int v = 0; v < n; v++)
                sums[v][i] = add_product(sums[v][i], weights, load_floats(x + v * (ptrdiff_t)cols + col));
        }
    }
    for (; c < end; c += LANES) {
        const int rest = min_int(LANES, end - c);
        uint8_t last[LANES * 4] = {0};
        memcpy(last, row + c * (ptrdiff_t)bytes, (size_t)rest * bytes);
        Floats weights = load_weights(format, last);
        if (scale) weights *= *scale;
#pragma GCC unroll 4
        for (int v = 0; v < n; v++) {
            float last_x[LANES] = {0};
            memcpy(last_x, x + v * (ptrdiff_t)cols + c, (size_t)rest * 4);
            sums[v][0] = add_product(sums[v][0], weights, load_floats(last_x));
        }
    }
}

/* y[v * y_stride] = row * x[v] for v < n. `format` and n are constants. `scales`: of groups of columns, or NULL. */
INLINE void multiply_row(int format, const uint8_t *row, int cols, int group_cols, const float *scales,
                         const float *x, int n, Ahead ahead, float *y, int y_stride) {
    Floats sums[VECTORS_PER_PASS][CHAINS] = {{{0}}};
    if (format != FORMAT_FP8 || !group_cols)
        multiply_cols(format, row, cols, 0, cols, NULL, x, n, ahead, sums);
    else
        for (int c = 0; c < cols; c += group_cols)
            multiply_cols(format, row, cols, c, c + group_cols, scales++, x, n, ahead, sums);
#pragma GCC unroll 4
    for (int v = 0; v < n; v++)
        y[v * (ptrdiff_t)y_stride] = add_lanes((sums[v][0] + sums[v][1]) + (sums[v][2] + sums[v][3]));
}

/* `format` is a constant. The cases of too many vectors are dead code. */
INLINE void multiply_rows(int format, const Matrix *m, int first_row, int num_rows, const float *x,
                          int num_vectors, Ahead ahead, float *y, int y_stride) {
#define CASE(count)                                                                           \
    case count:                                                                               \
        if (count <= VECTORS_PER_PASS)                                                        \
            multiply_row(format, row, m->cols, m->group_cols, scales, vectors, count, ahead,      \
                         results, y_stride);                                                      \
        break;
    const uint8_t *row = m->data + first_row * m->stride;
    for (int r = 0; r < num_rows; r++, row += m->stride, y++) {
        const float *scales = group_scales(m, first_row + r);
        for (int v = 0; v < num_vectors; v += VECTORS_PER_PASS) {
            const float *vectors = x + v * (ptrdiff_t)m->cols;
            float *results = y + v * (ptrdiff_t)y_stride;
            switch (min_int(num_vectors - v, VECTORS_PER_PASS)) {
                CASE(1) CASE(2) CASE(3) CASE(4)
            }
        }
        float factor = weight_factor(format) * (m->row_scale ? m->row_scale[first_row + r] : 1.0f);
        for (int v = 0; v < num_vectors; v++) y[v * (ptrdiff_t)y_stride] *= factor;
    }
#undef CASE
}

void gemv_float(const Matrix *m, int first_row, int num_rows, const float *x, int num_vectors, float *y,
                int y_stride, const uint8_t *next) {
    const uint8_t *end = m->data + (first_row + num_rows) * m->stride;
    Ahead ahead = {end, next ? next - end : 0};
    switch (m->format) {
        case FORMAT_F32:
            multiply_rows(FORMAT_F32, m, first_row, num_rows, x, num_vectors, ahead, y, y_stride);
            break;
        case FORMAT_F16:
            multiply_rows(FORMAT_F16, m, first_row, num_rows, x, num_vectors, ahead, y, y_stride);
            break;
        case FORMAT_BF16:
            multiply_rows(FORMAT_BF16, m, first_row, num_rows, x, num_vectors, ahead, y, y_stride);
            break;
        case FORMAT_FP8:
            multiply_rows(FORMAT_FP8, m, first_row, num_rows, x, num_vectors, ahead, y, y_stride);
            break;
    }
}
