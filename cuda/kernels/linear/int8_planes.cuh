// The two-plane int8 activation of `linear`: used for one activation row of 16-bit T with weights of integers
// (INT8, INT4). For eight rows, making the planes takes longer than the int8 matmul saves.
//
// An element is the integer 256 * high + low times a power of two that X_GROUP columns share. The
// rounding error is at most 2^-15 of the group's largest element, and bf16 elements of at least 1/128 of
// the largest are exact. In shared memory the plane of high bytes takes `stride` bytes, in the order in
// which the threads read it, then comes the plane of low bytes, then each group's scale and sum.
#pragma once
#include "linear/weight_ring.cuh"
#include "common/mma.cuh"

constexpr bool MMA = !Same<T, float>::value;
constexpr bool INT8_PLANES = MMA && MAX_N == 1 && Scheme::INTEGERS;
constexpr int X_GROUP = GROUPED ? GROUP_SIZE : STEP;

// Bytes from one plane, or from one activation row, to the next. The padding puts threads that read at
// the same time in different banks: four lanes of a row read 64 contiguous bytes, or with 8-bit weights
// as T, 16 of every 32.
__device__ __forceinline__ int activation_stride(const Work& work) {
    int bytes = work.places() * (INT8_PLANES ? 1 : (int)sizeof(T));
    return (bytes + 127) / 128 * 128 + (BITS == 8 && !INT8_PLANES && !GROUPED ? 16 : 64);
}

// Elements from one activation row's group sums to the next one's; odd, to avoid bank conflicts.
__device__ __forceinline__ int group_sums_stride(const Work& work) {
    return work.places() / X_GROUP | 1;
}
// The scale and the sum of each group of an int8-plane activation.
__device__ __forceinline__ float2* group_scales(u8* activation, int stride) {
    return (float2*)(activation + 2 * stride);
}
// The sums of each group of activations that are stored as T.
__device__ __forceinline__ float* group_sums(u8* activations, int stride, int n) {
    return (float*)(activations + n * stride);
}

// The byte of a column in a plane, for columns that are multiples of four.
__device__ __forceinline__ int plane_offset(int column) {
    int step = column / STEP * STEP, c = column % STEP;
    int pair = c / 32, t = c % 32 / 8, rest = c % 8;
    if (BITS == 4) return step + pair / 2 * 64 + t * 16 + pair % 2 * 8 + rest;
    if (GROUPED) return step + t * 16 + pair * 8 + rest;
    return column;
}

// The maximum, and the sum, among LANES neighboring lanes; all of them get it.
template <int LANES> __device__ __forceinline__ u32 max_of(u32 x) {
    if constexpr (LANES == WARP) {
        return __reduce_max_sync(ALL, x);
    } else {
#pragma unroll
        for (int i = LANES / 2; i; i /= 2) x = max(x, __shfl_xor_sync(ALL, x, i));
        return x;
    }
}
template <int LANES> __device__ __forceinline__ int sum_of(int x) {
    if constexpr (LANES == WARP) {
        return __reduce_add_sync(ALL, x);
    } else {
#pragma unroll
        for (int i = LANES / 2; i; i /= 2) x += __shfl_xor_sync(ALL, x, i);
        return x;
    }
}

// Stores EACH neighboring elements from `column` of this split on. Whole warps call it, with zeros past
// the end; a thread stores nothing unless `valid`.
template <int EACH>
__device__ __forceinline__ void store_planes(const float (&x)[EACH], int column, bool valid,
                                             u8* activation, int stride) {
    constexpr int LANES = X_GROUP / EACH;
    float largest = fabsf(x[0]);
#pragma unroll
    for (int i = 1; i < EACH; i++)  // a NaN counts as the largest
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(largest) : "f"(fabsf(x[i])));
    u32 top = max_of<LANES>(__float_as_uint(largest));
    // The exponent, plus one if 2^14 times the fraction could round to more than 16 bits. Elements too
    // small for a normal scale become 0; an infinity or NaN makes the scale NaN.
    u32 exponent = max((top + 0x10800) >> 23, 20u);
    float up = __uint_as_float((268 - exponent) << 23);
    float scale = __uint_as_float(exponent >= 255 ? 0x7fc00000u : (exponent - 14) << 23);
    // Adding AS_BITS to a float puts its integer, plus 128, in the lower bits of the result.
    constexpr float AS_BITS = 0x1.8p23f + 128;
    constexpr int BITS_OF_0 = 0x4b400000;
    int sum = 0;
    u32 high[EACH / 4], low[EACH / 4];
