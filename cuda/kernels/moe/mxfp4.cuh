// Products of MXFP4 rows with an activation row on tensor cores (OCP Microscaling Formats 1.0).
//
// A group is 32 elements of a row: 16 bytes, the lower element in the low half, and a scale e8m0. Lane
// (g, t) = (lane / 4, lane % 4) holds whole groups of rows g and g + 8 of a tile: the order of the columns is
// free, as long as the activations have the same.
#pragma once
#include "common/mma.cuh"
#include "common/reduce.cuh"

constexpr int GROUP = 32;        // columns
constexpr int CHUNKS = 4;        // of 8 columns, in a group
constexpr int PITCH = CHUNKS + 1;  // of a group of activations in shared memory; lanes read different banks
constexpr int UNROLL = 3;        // groups of each row that a lane has in flight
// Dequantized weights are 2^-32 times as large, so that scales up to 2^33 are within the range of bf16.
constexpr float WEIGHT_SCALE = 4294967296.f;

// Returns 2^(e8m0 - 127) times WEIGHT_SCALE's inverse, and times 2^126 for `dequantize`, twice in bf16.
__device__ __forceinline__ u32 scale_pair(u32 e8m0) {
    u32 bits = min(e8m0 + 94, 254u) << 7;
    return bits << 16 | bits;
}

// Dequantizes eight elements to four pairs in bf16: pair i has elements i and i + 4. Exponent and mantissa of
// e2m1 are those of bf16 if the result is multiplied by 2^126, also for subnormal elements.
__device__ __forceinline__ void dequantize(u32 word, u32 scale, u32 (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 at = word << (12 - 4 * i), bits = (at & 0x80008000u) | ((at >> 6) & 0x01c001c0u);
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pairs[i]) : "r"(bits), "r"(scale), "r"(0x80008000u));
    }
}

// Copies `columns` activations to shared memory, in the order of dequantized pairs. 32 columns take PITCH
// fragments. All threads of the block take part.
__device__ __forceinline__ void stage_activations(uint4* to, const bf16* from, int columns) {
    for (int i = threadIdx.x; i < columns / 8; i += blockDim.x) {
        uint4 v = __ldcg((const uint4*)from + i);
        to[i / CHUNKS * PITCH + i % CHUNKS] = {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632),
                                               __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632)};
    }
}

// A row of a matrix in memory.
struct Row {
    const uint4* blocks;
    const u8* scales;

    __device__ Row(u64 blocks_address, u64 scales_address, i64 row, int groups)
        : blocks((const uint4*)blocks_address + row * groups), scales((const u8*)scales_address + row * groups) {}
};

union Fragment {
    uint4 bits;
    u32 at[4];
};

// Adds the products of this lane's rows (g: `low`, g + 8: `high`) with the staged activations to the accumulators
// of an mma whose columns are all equal. A warp takes four groups at a time: first, first + step, …
__device__ __forceinline__ void add_products(float (&sums)[4], const Row& low, const Row& high, int groups,
                                             const uint4* activations, int first, int step) {
    int t = threadIdx.x % 4;
    for (int base = first * 4; base < groups; base += UNROLL * step * 4) {
        Fragment w[UNROLL][2];
        u32 scale[UNROLL][2];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int at = base + u * step * 4 + t;
            w[u][0].bits = w[u][1].bits = {};
            scale[u][0] = scale[u][1] = 0;
            if (at >= groups) continue;
            w[u][0].bits = __ldcs(low.blocks + at);
            w[u][1].bits = __ldcs(high.blocks + at);
            scale[u][0] = __ldg(low.scales + at);
            scale[u][1] = __ldg(high.scales + at);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (base + u * step * 4 >= groups) break;
            const uint4* own = activations + min(base + u * step * 4 + t, groups - 1) * PITCH;
            u32 by[2] = {scale_pair(scale[u][0]), scale_pair(scale[u][1])};
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                u32 a[4], b[4];
                dequantize(w[u][0].at[i], by[0], a);
                dequantize(w[u][1].at[i], by[1], b);
                uint4 x = own[i];
                mma<bf16>(sums, a[0], b[0], a[1], b[1], x.x, x.y);
                mma<bf16>(sums, a[2], b[2], a[3], b[3], x.z, x.w);
            }
        }
    }
}
