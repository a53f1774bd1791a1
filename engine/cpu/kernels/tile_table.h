/* The tables of scales and minimums of a tile. */
#pragma once
#include "matrix_layout.h"
#include "tile_rows.h"

/* Where a table of a tile is. */
typedef struct {
    const uint8_t *entries, *factors;
    int32_t tables, is_signed, entry_bytes, group_cols, factor_cols;
    float unit;
} Table;

/* The scales (index 0) or the minimums (1) of a tile. A matrix without groups has one of scale 1. */
INLINE Table table_of(const Matrix *m, const uint8_t *tile, int index) {
    static const float one[TILE_ROWS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const uint8_t *at = tile + index * table_bytes(m);
    if (!m->group_cols)
        return (Table){.entries = (const uint8_t *)one, .tables = TABLES_FP32, .entry_bytes = 4};
    return (Table){
        .entries = at + factor_bytes(m),
        .factors = at,
        .tables = m->tables,
        .is_signed = index == 0,
        .entry_bytes = entry_bytes(m),
        .group_cols = m->group_cols,
        .factor_cols = m->factor_cols,
        .unit = m->unit,
    };
}

/* The factors of the columns from a multiple of `factor_cols` on, times the unit. */
INLINE Floats16 factors_at(const Table *t, int index) {
    return times(halves_at(t->factors + (size_t)index * TILE_ROWS * 2), t->unit);
}

/* The integers of bytes or nibbles of a group, times their factors. */
INLINE Floats16 products_at(const uint8_t *entries, int tables, int is_signed, int group,
                            Floats16 factors) {
    const int row = tables == TABLES_NIBBLES ? group / 2 : group;
    const uint8_t *at = entries + (size_t)row * TILE_ROWS;
    Floats16 rows;
    EACH_PART {
        Ints integers = bytes_at(at + LANES * i, tables == TABLES_BYTES && is_signed);
        if (tables == TABLES_NIBBLES) integers = group % 2 ? integers >> 4 : integers & 15;
        rows.part[i] = ints_to_floats(integers) * factors.part[i];
    }
    return rows;
}

/* The entries of a group as floats; of e8m0 half of them, as e2m1 numbers are twice theirs. */
INLINE Floats16 entries_of(const Table *t, int group) {
    const uint8_t *at = t->entries + (size_t)group * TILE_ROWS * t->entry_bytes;
    switch (t->tables) {
        case TABLES_FP32: return floats_at(at);
        case TABLES_FP16: return halves_at(at);
        case TABLES_E8M0: return powers_at(at);
        case TABLES_E4M3: return times(small_e4m3_at(at), t->unit * 256);
        default: {
            const Floats16 factors = factors_at(t, group * t->group_cols / t->factor_cols);
            return products_at(t->entries, t->tables, t->is_signed, group, factors);
        }
    }
}

/* Walks through the groups of a tile from units to units of 16 or 32 columns. After the last group,
   where a block has no columns, it stays with the last one. */
typedef struct {
    Table scales, minimums;
    int32_t has_minimum, group, last_group;
    int32_t group_units,
        units_left; /* units of a group; those of this one that are still to come */
} TableReader;

INLINE TableReader read_tables_from(const Matrix *m, const uint8_t *tile, int unit, int unit_cols) {
    const int group_units = m->group_cols ? m->group_cols / unit_cols : INT32_MAX;
    return (TableReader){
        .scales = table_of(m, tile, 0),
        .minimums = table_of(m, tile, 1),
        .has_minimum = m->has_minimum,
        .group = m->group_cols ? unit / group_units : 0,
        .last_group = m->group_cols ? num_groups(m) - 1 : 0,
        .group_units = group_units,
        .units_left = m->group_cols ? group_units - unit % group_units : INT32_MAX,
    };
}

/* Go on to the next unit. */
INLINE void next_unit(TableReader *reader) {
    if (--reader->units_left) return;
    reader->units_left = reader->group_units;
    reader->group = min_int(reader->group + 1, reader->last_group);
}

/* Scales or minimums of the reader's group, fp32 [16]. */
INLINE void read_table(const TableReader *reader, const Table *table, float *to) {
    store_rows(to, entries_of(table, reader->group));
}
