/* GEMV of tiled integer matrices. A pass takes a tile and up to VECTORS_PER_PASS vectors from block to
   block, with the fp32 sums of its 16 rows in registers. */

#include "gemv.h"

#if defined(__AVX512VNNI__)
#include "dot_avx512.h"
#elif defined(__AVXVNNI__)
#include "dot_avxvnni.h"
#elif defined(__AVX2__)
#include "dot_avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "dot_neon.h"
#else
#include "dot_plain.h"
#endif
enum { PREFETCH_BYTES = 8192 };
enum Half { FIRST_HALF, SECOND_HALF, WHOLE_BLOCK };

/* Which code a matrix needs; a constant in every instance of `tile_pass`. */
typedef struct {
    int32_t format, has_minimum, half_groups;
} Kind;

/* Where the scales and minimums of a tile's blocks are. */
typedef struct {
    const uint8_t *scale, *minimum;
    int32_t entry_bytes, group_bytes, blocks_per_group, last_group;
} Tables;

/* Weights that will be read soon: `at`, and after `end` what is `jump` bytes further. */
typedef struct {
    const uint8_t *at, *end;
    ptrdiff_t jump;
    int32_t block_lines;
} Prefetch;

static const float ones[TILE_ROWS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

static Tables tables_of(const Matrix *m, const uint8_t *tile) {
    if (!m->group_cols) return (Tables){(const uint8_t *)ones, NULL, 4, 0, 1, 0};
    return (Tables){
        .scale = tile,
        .minimum = tile + table_bytes(m),
        .entry_bytes = entry_bytes(m),
        .group_bytes = TILE_ROWS * entry_bytes(m),
        .blocks_per_group = max_int(m->group_cols / BLOCK_COLS, 1),
        .last_group = num_groups(m) - 1,
    };
}

INLINE Floats16 load_table(Kind kind, const uint8_t *at, int nbytes) {
    if (kind.format == FORMAT_MXFP4) return load_powers(at);
    if (kind.format == FORMAT_NVFP4) {
        uint16_t halves[TILE_ROWS];
        for (int r = 0; r < TILE_ROWS; r++) halves[r] = e4m3_as_fp16(at[r]);
        return load_halves(halves);
    }
    return nbytes == 4 ? load_floats((const float *)at) : load_halves((const uint16_t *)at);
}

INLINE void prefetch_block(Prefetch *ahead) {
    for (int i = 0; i < ahead->block_lines; i++, ahead->at += 64)
        prefetch(ahead->at + (ahead->at < ahead->end ? 0 : ahead->jump));
}

/* The sum of q of a block or of half of it. */
INLINE int32_t block_sum(const QuantizedRows *x, size_t block, int half) {
    if (half == WHOLE_BLOCK) return x->sum[block];
    return half == FIRST_HALF ? x->half_sum[block] : x->sum[block] - x->half_sum[block];
}

/* Add a block, or half of one, to the sums of n vectors. */
INLINE void add_block(Kind kind, const uint8_t *values, const Tables *tables, ptrdiff_t group_at,
                      const QuantizedRows *x, size_t block, int n, int half, Floats16 *sums) {
    Floats16 scale = load_table(kind, tables->scale + group_at, tables->entry_bytes), minimum = scale;
    if (kind.has_minimum) minimum = load_table(kind, tables->minimum + group_at, tables->entry_bytes);
    Ints16 ints[VECTORS_PER_PASS];
    if (kind.format == FORMAT_INT8)
        dot_int8(values, x, block, n, half, ints);
    else
        dot_4_bits(values, centered_numbers_of(kind.format), x, block, n, half, ints);
#pragma GCC unroll 8
    for (int v = 0; v < n; v++, block += x->blocks) {
        if (kind.format != FORMAT_INT8 && !kind.has_minimum)
            ints[v] = subtract(ints[v], center_of(kind.format) * block_sum(x, block, half));
        sums[v] = add_scaled(ints[v], x->scale[block], scale, sums[v]);
        if (kind.has_minimum)
            sums[v] = add_multiple((float)block_sum(x, block, half) * x->scale[block], minimum, sums[v]);
    }
}

/* What a pass reads and where its results go: y[v * y_stride + i], v < n, i < 16. `ahead` NULL: no
   prefetching. */
typedef struct {
    const Matrix *m;
    const uint8_t *tile;
    const QuantizedRows *x;
    int32_t first_vector;
    Prefetch *ahead;
    float *y;
    int32_t y_stride;
} Pass;

/* A tile times vectors first_vector .. first_vector + n of x, without row scales. */
INLINE void tile_pass(Kind kind, const Pass *pass, int n) {
    const Matrix *m = pass->m;
    const QuantizedRows *x = pass->x;
    const Tables tables = tables_of(m, pass->tile);
    const uint8_t *values = tile_values(m, pass->tile);
    const ptrdiff_t last = (ptrdiff_t)tables.last_group * tables.group_bytes;
    const float zeros[TILE_ROWS] = {0};
    Floats16 sums[VECTORS_PER_PASS];
#pragma GCC unroll 8
    for (int v = 0; v < n; v++) sums[v] = load_floats(zeros);
    Prefetch ahead = {0};
    if (pass->ahead) ahead = *pass->ahead;
    size_t block = (size_t)pass->first_vector * x->blocks;
    ptrdiff_t group_at = 0;
    int left = tables.blocks_per_group;
    for (int b = num_blocks(m->cols); b > 0; b--, block++) {
        prefetch_block(&ahead);
        if (kind.half_groups) {
            ptrdiff_t second = group_at < last ? group_at + tables.group_bytes : group_at;
            add_block(kind, values, &tables, group_at, x, block, n, FIRST_HALF, sums);
            add_block(kind, values, &tables, second, x, block, n, SECOND_HALF, sums);
            group_at += 2 * tables.group_bytes;
        } else {
            add_block(kind, values, &tables, group_at, x, block, n, WHOLE_BLOCK, sums);
            left--;
            group_at += left ? 0 : tables.group_bytes;
            left = left ? left : tables.blocks_per_group;
        }
        values += kind.format == FORMAT_INT8 ? 512 : 256;
    }
#pragma GCC unroll 8
    for (int v = 0; v < n; v++) store_floats(pass->y + (size_t)v * pass->y_stride, sums[v]);
}

INLINE void tile_pass_of(Kind kind, const Pass *pass, int n) {
#define CASE(N) \
    case N: \
        if (N <= VECTORS_PER_PASS) tile_pass(kind, pass, N); \
        break;
    switch (n) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
    }
#undef CASE
}

