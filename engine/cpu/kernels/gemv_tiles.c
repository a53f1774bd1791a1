/* GEMV of tiled integer matrices. A pass takes a tile and up to VECTORS_PER_PASS vectors from block to
   block, with the fp32 sums of its 16 rows in registers. */

#include "gemv.h"

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
#include "dot_bytes.h"
#elif defined(__AVX2__)
#include "dot_avx2.h"
#else
#include "dot_plain.h"
#endif
#include "tile_table.h"

enum { PREFETCH_BYTES = 8192 };

/* Which code a matrix needs; a constant in every instance of `tile_pass`. FP16 tables are also those of
   fp32. */
typedef struct {
    int32_t format, has_minimum, half_groups, tables;
} Kind;

/* Weights that will be read soon: `at`, and after `end` what is `jump` bytes further. */
typedef struct {
    const uint8_t *at, *end;
    ptrdiff_t jump;
    int32_t block_lines;
} Prefetch;

INLINE void prefetch_block(Prefetch *ahead) {
    for (int i = 0; i < ahead->block_lines; i++, ahead->at += 64)
        prefetch(ahead->at + (ahead->at < ahead->end ? 0 : ahead->jump));
}

/* A walk through the tables of a tile, from block to block. */
typedef struct {
    Table scales, minimums;
    Floats16 scale_factors, minimum_factors;
    int32_t group, last_group, blocks_per_group, blocks_left;
} Tables;

INLINE Tables tables_of(Kind kind, const Matrix *m, const uint8_t *tile) {
    Tables tables = {
        .scales = table_of(m, tile, 0),
        .minimums = table_of(m, tile, 1),
        .last_group = m->group_cols ? num_groups(m) - 1 : 0,
        .blocks_per_group = max_int((has_factors(kind.tables) ? m->factor_cols : m->group_cols) / BLOCK_COLS, 1),
    };
    if (!m->group_cols) tables.blocks_per_group = INT32_MAX;
    tables.blocks_left = tables.blocks_per_group;
    return tables;
}

/* Go to a block; with factors `blocks_per_group` is the number of a factor's blocks. */
INLINE void next_block(Kind kind, int block, Tables *t) {
    if (has_factors(kind.tables)) {
        t->group = kind.half_groups ? 2 * block : block;
        if (t->blocks_left == t->blocks_per_group) {
            const int index = block / t->blocks_per_group;
            t->scale_factors = factors_at(&t->scales, index);
            if (kind.has_minimum) t->minimum_factors = factors_at(&t->minimums, index);
        }
        if (!--t->blocks_left) t->blocks_left = t->blocks_per_group;
        return;
    }
    if (kind.half_groups) {
        t->group = 2 * block;
    } else if (!t->blocks_left--) {
        t->blocks_left = t->blocks_per_group - 1;
        t->group++;
    }
}

INLINE Floats16 load_table(Kind kind, const Table *table, int group, Floats16 factors, int is_signed) {
    if (has_factors(kind.tables))
        return products_at(table->entries, kind.tables, is_signed, group, factors);
    const uint8_t *at = table->entries + (size_t)group * TILE_ROWS * table->entry_bytes;
    if (kind.tables == TABLES_E8M0) return powers_at(at);
    if (kind.tables == TABLES_E4M3) return times(small_e4m3_at(at), table->unit * 256);
    return table->entry_bytes == 4 ? floats_at(at) : halves_at(at);
}

