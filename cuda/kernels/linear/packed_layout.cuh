// The packed layout of quantized weights (docs/notes/packed-layouts.md). A matrix is stored as blocks of eight
// rows, a block as packed tiles: 64 bytes of quantized values of each row, one row after the other.
// With groups of columns follow, for each group, an entry of each row, or with a scheme whose scales multiply elements,
// for each row its groups' entries. weight = row_scale * scale * (value + minus_zero).
// Rows and columns are padded to whole tiles with elements that mean 0. Thread (g, t) = (lane / 4, lane % 4) of a warp
// reads 16 bytes of row g, from 16 * lane on:
//
//   8 bits                   columns 16t … 16t + 15 of 64
//   4 bits                   columns 32p + 8t … 32p + 8t + 7 of 128 in word p (0 … 3): the first four in
//                            the lower halves of its bytes, the others in the upper halves
//   8 bits, a GROUP_SIZE     columns 32p + 8t … 32p + 8t + 7 of 64 in the words 2p and 2p + 1 (p = 0, 1)
#pragma once
#include "schemes/scheme.cuh"

constexpr int BITS = Scheme::BITS;
constexpr bool ROW_SCALES = Scheme::ROW_SCALES, ZERO_POINTS = GROUPED && Scheme::ZERO_POINTS;
constexpr bool SCALED_SUMS = GROUPED && Scheme::SCALED_SUMS;
constexpr int STEP_BYTES = 64;               // of a row in a tile
constexpr int STEP = STEP_BYTES * 8 / BITS;  // columns of a tile
constexpr int TILE_ROWS = 8;
constexpr int GROUP_COLUMNS = GROUPED ? GROUP_SIZE : STEP;        // columns of a scale in a tile
constexpr int TILE_GROUPS = GROUPED ? STEP / GROUP_COLUMNS : 0;   // of columns in a tile
constexpr int OCTET_GROUPS = GROUP_COLUMNS < 32 ? 32 / GROUP_COLUMNS : 1;  // in the octets of four threads
using Entry = Scheme::Entry;
constexpr int ENTRY_BYTES = sizeof(Entry);
// Entries from the one of a row, or of a group, to that of the next.
constexpr int ROW_ENTRIES = GROUPED && !SCALED_SUMS ? TILE_GROUPS : 1;
constexpr int GROUP_ENTRIES = GROUPED && !SCALED_SUMS ? 1 : TILE_ROWS;
constexpr int PACKED_TILE_BYTES = TILE_ROWS * (STEP_BYTES + TILE_GROUPS * ENTRY_BYTES);

// The number of the entry of a row for a group, in a tile's table. Of neighbors in a row those come first that the
// threads of the first columns need.
__device__ __forceinline__ constexpr int entry_of(int row, int group) {
    int place = OCTET_GROUPS == 1 ? group : group % OCTET_GROUPS * (TILE_GROUPS / OCTET_GROUPS) + group / OCTET_GROUPS;
    return row * ROW_ENTRIES + place * GROUP_ENTRIES;
}
// The group of a thread's octet p in a tile.
__device__ __forceinline__ int group_of_octet(int p, int t) {
    return OCTET_GROUPS == 1 ? p * 32 / GROUP_COLUMNS : p * OCTET_GROUPS + t * 8 / GROUP_COLUMNS;
}
// Where the table of a tile has the entries of this thread's octets, if they are bytes: in a word.
__device__ __forceinline__ int thread_entries() {
    int lane = threadIdx.x % WARP;
    return entry_of(lane / 4, group_of_octet(0, lane % 4));
}

// The number of columns of a row in memory, with padding.
__device__ __forceinline__ int padded_columns(int columns) {
    return PACKED ? (columns + STEP - 1) / STEP * STEP : columns;
}