typedef void PassFunction(const Pass *pass, int n);
#define PASS(name, format, has_minimum, half_groups) \
    static void name(const Pass *pass, int n) { \
        tile_pass_of((Kind){format, has_minimum, half_groups}, pass, n); \
    }
PASS(int4_centered, FORMAT_INT4, 0, 0)
PASS(int4_centered_halves, FORMAT_INT4, 0, 1)
PASS(int4_minimum, FORMAT_INT4, 1, 0)
PASS(int4_minimum_halves, FORMAT_INT4, 1, 1)
PASS(int8_plain, FORMAT_INT8, 0, 0)
PASS(int8_halves, FORMAT_INT8, 0, 1)
PASS(int8_minimum, FORMAT_INT8, 1, 0)
PASS(int8_minimum_halves, FORMAT_INT8, 1, 1)
PASS(mxfp4, FORMAT_MXFP4, 0, 0)
PASS(mxfp4_halves, FORMAT_MXFP4, 0, 1)
PASS(nvfp4, FORMAT_NVFP4, 0, 0)
PASS(nvfp4_halves, FORMAT_NVFP4, 0, 1)
#undef PASS
/* [INT4, INT8, MXFP4, NVFP4][with minimums][groups of 16] */
static PassFunction *const pass_functions[4][2][2] = {
    {{int4_centered, int4_centered_halves}, {int4_minimum, int4_minimum_halves}},
    {{int8_plain, int8_halves}, {int8_minimum, int8_minimum_halves}},
    {{mxfp4, mxfp4_halves}, {NULL, NULL}},
    {{nvfp4, nvfp4_halves}, {NULL, NULL}},
};

static void apply_row_scale(const Matrix *m, int tile, int num_vectors, float *y, int y_stride) {
    int rows = min_int(TILE_ROWS, m->rows - tile * TILE_ROWS);
    const float *scale = m->row_scale + (size_t)tile * TILE_ROWS;
    for (int v = 0; v < num_vectors; v++)
        for (int i = 0; i < rows; i++) y[(size_t)v * y_stride + i] *= scale[i];
}

void gemv_tiles(const Matrix *m, int first_tile, int num_tiles, const QuantizedRows *x, float *y,
                int y_stride, const uint8_t *next) {
    PassFunction *pass_function =
        pass_functions[m->format - FORMAT_INT4][m->has_minimum != 0][m->group_cols == BLOCK_COLS / 2];
    const uint8_t *tile = m->data + first_tile * m->stride, *end = tile + num_tiles * m->stride;
    int blocks = num_blocks(m->cols);
    Prefetch ahead = {
        .end = end,
        .jump = next ? next - end : 0,
        .block_lines = (int)((m->stride + 64 * blocks - 1) / (64 * blocks)),
    };
    for (int t = first_tile; t < first_tile + num_tiles; t++, tile += m->stride, y += TILE_ROWS) {
        ahead.at = tile + PREFETCH_BYTES;
        Pass pass = {m, tile, x, 0, &ahead, y, y_stride};
        for (int passes = (x->num_rows + VECTORS_PER_PASS - 1) / VECTORS_PER_PASS; passes > 0; passes--) {
            const int n = (x->num_rows - pass.first_vector + passes - 1) / passes;
            pass_function(&pass, n);
            pass.first_vector += n;
            pass.y += (size_t)n * y_stride;
            pass.ahead = NULL;
        }
        if (m->row_scale) apply_row_scale(m, t, x->num_rows, y, y_stride);
    }
}
