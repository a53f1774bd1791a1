/* Pack quantized matrices into tiles: 16 rows at a time, 32 columns of each. */
#include "pack.h"

#include "unpack_blocks.h"
#include "unpack_grids.h"

/* Fills `to` with the columns col .. col + 32 of a row; columns after the last are zeros. Returns 0
   or PACK_NOT_FINITE. */
typedef int (*ReadColumns)(const PackSource *source, int row, int col, Columns *to);

static void read_tables(const PackSource *source, int row, int col, Columns *to) {
    for (int half = 0; half < 2; half++) {
        int group = min_int(col + 16 * half, source->cols - 1) / source->group_cols;
        int64_t at = row * source->table_stride + group;
        to->scale[half] = source->scale[at];
        to->minimum[half] = source->minimum ? source->minimum[at] : 0;
    }
}

INLINE int read_int4(const PackSource *source, int row, int col, Columns *to) {
    uint8_t packed[16] = {0};
    int num_cols = min_int(32, source->cols - col);
    memcpy(packed, source->values + row * source->stride + col / 2, (size_t)(num_cols + 1) / 2);
    for (int i = 0; i < 16; i++) {
        to->values[2 * i] = packed[i] & 15;
        to->values[2 * i + 1] = packed[i] >> 4;
    }
    if (source->scale) read_tables(source, row, col, to);
    return 0;
}

INLINE int read_int8(const PackSource *source, int row, int col, Columns *to) {
    int num_cols = min_int(32, source->cols - col);
    memset(to->values, 0, 32);
    memcpy(to->values, source->values + row * source->stride + col, (size_t)num_cols);
    if (source->scale) read_tables(source, row, col, to);
    return 0;
}

INLINE int read_uint8(const PackSource *source, int row, int col, Columns *to) {
    read_int8(source, row, col, to);
    for (int i = 0; i < min_int(32, source->cols - col); i++) to->values[i] ^= 128;
    return 0;
}

INLINE const uint8_t *block_at(const PackSource *source, int row, int col, int block_cols,
                               int block_bytes) {
    return source->values + row * source->stride + (int64_t)(col / block_cols) * block_bytes;
}

#define READ_BLOCKS(type, block_cols, block_bytes)                                    \
    INLINE int read_##type(const PackSource *source, int row, int col, Columns *to) { \
        const uint8_t *block = block_at(source, row, col, block_cols, block_bytes);   \
        return unpack_##type(block, col % block_cols / 32, to);                       \
    }
#define READ_GRID_BLOCKS(type, block_bytes)                                             \
    INLINE int read_##type(const PackSource *source, int row, int col, Columns *to) {   \
        const uint8_t *block = block_at(source, row, col, 256, block_bytes);            \
        return unpack_##type(block, col % 256 / 32, source->grid, to);                  \
    }
READ_BLOCKS(q1_0, 128, 18)
READ_BLOCKS(q4_0, 32, 18)
READ_BLOCKS(q4_1, 32, 20)
READ_BLOCKS(q5_0, 32, 22)
READ_BLOCKS(q5_1, 32, 24)
READ_BLOCKS(q8_0, 32, 34)
READ_BLOCKS(q2_k, 256, 84)
READ_BLOCKS(q3_k, 256, 110)
READ_BLOCKS(q4_k, 256, 144)
READ_BLOCKS(q5_k, 256, 176)
READ_BLOCKS(q6_k, 256, 210)
READ_BLOCKS(q8_k, 256, 292)
READ_GRID_BLOCKS(iq1_s, 50)
READ_GRID_BLOCKS(iq1_m, 56)
READ_GRID_BLOCKS(iq2_xxs, 66)
READ_GRID_BLOCKS(iq2_xs, 74)
READ_GRID_BLOCKS(iq2_s, 82)
READ_GRID_BLOCKS(iq3_xxs, 98)
READ_GRID_BLOCKS(iq3_s, 110)
READ_BLOCKS(iq4_nl, 32, 18)
READ_BLOCKS(iq4_xs, 256, 136)
READ_BLOCKS(tq1_0, 256, 54)
READ_BLOCKS(tq2_0, 256, 66)
READ_BLOCKS(mxfp4, 32, 17)
READ_BLOCKS(nvfp4, 64, 36)

/* Tables of one block of a tile: [2 halves][16 rows], and factors. */
typedef struct {
    float scale[2][TILE_ROWS], minimum[2][TILE_ROWS];
    uint16_t scale_factor[TILE_ROWS], minimum_factor[TILE_ROWS];
} BlockTables;

/* Writes integers of 16 rows as the entries of a group. */
INLINE void store_integers(const Matrix *to, const float *values, int group, uint8_t *entries) {
    const int is_odd = to->tables == TABLES_NIBBLES && group % 2;
    uint8_t *at = entries + (to->tables == TABLES_NIBBLES ? group / 2 : group) * TILE_ROWS;
    for (int r = 0; r < TILE_ROWS; r++) {
        const uint8_t integer = (uint8_t)(int)values[r];
        at[r] = is_odd ? (uint8_t)(at[r] | integer << 4) : integer;
    }
}

