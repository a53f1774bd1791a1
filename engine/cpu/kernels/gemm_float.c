/* GEMM in fp32, and of bf16 matrices and activations.

   A chunk of the columns of one or two tiles becomes a panel [elements][rows] that stays in the L1
   cache while all vectors pass. An element is a column, or a pair of columns of bf16: 32 bits of a
   vector in any case. Registers hold the results of a group of vectors, y those between chunks. */
#include "gemm.h"
#include "gemm_float_panel.h"

_Static_assert(sizeof(FloatPanel) <= GEMM_PANEL_BYTES, "the panel fits in its memory");

enum {
    GROUP_VECTORS = LANES == 16 ? 8 : LANES == 8 ? 6 : 4,
    VECTOR_BLOCK = LANES == 16 ? 512 : 256, /* their elements of a chunk fit in the L2 cache */
    TILE_BLOCK = 16,                        /* y of a block of vectors and tiles does, too */
};

/* Vectors and where their results go, in elements from row to row. */
typedef struct {
    const float *x;
    float *y;
    size_t x_stride, y_stride;
} Vectors;

/* sums + w * x, of fp32 or of pairs of bf16. */
INLINE Floats add_weighted(Floats sums, Floats w, Floats x, int is_paired) {
    if (!is_paired) return add_product(sums, w, x);
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(sums, (__m512bh)w, (__m512bh)x);
#else
    const Ints high = (Ints){0} + (int32_t)0xffff0000;
    sums = add_product(sums, (Floats)((Ints)w << 16), (Floats)((Ints)x << 16));
    return add_product(sums, (Floats)((Ints)w & high), (Floats)((Ints)x & high));
#endif
}

/* n vectors times `vectors` registers of a panel's rows. n, vectors and is_paired are constants. */
INLINE void multiply(const FloatPanel *p, int vectors, Vectors to, int n, int is_paired) {
    const float *x = to.x + p->first_element, *weights = p->weights[0];
    Floats results[GROUP_VECTORS][PANEL_VECTORS];
    for (int v = 0; v < n; v++)
        for (int r = 0; r < vectors; r++)
            results[v][r] =
                p->is_first ? (Floats){0} : load_floats(to.y + v * to.y_stride + r * LANES);
#pragma clang loop unroll(disable)
    for (int c = 0; c < p->num_elements; c++, x++, weights += PANEL_ROWS) {
        Floats w[PANEL_VECTORS];
        for (int r = 0; r < vectors; r++) w[r] = load_floats(weights + r * LANES);
        for (int v = 0; v < n; v++) {
            Floats element = broadcast_float(x + v * to.x_stride);
            for (int r = 0; r < vectors; r++)
                results[v][r] = add_weighted(results[v][r], w[r], element, is_paired);
        }
    }
    for (int v = 0; v < n; v++)
        for (int r = 0; r < vectors; r++) {
            Floats result = results[v][r];
            if (p->is_last) result *= load_floats(p->row_scale + r * LANES);
            store_floats(to.y + v * to.y_stride + r * LANES, result);
        }
}

/* As `multiply` for any n up to GROUP_VECTORS; cases that have no registers are dead code. */
INLINE void multiply_group(const FloatPanel *p, int vectors, Vectors to, int n, int is_paired) {
#define CASE(count) \
    case count: \
        if (count <= GROUP_VECTORS) \
            multiply(p, vectors, to, min_int(count, GROUP_VECTORS), is_paired); \
        break;
    switch (n) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
#undef CASE
}

/* The instances of the kernel: a panel has the rows of PANEL_TILES, or of one tile. */
static void multiply_rows(const FloatPanel *p, Vectors to, int n) {
    const int is_whole = p->num_tiles == PANEL_TILES;
    if (p->is_paired && is_whole)
        multiply_group(p, PANEL_VECTORS, to, n, 1);
    else if (p->is_paired)
        multiply_group(p, TILE_VECTORS, to, n, 1);
    else if (is_whole)
        multiply_group(p, PANEL_VECTORS, to, n, 0);
    else
        multiply_group(p, TILE_VECTORS, to, n, 0);
}

/* A panel with missing rows: results go through rows that are complete. */
static void multiply_last_rows(const FloatPanel *p, Vectors to, int n) {
    _Alignas(64) float results[GROUP_VECTORS * PANEL_ROWS];
    const size_t bytes = p->num_rows * sizeof *to.y;
    if (!p->is_first)
        for (int v = 0; v < n; v++) memcpy(results + v * PANEL_ROWS, to.y + v * to.y_stride, bytes);
    multiply_rows(p, (Vectors){to.x, results, to.x_stride, PANEL_ROWS}, n);
    for (int v = 0; v < n; v++) memcpy(to.y + v * to.y_stride, results + v * PANEL_ROWS, bytes);
}

