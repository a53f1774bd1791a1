// The packed layout of quantized weights (docs/notes/packed-layouts.md). A matrix is stored as blocks of eight
// rows, a block as packed tiles: 64 bytes of quantized values of each row, one row after the other.
// With groups of columns follow, for each group, an entry of each row: its scale and, but for FP8, minus zero point,
// both fp16. weight = row_scale * scale * (value + minus_zero). MXFP4 has no row scales; for each row follow the
// scales of its four groups, a byte each: the exponent field of the factor of T that makes weights of placed elements.
// Rows and columns are padded to whole tiles with elements that mean 0. Thread (g, t) = (lane / 4, lane % 4) of a warp
// reads 16 bytes of row g, from 16 * lane on:
//
//   INT8, FP8                columns 16t … 16t + 15 of 64
//   INT4, MXFP4              columns 32p + 8t … 32p + 8t + 7 of 128 in word p (0 … 3): the first four in
//                            the lower halves of its bytes, the others in the upper halves
//   … with a GROUP_SIZE      columns 32p + 8t … 32p + 8t + 7 of 64 in the words 2p and 2p + 1 (p = 0, 1)
#pragma once
#include "linear/unpack.cuh"

constexpr bool GROUPED = GROUP_SIZE > 0;
constexpr int BITS = SCHEME == PLAIN ? 8 * sizeof(T) : SCHEME == INT4 || SCHEME == MXFP4 ? 4 : 8;
constexpr bool ROW_SCALES = SCHEME != PLAIN && SCHEME != MXFP4;
// Scales of groups multiply the sums of their columns in fp32; those of MXFP4 its elements in T, which is exact.
constexpr bool SCALED_SUMS = GROUPED && SCHEME != MXFP4;
constexpr int STEP_BYTES = 64;               // of a row in a tile
constexpr int STEP = STEP_BYTES * 8 / BITS;  // columns of a tile
constexpr int TILE_ROWS = 8;
constexpr int TILE_GROUPS = GROUPED ? STEP / (GROUPED ? GROUP_SIZE : 1) : 0;  // of columns in a tile
constexpr bool ZERO_POINTS = GROUPED && (SCHEME == INT4 || SCHEME == INT8);
struct Power {
    u8 field;  // exponent field of a float
};
using Entry = Choose<ZERO_POINTS, __half2, Choose<SCHEME == MXFP4, Power, __half>::type>::type;
constexpr int ENTRY_BYTES = sizeof(Entry);
// Entries from the one of a row, or of a group, to that of the next.
constexpr int ROW_ENTRIES = SCHEME == MXFP4 ? TILE_GROUPS : 1, GROUP_ENTRIES = SCHEME == MXFP4 ? 1 : TILE_ROWS;
constexpr int PACKED_TILE_BYTES = TILE_ROWS * (STEP_BYTES + TILE_GROUPS * ENTRY_BYTES);

// The scale and minus zero point of an entry.
__device__ __forceinline__ float2 group_of(const __half2& entry) { return __half22float2(entry); }
__device__ __forceinline__ float2 group_of(const __half& entry) { return {__half2float(entry), 0}; }
__device__ __forceinline__ float2 group_of(const Power& entry) {
    return {__uint_as_float((u32)entry.field << 23) * (Same<T, half>::value ? 0x1p98f : 0x1p-126f), 0};
}

// The number of columns of a row in memory, with padding.
__device__ __forceinline__ int padded_columns(int columns) {
    return SCHEME == PLAIN ? columns : (columns + STEP - 1) / STEP * STEP;
}
