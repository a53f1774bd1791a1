// Conversion of packed weights to operands of packed_gemm's MMAs.
#pragma once
#include "linear/gemm_work.cuh"

// A warp's 16 weight rows as operands: thread (g, t) = (lane / 4, lane % 4) holds those of MMA rows g and g + 8,
// the weight rows `row` and `row` + 2 of a block of eight rows. So a thread's results, transposed, are four
// neighbors, and neighboring g read different banks. In an octet of columns a thread needs 2t and 2t + 1.
struct LaneRows {
    int block, row, t;         // block of eight rows in the tile; first row in it
    u32 offset, table_offset;  // of the row's values and of its groups in a stage
    u32 bytes, shift;          // select a thread's values

    __device__ __forceinline__ LaneRows() {
        int lane = threadIdx.x % WARP, g = lane / 4;
        t = lane % 4;
        block = threadIdx.x / WARP * 2 + g / 2 % 2;
        row = g / 4 * 4 + g % 2;
        offset = block * UNIT_BYTES + row * STEP_BYTES;
        table_offset = block * UNIT_BYTES + TILE_ROWS * STEP_BYTES + row * 4;
        bytes = SCHEME != INT4 ? 0x9180 + t * 0x2222 : t % 2 ? 0x7632 : 0x5410;
        shift = t / 2 * 4;
        // The compiler would compute these again in every step.
        asm("" : "+r"(offset), "+r"(table_offset), "+r"(bytes), "+r"(shift));
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

// Two 8-bit values of an octet as elements of T; the selector moves their bytes and copies of their signs.
__device__ __forceinline__ u32 unpack_pair(uint2 octet, u32 selector, bf16) {
    u32 spread = permute_bytes(octet.x, octet.y, selector);
#if SCHEME == FP8
    return multiply_pairs(spread << 4 & 0x87f087f0, 0x7b807b80, bf16());
#else
    return subtract_pairs(and_or<0x007f007f, 0x43004300>(spread), and_or<0x00800080, 0x43004300>(spread), bf16());
#endif
}
__device__ __forceinline__ u32 unpack_pair(uint2 octet, u32 selector, half) {
    u32 spread = permute_bytes(octet.x, octet.y, selector);
#if SCHEME == FP8
    return multiply_pairs(spread << 7 & 0xbf80bf80, 0x5c005c00, half());
#else
    return subtract_pairs(and_xor(spread, 0x00ff00ff, 0x64806480), 0x64806480, half());
#endif
}

__device__ __forceinline__ float2 pair_floats(u32 pair, bf16) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
}
__device__ __forceinline__ float2 pair_floats(u32 pair, half) { return __half22float2((__half2&)pair); }

// scale * value + offset of two values.
__device__ __forceinline__ u32 scaled_pair(float2 values, float2 group) {
    return pair_bits(fmaf(values.x, group.x, group.y), fmaf(values.y, group.x, group.y), T());
}
// Scaled fp16 weights could exceed its range, as scales are up to 2 and zero points up to 2^15.
constexpr float GROUP_SHRINK = GROUPED && Same<T, half>::value ? 0.25f : 1;
// The scale of a group and what is added after scaling, for values that are `bias` too large.
__device__ __forceinline__ float2 group_at(const u8* table, int group, float bias) {
    float2 entry = __half22float2(((const __half2*)table)[group * TILE_ROWS]);
    entry.x *= GROUP_SHRINK;
    return {entry.x, entry.x * (entry.y - bias)};
}

// Converts 64 columns, the first or the second of a stage, to operands of four MMA steps of 16 columns.
template <int HALF>
__device__ __forceinline__ void convert(u32 (&operands)[4][4], const u8* stage, const LaneRows& lane) {
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {  // the row two further on
        const u8* values = stage + lane.offset + 2 * upper * STEP_BYTES;
        const u8* table = stage + lane.table_offset + 2 * upper * 4;
        float2 groups[2];  // of 32 columns each, or of the same group
#if SCHEME == INT4
#pragma unroll
        for (int p = 0; p < 2; p++) groups[p] = group_at(table, (HALF * 64 + p * 32) / GROUP_SIZE, 128);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint2 words = *(const uint2*)(values + HALF * 8 + i * 16);  // octets i and i + 4
            u32 four = permute_bytes(words.x, words.y, lane.bytes) >> lane.shift & 0x0f0f0f0f;
#pragma unroll
            for (int p = 0; p < 2; p++) {
                float2 two = {__uint_as_float(permute_bytes(four, 0x43000000, 0x7044 + p * 0x200)),  // 128 + value
                              __uint_as_float(permute_bytes(four, 0x43000000, 0x7144 + p * 0x200))};
                operands[p * 2 + i / 2][i % 2 * 2 + upper] = scaled_pair(two, groups[p]);
            }
        }
#else
        if (GROUPED)
#pragma unroll
            for (int p = 0; p < 2; p++) groups[p] = group_at(table + HALF * PACKED_TILE_BYTES, p, 0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint4 words = *(const uint4*)(values + HALF * PACKED_TILE_BYTES + i * 16);  // two octets
#pragma unroll
            for (int p = 0; p < 2; p++) {
                int octet = GROUPED ? i + 4 * p : 2 * i + p;
                u32 pair = unpack_pair(p ? uint2{words.z, words.w} : uint2{words.x, words.y}, lane.bytes, T());
                if (GROUPED) pair = scaled_pair(pair_floats(pair, T()), groups[p]);
                operands[octet / 2][octet % 2 * 2 + upper] = pair;
            }
        }
#endif
    }
}
