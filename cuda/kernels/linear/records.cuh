// How a packed matrix lies (docs/quantization.md): of every eight rows a block, of records; a record has
// 64 bytes of numbers of each row, one after the other, and with groups of columns then, for each of them,
// half2 (scale, offset) of each row: weight = row_scale * scale * (number + offset). Columns and rows are
// filled up to whole records by what means 0. Thread (g, t) = (lane / 4, lane % 4) of a warp takes 16 bytes
// of row g, those from 16 * lane on:
//
//   INT8, FP8   columns 16t … 16t + 15 of 64
//   INT4        32p + 8t … 32p + 8t + 7 of 128 in word p (0 … 3): the first four in the low halves of its
//               bytes, the others in the high halves
//   INT8 with a GROUP_SIZE  32p + 8t … 32p + 8t + 7 of 64 in the words 2p and 2p + 1 (p = 0, 1)
#pragma once
#include "linear/packed.cuh"

constexpr bool GROUPED = GROUP_SIZE > 0;
constexpr int BITS = SCHEME == PLAIN ? 8 * sizeof(T) : SCHEME == INT4 ? 4 : 8;
constexpr int STEP_BYTES = 64;               // of a row in a record
constexpr int STEP = STEP_BYTES * 8 / BITS;  // columns
constexpr int BLOCK_ROWS = 8;
constexpr int GROUPS = GROUPED ? STEP / (GROUPED ? GROUP_SIZE : 1) : 0;  // of columns in a record
constexpr int RECORD = BLOCK_ROWS * (STEP_BYTES + GROUPS * 4);      // bytes

// How many columns a row of so many has in memory.
__device__ __forceinline__ int filled(int columns) {
    return SCHEME == PLAIN ? columns : (columns + STEP - 1) / STEP * STEP;
}
