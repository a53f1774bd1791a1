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
    u32 bias;                  // upper bytes of int4 values

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
        asm("mov.u32 %0, %%laneid;" : "=r"(bias));
        bias = (SCHEME == MXFP4 ? 0 : Same<T, half>::value ? 0x64646464 : 0x43434343) + (bias >> 5);  // a constant would be moved to a register each time
        // The compiler would compute these again in every step.
        asm("" : "+r"(offset), "+r"(table_offset), "+r"(bytes), "+r"(shift), "+r"(bias));
    }
    __device__ __forceinline__ int first() const { return block * TILE_ROWS + row; }
    // The first of the thread's four neighboring results in the tile.
    __device__ __forceinline__ int first_result() const {
        return threadIdx.x / WARP * 16 + t % 2 * TILE_ROWS + t / 2 * 4;
    }
};

__device__ __forceinline__ u32 permute_bytes(u32 a, u32 b, u32 selector) {
    u32 c;  // prmt can replicate signs; __byte_perm cannot
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(c) : "r"(a), "r"(b), "r"(selector));
    return c;
}
// (a & mask) ^ bits
__device__ __forceinline__ u32 and_xor(u32 a, u32 mask, u32 bits) {
    u32 c;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(c) : "r"(a), "r"(mask), "r"(bits));
    return c;
}

// Two 8-bit values of an octet as elements of T, or FP8 in groups as shifted pairs; the selector moves their bytes and
// copies of their signs.
__device__ __forceinline__ u32 unpack_pair(uint2 octet, u32 selector, bf16) {
    u32 spread = permute_bytes(octet.x, octet.y, selector);
#if SCHEME == FP8
    u32 pair = spread << 4 & 0x87f087f0;
    return GROUPED ? pair : multiply_pairs(pair, 0x7b807b80, bf16());
#else
    return subtract_pairs(and_or<0x007f007f, 0x43004300>(spread), and_or<0x00800080, 0x43004300>(spread), bf16());
#endif
}
__device__ __forceinline__ u32 unpack_pair(uint2 octet, u32 selector, half) {
    u32 spread = permute_bytes(octet.x, octet.y, selector);
#if SCHEME == FP8
    u32 pair = spread << 7 & 0xbf80bf80;
    return GROUPED ? pair : multiply_pairs(pair, 0x5c005c00, half());
#else
    return subtract_pairs(and_xor(spread, 0x00ff00ff, 0x64806480), 0x64806480, half());
#endif
}

__device__ __forceinline__ float2 pair_floats(u32 pair, bf16) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
}
__device__ __forceinline__ float2 pair_floats(u32 pair, half) { return __half22float2((__half2&)pair); }

// Scaled fp16 weights could exceed its range, as scales are up to 2 and zero points up to 2^15.
constexpr float GROUP_SHRINK = ZERO_POINTS && Same<T, half>::value ? 0.25f : 1;
// A group's scale and zero point, applied to pairs of values that are BIAS too large.
template <typename A, int BIAS> struct Group {
    float scale, offset;

    __device__ __forceinline__ void load(const u8* table, int group) {
        float2 entry = group_of(((const Entry*)table)[group * TILE_ROWS]);
        scale = entry.x * GROUP_SHRINK;
        offset = scale * (entry.y - BIAS);
    }
    __device__ __forceinline__ u32 apply(u32 pair) const {
        float2 values = pair_floats(pair, A());
        return pair_bits(fmaf(values.x, scale, offset), fmaf(values.y, scale, offset), A());
    }
};

