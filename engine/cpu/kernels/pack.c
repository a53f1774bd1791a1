/* Pack quantized matrices into tiles: 16 rows at a time, 32 columns of each. */
#include "pack.h"

#include "unpack_blocks.h"

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
    uint8_t packed[16] = {0}, wide[32];
    int num_cols = min_int(32, source->cols - col);
    memcpy(packed, source->values + row * source->stride + col / 2, (size_t)(num_cols + 1) / 2);
    for (int i = 0; i < 16; i++) {
        wide[2 * i] = packed[i] & 15;
        wide[2 * i + 1] = packed[i] >> 4;
    }
    for (int i = 0; i < 16; i++) to->values[i] = (uint8_t)(wide[i] | wide[16 + i] << 4);
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
READ_BLOCKS(q4_0, 32, 18)
READ_BLOCKS(q4_1, 32, 20)
READ_BLOCKS(q5_0, 32, 22)
READ_BLOCKS(q5_1, 32, 24)
READ_BLOCKS(q8_0, 32, 34)
READ_BLOCKS(iq4_nl, 32, 18)
READ_BLOCKS(q2_k, 256, 84)
READ_BLOCKS(q3_k, 256, 110)
READ_BLOCKS(q4_k, 256, 144)
READ_BLOCKS(q5_k, 256, 176)
READ_BLOCKS(q6_k, 256, 210)
READ_BLOCKS(iq4_xs, 256, 136)
READ_BLOCKS(mxfp4, 32, 17)

/* Calls FUNCTION(read_TYPE, …) for the source's kind; the reader is inlined. */
#define FOR_KIND(source, FUNCTION, ...)                                   \
    switch ((source)->kind) {                                             \
        case SOURCE_INT4: return FUNCTION(read_int4, __VA_ARGS__);        \
        case SOURCE_INT8: return FUNCTION(read_int8, __VA_ARGS__);        \
        case SOURCE_UINT8: return FUNCTION(read_uint8, __VA_ARGS__);      \
        case SOURCE_Q4_0: return FUNCTION(read_q4_0, __VA_ARGS__);        \
        case SOURCE_Q4_1: return FUNCTION(read_q4_1, __VA_ARGS__);        \
        case SOURCE_Q5_0: return FUNCTION(read_q5_0, __VA_ARGS__);        \
        case SOURCE_Q5_1: return FUNCTION(read_q5_1, __VA_ARGS__);        \
        case SOURCE_Q8_0: return FUNCTION(read_q8_0, __VA_ARGS__);        \
        case SOURCE_IQ4_NL: return FUNCTION(read_iq4_nl, __VA_ARGS__);    \
        case SOURCE_Q2_K: return FUNCTION(read_q2_k, __VA_ARGS__);        \
        case SOURCE_Q3_K: return FUNCTION(read_q3_k, __VA_ARGS__);        \
        case SOURCE_Q4_K: return FUNCTION(read_q4_k, __VA_ARGS__);        \
        case SOURCE_Q5_K: return FUNCTION(read_q5_k, __VA_ARGS__);        \
        case SOURCE_Q6_K: return FUNCTION(read_q6_k, __VA_ARGS__);        \
        case SOURCE_IQ4_XS: return FUNCTION(read_iq4_xs, __VA_ARGS__);    \
        case SOURCE_MXFP4: return FUNCTION(read_mxfp4, __VA_ARGS__);      \
        default: return 1;                                                \
    }

/* Tables of one block of a tile: [2 halves][16 rows]. */
typedef struct {
    float scale[2][TILE_ROWS], minimum[2][TILE_ROWS];
} BlockTables;

/* Writes the 16 rows of one group of a table, times the multiplier. */
INLINE int store_group(const float *values, float multiplier, int entry_bytes, int group,
                       uint8_t *table) {
    float scaled[TILE_ROWS];
    uint16_t narrow[TILE_ROWS];
    int infinite = 0;
    if (entry_bytes == 1) {
        for (int r = 0; r < TILE_ROWS; r++) table[group * TILE_ROWS + r] = (uint8_t)values[r];
        return 0;
    }
    for (int r = 0; r < TILE_ROWS; r++) scaled[r] = values[r] * multiplier;
    if (entry_bytes == 4) {
        memcpy(table + (size_t)group * sizeof(scaled), scaled, sizeof(scaled));
        return 0;
    }
    for (int r = 0; r < TILE_ROWS; r++) {
        narrow[r] = float_to_fp16(scaled[r]);
        infinite |= !is_finite_fp16(narrow[r]);
    }
    memcpy(table + (size_t)group * sizeof(narrow), narrow, sizeof(narrow));
    return infinite ? PACK_OVERFLOW : 0;
}

