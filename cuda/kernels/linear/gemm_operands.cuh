// Conversion of packed weights to the left operands of MMAs, for packed_gemm and the grouped GEMM of experts.
//
// A tile in shared memory has blocks of eight rows, with one or two packed tiles each.
#pragma once
#include "linear/packed_layout.cuh"

// A warp's 16 weight rows as operands: thread (g, t) = (lane / 4, lane % 4) holds those of MMA rows g and g + 8,
// the weight rows `row` and `row` + 2 of a block of eight rows. So a thread's results, transposed, are four
// neighbors, and neighboring g read different banks. In an octet of columns a thread needs 2t and 2t + 1.
struct LaneRows {
    int block, row, t;         // block of eight rows in the tile; first row in it
    u32 offset, table_offset;  // of the row's values and of its groups in a stage
    u32 bytes, shift;          // select a thread's values
    u32 upper;                 // bytes above 4-bit values

    // Blocks of eight rows are block_bytes apart.
    __device__ __forceinline__ explicit LaneRows(int block_bytes) {
        int lane = threadIdx.x % WARP, g = lane / 4;
        t = lane % 4;
        block = threadIdx.x / WARP * 2 + g / 2 % 2;
        row = g / 4 * 4 + g % 2;
        offset = block * block_bytes + row * STEP_BYTES;
        table_offset = block * block_bytes + TILE_ROWS * STEP_BYTES + row * ROW_ENTRIES * ENTRY_BYTES;
        bytes = BITS != 4 ? 0x9180 + t * 0x2222 : t % 2 ? 0x7632 : 0x5410;
        shift = t / 2 * 4;
        asm("mov.u32 %0, %%laneid;" : "=r"(upper));
        upper = Scheme::UPPER_BYTES<T> + (upper >> 5);  // a constant would be moved to a register each time
        // The compiler would compute these again in every step.
        asm("" : "+r"(offset), "+r"(table_offset), "+r"(bytes), "+r"(shift), "+r"(upper));
    }
    __device__ __forceinline__ int first() const { return block * TILE_ROWS + row; }
    // The first of the thread's four neighboring results in the tile.
    __device__ __forceinline__ int first_result() const {
        return threadIdx.x / WARP * 16 + t % 2 * TILE_ROWS + t / 2 * 4;
    }
};

// By which scaled elements are too small.
constexpr float GROUP_SHRINK = GROUPED ? Scheme::SHRINK<T> : 1;
// The groups of a thread's two rows in 64 columns: of 32 columns each, or the same one twice, or two of each 32.
using RowGroups = Scheme::Group<T>[2][2][OCTET_GROUPS];

// The values that a thread needs of two octets of a row of 64 columns, i and i + 4, or 2i and 2i + 1 without groups.
template <typename S, int BITS> struct TwoOctets;
template <typename S> struct TwoOctets<S, 4> {
    u32 four;

    __device__ __forceinline__ TwoOctets(const u8* values, int half, int i, const LaneRows& lane) {
        uint2 words = *(const uint2*)(values + half * 8 + i * 16);
        four = permute_bytes(words.x, words.y, lane.bytes) >> lane.shift & 0x0f0f0f0f;
    }
    __device__ __forceinline__ u32 pair(int p, const LaneRows& lane) const {
        return S::pair_of(permute_bytes(four, lane.upper, 0x4140 + p * 0x202), T());
    }
};
template <typename S> struct TwoOctets<S, 8> {
    uint4 words;

    __device__ __forceinline__ TwoOctets(const u8* values, int half, int i, const LaneRows&)
        : words(*(const uint4*)(values + half * PACKED_TILE_BYTES + i * 16)) {}
    __device__ __forceinline__ u32 pair(int p, const LaneRows& lane) const {
        return S::pair_of(p ? uint2{words.z, words.w} : uint2{words.x, words.y}, lane.bytes, T());
    }
};

// Converts 64 of 128 columns, the first or the second, to operands of four MMA steps of 16 columns.
template <int HALF>
__device__ __forceinline__ void convert(u32 (&operands)[4][4], const u8* stage, const LaneRows& lane,
                                        RowGroups& row_groups) {
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {  // the row two further on
        const u8* values = stage + lane.offset + 2 * upper * STEP_BYTES;
        const u8* table = stage + lane.table_offset + 2 * upper * ROW_ENTRIES * ENTRY_BYTES;
        auto& groups = row_groups[upper];
        if (GROUPED && (GROUP_SIZE < 128 || HALF == 0))
#pragma unroll
            for (int p = 0; p < 2; p++)
#pragma unroll
                for (int j = 0; j < OCTET_GROUPS; j++) {
                    int column = HALF * 64 + p * 32 + j * 16, tile = column / STEP;
                    const Entry* entries = (const Entry*)(table + tile * PACKED_TILE_BYTES);
                    groups[p][j].load(entries[entry_of(0, (column - tile * STEP) / GROUP_COLUMNS)]);
                }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            TwoOctets<Scheme, BITS> octets(values, HALF, i, lane);
#pragma unroll
            for (int p = 0; p < 2; p++) {
                int octet = GROUPED ? i + 4 * p : 2 * i + p;
                u32 pair = octets.pair(p, lane);
                if (GROUPED) pair = groups[p][i * OCTET_GROUPS / 4].apply(pair);
                operands[octet / 2][octet % 2 * 2 + upper] = pair;
            }
        }
    }
}
