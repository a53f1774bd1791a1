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
constexpr int UNROLL = 2;        // groups of each row that a lane requests at a time
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
// fragments. All THREADS of the block take part, each with BATCH loads in flight.
template <int THREADS, int BATCH>
__device__ __forceinline__ void stage_activations(uint4* to, const bf16* from, int columns) {
    int count = columns / 8;
    for (int first = threadIdx.x; first < count; first += THREADS * BATCH) {
        uint4 found[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (first + i * THREADS < count) found[i] = __ldcg((const uint4*)from + first + i * THREADS);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int at = first + i * THREADS;
            uint4 v = found[i];
            if (at < count)
                to[at / CHUNKS * PITCH + at % CHUNKS] = {
                    __byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632),
                    __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632)};
        }
    }
}

// `count` groups of a row of a matrix in memory, from group `first` on.
struct Row {
    const uint4* blocks;
    const u8* scales;
    int count;

    __device__ Row(u64 blocks_address, u64 scales_address, i64 row, int groups, int first, int count)
        : blocks((const uint4*)blocks_address + row * groups + first),
          scales((const u8*)scales_address + row * groups + first),
          count(count) {}
};

union Fragment {
    uint4 bits;
    u32 at[4];
};

// UNROLL groups of this lane's rows (g: `low`, g + 8: `high`) on their way from memory. A warp takes four groups at a
// time, one each lane of a row, from group 4 * `at` on; its turns are `step` apart.
struct Loads {
    Fragment w[UNROLL][2];
    u32 scale[UNROLL][2];

    __device__ __forceinline__ void request(const Row& low, const Row& high, int at, int step) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int group = (at + u * step) * 4 + threadIdx.x % 4;
            w[u][0].bits = w[u][1].bits = {};
            scale[u][0] = scale[u][1] = 0;
            if (group < low.count) {
                w[u][0].bits = __ldcs(low.blocks + group);
                scale[u][0] = __ldg(low.scales + group);
            }
            if (group < high.count) {
                w[u][1].bits = __ldcs(high.blocks + group);
                scale[u][1] = __ldg(high.scales + group);
            }
        }
    }
};

// Adds the products of two rows and staged activations to the accumulators of an mma. Its column g has the `count`
// groups of activations that lane g passes; no row has more groups than `low`. `loads` are the warp's first ones,
// requested before the activations were staged; its turns begin at `at`.
__device__ __forceinline__ void add_products(float (&sums)[4], Loads& loads, const Row& low, const Row& high,
                                             const uint4* activations, int count, int at, int step) {
    int t = threadIdx.x % 4;
    for (; at * 4 < low.count; at += UNROLL * step) {
        Loads next;
        next.request(low, high, at + UNROLL * step, step);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int group = (at + u * step) * 4;
            if (group >= low.count) break;
            const uint4* own = activations + min(group + t, count - 1) * PITCH;
            u32 by[2] = {scale_pair(loads.scale[u][0]), scale_pair(loads.scale[u][1])};
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                u32 a[4], b[4];
                dequantize(loads.w[u][0].at[i], by[0], a);
                dequantize(loads.w[u][1].at[i], by[1], b);
                uint4 x = own[i];
                mma<bf16>(sums, a[0], b[0], a[1], b[1], x.x, x.y);
                mma<bf16>(sums, a[2], b[2], a[3], b[3], x.z, x.w);
            }
        }
        loads = next;
    }
}