/* Add a block, or half of one, to the sums of n vectors. */
INLINE void add_block(Kind kind, const uint8_t *values, const Tables *t, int group, const QuantizedRows *x,
                      size_t block, int n, int half, Floats16 *sums) {
    const Floats16 scale = load_table(kind, &t->scales, group, t->scale_factors, 1);
    Floats16 minimum = scale;
    if (kind.has_minimum) minimum = load_table(kind, &t->minimums, group, t->minimum_factors, 0);
    Ints16 ints[VECTORS_PER_PASS];
    dot(values_of(kind.format, kind.has_minimum), values, x, block, n, half, ints);
#pragma GCC unroll 8
    for (int v = 0; v < n; v++, block += x->blocks) {
        sums[v] = add_scaled_rows(ints[v], x->scale[block], scale, sums[v]);
        if (kind.has_minimum)
            sums[v] = add_multiple_rows((float)block_sum(x, block, half) * x->scale[block], minimum, sums[v]);
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
    const uint8_t *values = tile_values(m, pass->tile);
    const int blocks = num_blocks(m->cols), block_bytes = 64 * value_bits(kind.format);
    Tables tables = tables_of(kind, m, pass->tile);
    Floats16 sums[VECTORS_PER_PASS];
#pragma GCC unroll 8
    for (int v = 0; v < n; v++) EACH_PART sums[v].part[i] = (Floats){0};
    Prefetch ahead = {0};
    if (pass->ahead) ahead = *pass->ahead;
    size_t block = (size_t)pass->first_vector * x->blocks;
    for (int b = 0; b < blocks; b++, block++, values += block_bytes) {
        prefetch_block(&ahead);
        next_block(kind, b, &tables);
        const int group = tables.group;
        if (kind.half_groups) {
            const int second = min_int(group + 1, tables.last_group);
            add_block(kind, values, &tables, group, x, block, n, FIRST_HALF, sums);
            add_block(kind, values, &tables, second, x, block, n, SECOND_HALF, sums);
        } else {
            add_block(kind, values, &tables, group, x, block, n, WHOLE_BLOCK, sums);
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < n; v++) store_rows(pass->y + (size_t)v * pass->y_stride, sums[v]);
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

/* Calls X(format, has_minimum, half_groups, tables) for every kind of tile that is packed. */
#define FOR_EACH_KIND(X)                                             \
    X(INT2, 0, 0, FP16)     /* TQ1_0, TQ2_0, Q1_0 */                 \
    X(INT2, 1, 0, BYTES)    /* IQ1_S */                              \
    X(INT2, 1, 1, NIBBLES)  /* Q2_K */                               \
    X(INT3, 0, 1, BYTES)    /* Q3_K */                               \
    X(INT4, 0, 0, FP16)     /* Q4_0 and int4 of other files */       \
    X(INT4, 0, 1, FP16)                                              \
    X(INT4, 1, 0, FP16)                                              \
    X(INT4, 1, 1, FP16)                                              \
    X(INT4, 1, 0, BYTES)    /* Q4_K */                               \
    X(INT5, 0, 0, FP16)     /* Q5_0 */                               \
    X(INT5, 1, 0, FP16)     /* Q5_1 */                               \
    X(INT5, 1, 0, BYTES)    /* Q5_K */                               \
    X(INT6, 0, 1, BYTES)    /* Q6_K */                               \
    X(INT8, 0, 0, FP16)     /* Q8_0, Q8_K and int8 of other files */ \
    X(INT8, 0, 1, FP16)                                              \
    X(INT8, 1, 0, FP16)                                              \
    X(INT8, 1, 1, FP16)                                              \
    X(IQ1, 0, 1, NIBBLES)   /* IQ1_M */                              \
    X(IQ2, 0, 0, BYTES)     /* IQ2_XXS */                            \
    X(IQ2, 0, 1, BYTES)     /* IQ2_XS, IQ2_S */                      \
    X(IQ3_XXS, 0, 0, BYTES)                                          \
    X(IQ3_S, 0, 0, BYTES)                                            \
    X(IQ4, 0, 0, FP16)      /* IQ4_NL */                             \
    X(IQ4, 0, 0, BYTES)     /* IQ4_XS */                             \
    X(E2M1, 0, 0, E4M3)                                              \
    X(E2M1, 0, 1, E4M3)     /* NVFP4 */                              \
    X(E2M1, 0, 0, E8M0)     /* MXFP4 */                              \
    X(E2M1, 0, 1, E8M0)

#define PASS(format, has_minimum, half_groups, tables)                                            \
    static void pass_##format##_##has_minimum##_##half_groups##_##tables(const Pass *pass, int n) { \
        const Kind kind = {FORMAT_##format, has_minimum, half_groups, TABLES_##tables};           \
        tile_pass_of(kind, pass, n);                                                              \
    }
FOR_EACH_KIND(PASS)
#undef PASS

#define ENTRY(format, has_minimum, half_groups, tables)                \
    [FORMAT_##format][has_minimum][half_groups][TABLES_##tables] =     \
        pass_##format##_##has_minimum##_##half_groups##_##tables,
static PassFunction *const pass_functions[NUM_FORMATS][2][2][NUM_TABLES] = {FOR_EACH_KIND(ENTRY)};
#undef ENTRY

static PassFunction *pass_function_of(const Matrix *m) {
    const int tables = m->tables == TABLES_FP32 ? TABLES_FP16 : m->tables;
    return pass_functions[m->format][m->has_minimum != 0][m->group_cols == BLOCK_COLS / 2][tables];
}

static void apply_row_scale(const Matrix *m, int tile, int num_vectors, float *y, int y_stride) {
    int rows = min_int(TILE_ROWS, m->rows - tile * TILE_ROWS);
    const float *scale = m->row_scale + (size_t)tile * TILE_ROWS;
    for (int v = 0; v < num_vectors; v++)
        for (int i = 0; i < rows; i++) y[(size_t)v * y_stride + i] *= scale[i];
}

void gemv_tiles(const Matrix *m, int first_tile, int num_tiles, const QuantizedRows *x, float *y,
                int y_stride, const uint8_t *next) {
    PassFunction *pass_function = pass_function_of(m);
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