static Vectors vectors_from(Vectors all, int vector, int row) {
    all.x += vector * all.x_stride;
    all.y += vector * all.y_stride + row;
    return all;
}

/* All vectors times a panel, in groups as equal as possible. */
static void multiply_panel(const FloatPanel *p, Vectors to, int num_vectors) {
    int groups = (num_vectors + GROUP_VECTORS - 1) / GROUP_VECTORS;
    for (int g = 0; g < groups; g++) {
        int first = num_vectors * g / groups, n = num_vectors * (g + 1) / groups - first;
        if (p->num_rows == p->num_tiles * TILE_ROWS)
            multiply_rows(p, vectors_from(to, first, 0), n);
        else
            multiply_last_rows(p, vectors_from(to, first, 0), n);
    }
}

/* Ask for the panel's columns of the rows of the next tiles. */
static void prefetch_rows(const Matrix *m, int first_tile, int num_tiles, const FloatPanel *p) {
    if (is_tiled(m)) return;
    const int bytes = element_bytes[m->format];
    const int last = min_int((first_tile + num_tiles) * TILE_ROWS, m->rows);
    for (int r = first_tile * TILE_ROWS; r < last; r++) {
        const uint8_t *from = m->data + r * m->stride + p->first_col * bytes;
        for (int i = 0; i < p->num_cols * bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
    }
}

static void multiply_block(const Matrix *m, int first_tile, int num_tiles, Vectors to,
                           int num_vectors, FloatPanel *p) {
    const int element_cols = p->is_paired ? 2 : 1;
    const int elements = (m->cols + element_cols - 1) / element_cols;
    const int blocks = num_blocks(elements), chunks = (blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS;
    for (int c = 0; c < chunks; c++) {
        int last = blocks * (c + 1) / chunks * BLOCK_COLS;
        p->first_element = blocks * c / chunks * BLOCK_COLS;
        p->num_elements = min_int(last, elements) - p->first_element;
        p->first_col = p->first_element * element_cols;
        p->num_cols = min_int(last * element_cols, m->cols) - p->first_col;
        p->is_first = c == 0;
        p->is_last = c == chunks - 1;
        for (int t = 0; t < num_tiles; t += PANEL_TILES) {
            const int next = t + PANEL_TILES;
            fill_panel(m, first_tile + t, min_int(PANEL_TILES, num_tiles - t), p);
            prefetch_rows(m, first_tile + next, min_int(PANEL_TILES, num_tiles - next), p);
            multiply_panel(p, vectors_from(to, 0, t * TILE_ROWS), num_vectors);
        }
    }
}

static void multiply_blocks(const Matrix *m, int first_tile, int num_tiles, Vectors to,
                            int num_vectors, FloatPanel *p) {
    for (int v = 0; v < num_vectors; v += VECTOR_BLOCK)
        for (int t = 0; t < num_tiles; t += TILE_BLOCK)
            multiply_block(m, first_tile + t, min_int(TILE_BLOCK, num_tiles - t),
                           vectors_from(to, v, t * TILE_ROWS),
                           min_int(VECTOR_BLOCK, num_vectors - v), p);
}

void gemm_float(const Matrix *m, int first_tile, int num_tiles, const float *x, int num_vectors,
                float *y, int y_stride, uint8_t *panel) {
    FloatPanel *p = (FloatPanel *)panel;
    p->is_paired = 0;
    multiply_blocks(m, first_tile, num_tiles, (Vectors){x, y, m->cols, y_stride}, num_vectors, p);
}

void gemm_bf16(const Matrix *m, int first_tile, int num_tiles, const uint16_t *x, int num_vectors,
               float *y, int y_stride, uint8_t *panel) {
    FloatPanel *p = (FloatPanel *)panel;
    const size_t x_stride = bf16_row_stride(m->cols) / 2;
    p->is_paired = 1;
    multiply_blocks(m, first_tile, num_tiles, (Vectors){(const float *)x, y, x_stride, y_stride},
                    num_vectors, p);
}

void round_row_to_bf16(const float *x, int cols, uint16_t *to) {
    int c = 0;
#if defined(__AVX512BF16__)
    for (; c + 32 <= cols; c += 32) {
        __m512bh both = _mm512_cvtne2ps_pbh(load_floats(x + c + 16), load_floats(x + c));
        memcpy(to + c, &both, sizeof both);
    }
#endif
    for (; c < cols; c++) to[c] = float_to_bf16(x[c]);
    if (cols % 2) to[cols] = 0;
}