/* Writes the 16 rows of one group of a table, times the multiplier if they are floats. */
INLINE int store_group(const Matrix *to, const float *values, float multiplier, int group,
                       uint8_t *entries) {
    float scaled[TILE_ROWS];
    uint16_t narrow[TILE_ROWS];
    int infinite = 0;
    if (entry_bytes(to) == 1) {
        store_integers(to, values, group, entries);
        return 0;
    }
    for (int r = 0; r < TILE_ROWS; r++) scaled[r] = values[r] * multiplier;
    if (entry_bytes(to) == 4) {
        memcpy(entries + (size_t)group * sizeof(scaled), scaled, sizeof(scaled));
        return 0;
    }
    for (int r = 0; r < TILE_ROWS; r++) {
        narrow[r] = float_to_fp16(scaled[r]);
        infinite |= !is_finite_fp16(narrow[r]);
    }
    memcpy(entries + (size_t)group * sizeof(narrow), narrow, sizeof(narrow));
    return infinite ? PACK_OVERFLOW : 0;
}

/* Writes the groups and the factors that begin in the block at column col of the tile. */
INLINE int store_tables(const BlockTables *tables, const Matrix *to, uint8_t *tile, int col,
                        float multiplier) {
    int error = 0;
    for (int i = 0; i < (to->has_minimum ? 2 : 1); i++) {
        uint8_t *table = tile + i * table_bytes(to), *entries = table + factor_bytes(to);
        const uint16_t *factors = i ? tables->minimum_factor : tables->scale_factor;
        if (has_factors(to->tables) && col % to->factor_cols == 0)
            memcpy(table + (size_t)(col / to->factor_cols) * TILE_ROWS * 2, factors, TILE_ROWS * 2);
        for (int half = 0; half < 2; half++) {
            const int first = col + 16 * half;
            if (!to->group_cols || first % to->group_cols || first >= to->cols) continue;
            const float *values = i ? tables->minimum[half] : tables->scale[half];
            error |= store_group(to, values, multiplier, first / to->group_cols, entries);
        }
    }
    return error;
}

/* Writes 32 values of a row, a byte each, into the planes of a block. `bits` is a constant. */
INLINE void store_values(const uint8_t *values, int bits, uint8_t *block, int r) {
    uint32_t columns[8], planes[8] = {0};
    int num_planes = 0;
    memcpy(columns, values, 32);
    if (bits == 8) memcpy(planes, columns, 32), num_planes = 8;
    if (bits < 8 && bits & 4) {
        for (int j = 0; j < 8; j++) planes[j % 4] |= (columns[j] & 0x0f0f0f0f) << 4 * (j / 4);
        num_planes = 4;
    }
    if (bits & 2) {
        for (int j = 0; j < 8; j++)
            planes[num_planes + j / 4] |= (columns[j] >> (bits & 4) & 0x03030303) << 2 * (j % 4);
        num_planes += 2;
    }
    if (bits & 1) {
        for (int j = 0; j < 8; j++) planes[num_planes] |= (columns[j] >> (bits & 6) & 0x01010101) << j;
        num_planes++;
    }
    for (int i = 0; i < num_planes; i++) memcpy(block + 64 * i + 4 * r, &planes[i], 4);
}

typedef struct {
    const PackSource *source;
    const Matrix *to;
    int first_row, first_col, num_cols, first_tile, num_tiles, to_col;
    float multiplier;
} PackJob;

/* Packs 32 columns of the 16 rows from `row` on. */
INLINE int pack_block(ReadColumns read, const PackJob *job, int row, int offset, int bits,
                      uint8_t *tile) {
    const Matrix *to = job->to;
    int num_rows = min_int(TILE_ROWS, job->source->rows - row), error = 0;
    int col = job->to_col + offset;
    uint8_t *block = (uint8_t *)tile_values(to, tile) + (size_t)(col / BLOCK_COLS) * bits * 64;
    BlockTables tables;
    if (num_rows < TILE_ROWS) {
        memset(&tables, 0, sizeof(tables));
        memset(block, 0, (size_t)bits * 64);
    }
    for (int r = 0; r < num_rows; r++) {
        Columns columns;
        set_scales(&columns, 0, 0);
        set_minimums(&columns, 0, 0);
        set_factors(&columns, 0, 0);
        error |= read(job->source, row + r, job->first_col + offset, &columns);
        store_values(columns.values, bits, block, r);
        for (int half = 0; half < 2; half++) {
            tables.scale[half][r] = columns.scale[half];
            tables.minimum[half][r] = columns.minimum[half];
        }
        tables.scale_factor[r] = columns.scale_factor;
        tables.minimum_factor[r] = columns.minimum_factor;
    }
    return error | store_tables(&tables, to, tile, col, job->multiplier);
}

INLINE int pack_all(ReadColumns read, int bits, const PackJob *job) {
    const Matrix *to = job->to;
    int error = 0;
    for (int t = 0; t < job->num_tiles; t++) {
        uint8_t *tile = (uint8_t *)to->data + (job->first_tile + t) * to->stride;
        int row = job->first_row + t * TILE_ROWS;
        for (int offset = 0; offset < job->num_cols; offset += BLOCK_COLS)
            error |= pack_block(read, job, row, offset, bits, tile);
    }
    return error;
}

