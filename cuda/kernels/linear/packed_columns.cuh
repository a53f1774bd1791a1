// Octets: eight neighboring columns of one row of a packed matrix.
#pragma once
#include "linear/packed_layout.cuh"

constexpr int OCTET = 8;
constexpr int THREAD_OCTETS = 16 / BITS;   // octets in the 16 bytes of a thread of `linear`
constexpr int TILE_OCTETS = STEP / OCTET;  // octets of a row in a tile, in memory order

// The first column of an octet in its tile, and the octet of a column.
__device__ __forceinline__ int column_at(int octet) {
    return GROUPED ? octet % THREAD_OCTETS * 32 + octet / THREAD_OCTETS * OCTET : octet * OCTET;
}
__device__ __forceinline__ int octet_of(int column) {
    return GROUPED ? column % 32 / OCTET * THREAD_OCTETS + column / 32 : column / OCTET;
}

struct PackedOctet {
    Vec<u32, BITS / 4> words = {};
    float2 group = {1, 0};  // scale and minus zero point

    PackedOctet() = default;
    // Loads an octet of row `row` of a tile.
    __device__ __forceinline__ PackedOctet(const u8* tile, int row, int octet) {
        words = ((const Vec<u32, BITS / 4>*)tile)[row * TILE_OCTETS + octet];
        if (GROUPED) {
            const Entry* table = (const Entry*)(tile + TILE_ROWS * STEP_BYTES);
            group = Scheme::group_of(table[entry_of(row, column_at(octet) / GROUP_COLUMNS)]);
        }
    }

    // Weight i, without the row's scale.
    __device__ __forceinline__ float operator[](int i) const {
        float value = Scheme::value_at(words.at, i);
        if (ZERO_POINTS) return group.x * (value + group.y);
        return GROUPED ? group.x * value : value;
    }
};
