/* The tables of scales and minimums of a tile. */
#pragma once
#include "common.h"
#include "numbers.h"
#include "matrix_layout.h"

/* Walks through the groups of a tile from units to units of 16 or 32 columns. After the last group,
   where a block has no columns, it stays with the last one. Without groups there is one of scale 1.
 */
typedef struct {
    const uint8_t *scales, *minimums; /* minimums NULL: none */
    int32_t format, entry_bytes, group, last_group;
    int32_t group_units,
        units_left; /* units of a group; those of this one that are still to come */
} TableReader;

INLINE TableReader read_tables_from(const Matrix *m, const uint8_t *tile, int unit, int unit_cols) {
    if (!m->group_cols) {
        static const float one[TILE_ROWS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
        return (TableReader){(const uint8_t *)one, NULL, m->format, 4, 0, 0, INT32_MAX, INT32_MAX};
    }
    const int group_units = m->group_cols / unit_cols;
    const uint8_t *minimums = m->has_minimum ? tile + table_bytes(m) : NULL;
    return (TableReader){
        .scales = tile,
        .minimums = minimums,
        .format = m->format,
        .entry_bytes = entry_bytes(m),
        .group = unit / group_units,
        .last_group = num_groups(m) - 1,
        .group_units = group_units,
        .units_left = group_units - unit % group_units,
    };
}

/* Go on to the next unit. */
INLINE void next_unit(TableReader *reader) {
    if (--reader->units_left) return;
    reader->units_left = reader->group_units;
    reader->group = min_int(reader->group + 1, reader->last_group);
}

/* Scales or minimums of the reader's group, fp32 [16]; of 4-bit floats those of `numbers_of`. */
INLINE void read_table(const TableReader *reader, const uint8_t *table, float *to) {
    const size_t first = (size_t)reader->group * TILE_ROWS;
    if (reader->entry_bytes == 4) {
        memcpy(to, table + first * 4, TILE_ROWS * 4);
        return;
    }
    if (reader->entry_bytes == 1) {
        for (int r = 0; r < TILE_ROWS; r++) to[r] = byte_scale(reader->format, table[first + r]);
        return;
    }
    uint16_t halves[TILE_ROWS];
    memcpy(halves, table + first * 2, sizeof halves);
    for (int r = 0; r < TILE_ROWS; r++) to[r] = fp16_to_float(halves[r]);
}