// In bf16x2 arithmetic, which rounds the weight as fp32 does: BIAS + zero point, an integer, is subtracted exactly, the
// scale has two parts of eight bits, and `rest` is what the zero point's rounding left.
template <> struct Group<bf16, 128> {
    u32 minus_zero, high, low, rest;

    __device__ __forceinline__ void load(const u8* table, int group) {
        float2 entry = group_of(((const Entry*)table)[group * TILE_ROWS]);
        float zero = entry.y - 128;
        minus_zero = pair_bits(zero, zero, bf16());
        float left = entry.x * (zero - __uint_as_float(minus_zero << 16));
        rest = pair_bits(left, left, bf16());
        high = pair_bits(entry.x, entry.x, bf16());
        float below = entry.x - __uint_as_float(high << 16);
        low = pair_bits(below, below, bf16());
    }
    __device__ __forceinline__ u32 apply(u32 pair) const {
        u32 value = multiply_add_pairs(pair, 0x3f803f80, minus_zero);
        return multiply_add_pairs(value, high, multiply_add_pairs(value, low, rest));
    }
};
constexpr int VALUE_BIAS = SCHEME != INT4 ? 0 : Same<T, half>::value ? 1024 : 128;
template <typename A> struct Fp8Group : Fp8Scale<A> {
    __device__ __forceinline__ void load(const u8* table, int group) {
        this->set(group_of(((const Entry*)table)[group * TILE_ROWS]).x);
    }
};
// A group's scale of placed e2m1 elements.
template <typename A> struct Mxfp4Group {
    u32 factor;

    __device__ __forceinline__ void load(const u8* table, int group) { factor = e2m1_factor(table[group], A()); }
    __device__ __forceinline__ u32 apply(u32 pair) const { return multiply_pairs(pair, factor, A()); }
};
using FloatGroup = Choose<SCHEME == MXFP4, Mxfp4Group<T>, Fp8Group<T>>::type;
// The groups of a thread's two rows in 64 columns: of 32 columns each, or of the same group.
using RowGroups = Choose<GROUPED && !ZERO_POINTS, FloatGroup, Group<T, VALUE_BIAS>>::type[2][2];

// Converts 64 of 128 columns, the first or the second, to operands of four MMA steps of 16 columns.
template <int HALF>
__device__ __forceinline__ void convert(u32 (&operands)[4][4], const u8* stage, const LaneRows& lane,
                                        RowGroups& row_groups) {
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {  // the row two further on
        const u8* values = stage + lane.offset + 2 * upper * STEP_BYTES;
        const u8* table = stage + lane.table_offset + 2 * upper * ROW_ENTRIES * ENTRY_BYTES;
        auto& groups = row_groups[upper];
#if SCHEME == INT4 || SCHEME == MXFP4
        if (GROUP_SIZE < 128 || HALF == 0)
#pragma unroll
            for (int p = 0; p < 2; p++) groups[p].load(table, (HALF * 64 + p * 32) / GROUP_SIZE);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint2 words = *(const uint2*)(values + HALF * 8 + i * 16);  // octets i and i + 4
            u32 four = permute_bytes(words.x, words.y, lane.bytes) >> lane.shift & 0x0f0f0f0f;
#pragma unroll
            for (int p = 0; p < 2; p++) {
                u32 pair = permute_bytes(four, lane.bias, 0x4140 + p * 0x202);
                if (SCHEME == MXFP4) pair = place_e2m1<0>(pair, T());
                operands[p * 2 + i / 2][i % 2 * 2 + upper] = groups[p].apply(pair);
            }
        }
#else
        if (GROUPED)
#pragma unroll
            for (int p = 0; p < 2; p++)
                groups[p].load(table + HALF * PACKED_TILE_BYTES, p * 32 / (GROUPED ? GROUP_SIZE : 32));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint4 words = *(const uint4*)(values + HALF * PACKED_TILE_BYTES + i * 16);  // two octets
#pragma unroll
            for (int p = 0; p < 2; p++) {
                int octet = GROUPED ? i + 4 * p : 2 * i + p;
                u32 pair = unpack_pair(p ? uint2{words.z, words.w} : uint2{words.x, words.y}, lane.bytes, T());
                if (GROUPED) pair = groups[p].apply(pair);
                operands[octet / 2][octet % 2 * 2 + upper] = pair;
            }
        }
#endif
    }
}