#pragma unroll
    for (int i = 0; i < EACH / 4; i++) {
        u32 bits[4];  // the lower two bytes count; 128 was added, so that low bytes become signed
#pragma unroll
        for (int j = 0; j < 4; j++) {
            bits[j] = __float_as_uint(fmaf(x[4 * i + j], up, AS_BITS));
            sum += (int)bits[j] - (BITS_OF_0 + 128);
        }
        u32 first = __byte_perm(bits[0], bits[1], 0x5140), second = __byte_perm(bits[2], bits[3], 0x5140);
        low[i] = __byte_perm(first, second, 0x5410) ^ 0x80808080;
        high[i] = __byte_perm(first, second, 0x7632);
    }
    if (GROUPED) sum = sum_of<LANES>(sum);
    if (!valid) return;
    u8* to = activation + plane_offset(column);
    *(Vec<u32, EACH / 4>*)to = (Vec<u32, EACH / 4>&)high;
    *(Vec<u32, EACH / 4>*)(to + stride) = (Vec<u32, EACH / 4>&)low;
    if (column % X_GROUP == 0)
        group_scales(activation, stride)[column / X_GROUP] = make_float2(scale, (float)sum);
}

// A warp's partial sums: threads (g, 0) have those of the weight rows g and g + 8. `store` calls put(activation row,
// weight row, sum), then begins anew.
template <typename S> struct Int8PlanesAccumulator {
    static constexpr int STEP_MMAS = BITS == 4 ? 4 : 2;
    static constexpr int GROUP_MMAS = STEP_MMAS * X_GROUP / STEP;
    float sum[2] = {};

    // Adds the products of a step. `low` and `high` are the packed tiles of the rows 0 … 7 and 8 … 15,
    // `column` is the step's first in this split. The high plane is column 0 of the mma, the low plane
    // column 1.
    __device__ __forceinline__ void add(const u8* low, const u8* high, u8* activation, int stride, int,
                                        const Work&, int column, int) {
        int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        uint4 rows[2] = {*(const uint4*)(low + lane * 16), *(const uint4*)(high + lane * 16)};
        const u32(&words)[2][4] = (const u32(&)[2][4])rows;
        uint4 planes[STEP_MMAS / 2] = {};
#pragma unroll
        for (int i = 0; i < STEP_MMAS / 2; i++)
            if (g < 2) planes[i] = *(const uint4*)(activation + g * stride + column + i * 64 + t * 16);
#pragma unroll
        for (int i = 0; i < STEP_MMAS / GROUP_MMAS; i++) {
            int products[4] = {};
#pragma unroll
            for (int j = i * GROUP_MMAS; j < (i + 1) * GROUP_MMAS; j++) {
                u32 a[4];
#pragma unroll
                for (int r = 0; r < 2; r++) S::integers(words[r], j, a[r], a[r + 2]);
                const u32(&x)[4] = (const u32(&)[4])planes[j / 2];
                mma_int8(products, a, x[j % 2 * 2], x[j % 2 * 2 + 1]);
            }
            float2 groups[2] = {{1, 0}, {1, 0}};  // scale and minus zero point of both rows
            if (GROUPED) {
                int at = TILE_ROWS * STEP_BYTES + (i * TILE_ROWS + g) * ENTRY_BYTES;
                groups[0] = S::group_of(*(const Entry*)(low + at));
                groups[1] = S::group_of(*(const Entry*)(high + at));
            }
            float2 x_group = group_scales(activation, stride)[column / X_GROUP + i];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float total = (products[2 * r] << 8) + products[2 * r + 1];
                if (GROUPED) total += groups[r].y * x_group.y;
                sum[r] += (GROUPED ? groups[r].x * x_group.x : x_group.x) * total;
            }
        }
    }

    template <typename Put> __device__ __forceinline__ void store(Put put, int) {
        int g = threadIdx.x % WARP / 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (threadIdx.x % 4 == 0) put(0, g + 8 * r, sum[r]);
            sum[r] = 0;
        }
    }
};
