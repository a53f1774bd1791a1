// Eight neighboring columns of a row of a packed matrix: where they lie in a record, and what they mean.
#pragma once
#include "linear/records.cuh"

constexpr int EIGHT = 8;
constexpr int EACH = 16 / BITS;          // eights that a thread of linear's has of a row
constexpr int PLACES = STEP / EIGHT;     // eights of a row in a record

// The first column of an eight, of a record's, and where the eight of a column lies.
__device__ __forceinline__ int column_at(int place) {
    return GROUPED ? place % EACH * 32 + place / EACH * EIGHT : place * EIGHT;
}
__device__ __forceinline__ int place_of(int column) {
    return GROUPED ? column % 32 / EIGHT * EACH + column / 32 : column / EIGHT;
}

struct Eight {
    Vec<u32, BITS / 4> words = {};
    float2 factors = {1, 0};  // a group's scale and offset

    Eight() = default;
    // That of row `row` of a record.
    __device__ __forceinline__ Eight(const u8* record, int row, int place) {
        words = ((const Vec<u32, BITS / 4>*)record)[row * PLACES + place];
        if (GROUPED) {
            const __half2* table = (const __half2*)(record + BLOCK_ROWS * STEP_BYTES);
            factors = __half22float2(table[column_at(place) / (GROUPED ? GROUP_SIZE : 1) * BLOCK_ROWS + row]);
        }
    }

    // Number i, without its row's factor.
    __device__ __forceinline__ float operator[](int i) const {
#if SCHEME == INT4
        float number = int4_at(words.at[0], i);
#elif SCHEME == INT8
        float number = int8_at(words.at[i / 4], i % 4);
#else
        float number = fp8_at(words.at[i / 4], i % 4);
#endif
        return GROUPED ? factors.x * (number + factors.y) : number;
    }
};