/* Writes the groups that begin in the block at column col of the tile. */
INLINE int store_tables(const BlockTables *tables, const Matrix *to, uint8_t *tile, int col,
                        float multiplier) {
    int error = 0, nbytes = entry_bytes(to);
    for (int half = 0; half < 2; half++) {
        int first = col + 16 * half;
        if (!to->group_cols || first % to->group_cols || first >= to->cols) continue;
        int group = first / to->group_cols;
        error |= store_group(tables->scale[half], multiplier, nbytes, group, tile);
        uint8_t *minimums = tile + table_bytes(to);
        if (to->has_minimum)
            error |= store_group(tables->minimum[half], multiplier, nbytes, group, minimums);
    }
    return error;
}

typedef struct {
    const PackSource *source;
    const Matrix *to;
    int first_row, first_col, num_cols, first_tile, num_tiles, to_col;
    float multiplier;
} PackJob;

/* Packs 32 columns of the 16 rows from `row` on: values of `words` 4-byte words a row. */
INLINE int pack_block(ReadColumns read, const PackJob *job, int row, int offset, int words,
                      uint8_t *tile) {
    const Matrix *to = job->to;
    int num_rows = min_int(TILE_ROWS, job->source->rows - row), error = 0;
    int col = job->to_col + offset;
    uint8_t *block = (uint8_t *)tile_values(to, tile) + (size_t)(col / BLOCK_COLS) * words * 64;
    BlockTables tables;
    if (num_rows < TILE_ROWS) {
        memset(&tables, 0, sizeof(tables));
        memset(block, 0, (size_t)words * 64);
    }
    for (int r = 0; r < num_rows; r++) {
        Columns columns;
        set_scales(&columns, 0, 0);
        set_minimums(&columns, 0, 0);
        error |= read(job->source, row + r, job->first_col + offset, &columns);
        for (int j = 0; j < words; j++)
            memcpy(block + 64 * j + 4 * r, columns.values + 4 * j, 4);
        for (int half = 0; half < 2; half++) {
            tables.scale[half][r] = columns.scale[half];
            tables.minimum[half][r] = columns.minimum[half];
        }
    }
    return error | store_tables(&tables, to, tile, col, job->multiplier);
}

INLINE int pack_all(ReadColumns read, const PackJob *job) {
    const Matrix *to = job->to;
    int error = 0;
    for (int t = 0; t < job->num_tiles; t++) {
        uint8_t *tile = (uint8_t *)to->data + (job->first_tile + t) * to->stride;
        int row = job->first_row + t * TILE_ROWS;
        for (int offset = 0; offset < job->num_cols; offset += BLOCK_COLS) {
            if (to->format == FORMAT_INT8)
                error |= pack_block(read, job, row, offset, 8, tile);
            else
                error |= pack_block(read, job, row, offset, 4, tile);
        }
    }
    return error;
}

int pack_tiles(const PackSource *source, int first_row, int first_col, int num_cols,
               const Matrix *to, int first_tile, int num_tiles, int to_col, float multiplier) {
    PackJob job = {source,     to,        first_row, first_col,   num_cols,
                   first_tile, num_tiles, to_col,    multiplier};
    FOR_KIND(source, pack_all, &job)
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
    int num_words = num_blocks(to->cols) * (to->format == FORMAT_INT8 ? 8 : 4);
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
                switch (entry_bytes(to)) { /* a constant in each copy */
                    case 1: copy_row(table, from_row, to_table, r, num_groups(to), 1); break;
                    case 2: copy_row(table, from_row, to_table, r, num_groups(to), 2); break;
                    default: copy_row(table, from_row, to_table, r, num_groups(to), 4);
                }
            }
            copy_row(tile_values(from, from_tile), from_row, (uint8_t *)tile_values(to, tile), r,
                     num_words, 4);
        }
    }
}