int pack_tiles(const PackSource *source, int first_row, int first_col, int num_cols,
               const Matrix *to, int first_tile, int num_tiles, int to_col, float multiplier) {
    PackJob job = {source,     to,        first_row, first_col,   num_cols,
                   first_tile, num_tiles, to_col,    multiplier};
    switch (source->kind) { /* the bits are those of the target's values */
        case SOURCE_INT4: return pack_all(read_int4, 4, &job);
        case SOURCE_INT8: return pack_all(read_int8, 8, &job);
        case SOURCE_UINT8: return pack_all(read_uint8, 8, &job);
        case SOURCE_Q1_0: return pack_all(read_q1_0, 2, &job);
        case SOURCE_Q4_0: return pack_all(read_q4_0, 4, &job);
        case SOURCE_Q4_1: return pack_all(read_q4_1, 4, &job);
        case SOURCE_Q5_0: return pack_all(read_q5_0, 5, &job);
        case SOURCE_Q5_1: return pack_all(read_q5_1, 5, &job);
        case SOURCE_Q8_0: return pack_all(read_q8_0, 8, &job);
        case SOURCE_Q2_K: return pack_all(read_q2_k, 2, &job);
        case SOURCE_Q3_K: return pack_all(read_q3_k, 3, &job);
        case SOURCE_Q4_K: return pack_all(read_q4_k, 4, &job);
        case SOURCE_Q5_K: return pack_all(read_q5_k, 5, &job);
        case SOURCE_Q6_K: return pack_all(read_q6_k, 6, &job);
        case SOURCE_Q8_K: return pack_all(read_q8_k, 8, &job);
        case SOURCE_IQ1_S: return pack_all(read_iq1_s, 2, &job);
        case SOURCE_IQ1_M: return pack_all(read_iq1_m, 3, &job);
        case SOURCE_IQ2_XXS: return pack_all(read_iq2_xxs, 3, &job);
        case SOURCE_IQ2_XS: return pack_all(read_iq2_xs, 3, &job);
        case SOURCE_IQ2_S: return pack_all(read_iq2_s, 3, &job);
        case SOURCE_IQ3_XXS: return pack_all(read_iq3_xxs, 4, &job);
        case SOURCE_IQ3_S: return pack_all(read_iq3_s, 4, &job);
        case SOURCE_IQ4_NL: return pack_all(read_iq4_nl, 4, &job);
        case SOURCE_IQ4_XS: return pack_all(read_iq4_xs, 4, &job);
        case SOURCE_TQ1_0: return pack_all(read_tq1_0, 2, &job);
        case SOURCE_TQ2_0: return pack_all(read_tq2_0, 2, &job);
        case SOURCE_MXFP4: return pack_all(read_mxfp4, 4, &job);
        case SOURCE_NVFP4: return pack_all(read_nvfp4, 4, &job);
        default: return 1;
    }
}

/* Copies elements of `nbytes`, [num][16], from row `from_row` to row `to_row`. */
INLINE void copy_row(const uint8_t *from, int from_row, uint8_t *to, int to_row, int num,
                     size_t nbytes) {
    for (int i = 0; i < num; i++)
        memcpy(to + (i * TILE_ROWS + to_row) * nbytes, from + (i * TILE_ROWS + from_row) * nbytes,
               nbytes);
}

void reorder_tiles(const Matrix *from, const int32_t *order, const Matrix *to, int first_tile,
                   int num_tiles) {
    int num_words = num_blocks(to->cols) * value_bits(to->format);
    int num_tables = to->has_minimum ? 2 : 1;
    for (int t = first_tile; t < first_tile + num_tiles; t++) {
        uint8_t *tile = (uint8_t *)to->data + t * to->stride;
        int num_rows = min_int(TILE_ROWS, to->rows - t * TILE_ROWS);
        if (num_rows < TILE_ROWS) memset(tile, 0, tile_bytes(to));
        for (int r = 0; r < num_rows; r++) {
            int row = order[t * TILE_ROWS + r], from_row = row % TILE_ROWS;
            const uint8_t *from_tile = from->data + row / TILE_ROWS * from->stride;
            for (int i = 0; i < num_tables; i++) {
                const uint8_t *table = from_tile + i * table_bytes(from);
                uint8_t *to_table = tile + i * table_bytes(to);
                copy_row(table, from_row, to_table, r, num_factors(to), 2);
                table += factor_bytes(to), to_table += factor_bytes(to);
                switch (entry_bytes(to)) { /* a constant in each copy */
                    case 1: copy_row(table, from_row, to_table, r, num_entries(to), 1); break;
                    case 2: copy_row(table, from_row, to_table, r, num_entries(to), 2); break;
                    default: copy_row(table, from_row, to_table, r, num_entries(to), 4);
                }
            }
            copy_row(tile_values(from, from_tile), from_row, (uint8_t *)tile_values(to, tile), r,
                     num_words, 4);
        }
    }
}
