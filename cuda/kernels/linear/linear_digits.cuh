// linear's vector for integer products: what INT8 and INT4 are multiplied with where T has 16 bits and
// there is one vector. To make it takes longer than its products save where there are eight.
//
// In shared memory a number is two bytes, 256 * high + low, times a power of two that X_GROUP columns have
// together: half a step is 2^-15 of the largest or less, so numbers of bfloat16 that are at least a 128th
// of the group's largest are exact. The high bytes lie in a row of `stride` bytes, in the order in which
// threads meet them, then the low ones, then each group's power and the sum of its numbers.
#pragma once
#include "linear/linear_stream.cuh"
#include "common/mma.cuh"

constexpr bool MMA = !Same<T, float>::value;
constexpr bool INTEGERS = MMA && MAX_N == 1 && (SCHEME == INT8 || SCHEME == INT4);
constexpr int X_GROUP = GROUPED ? GROUP_SIZE : STEP;

// Bytes from one row of digits, or from one vector, to the next: threads of neighbors that read at once
// use different banks. Four lanes of a row have 64 bytes together, or (8 bits as T) 16 of every 32.
__device__ __forceinline__ int x_stride(const Share& share) {
    int part = (share.end - share.begin) * (INTEGERS ? 1 : (int)sizeof(T));
    return (part + 127) / 128 * 128 + (BITS == 8 && !INTEGERS && !GROUPED ? 16 : 64);
}

// Sums of x over groups, where T is multiplied: from one vector's to the next's; odd for the same reason.
__device__ __forceinline__ int sums_stride(const Share& share) {
    return (share.end - share.begin) / X_GROUP | 1;
}
__device__ __forceinline__ float2* powers_of(u8* vector, int stride) {
    return (float2*)(vector + 2 * stride);
}
__device__ __forceinline__ float* sums_of(u8* vectors, int stride, int n) {
    return (float*)(vectors + n * stride);
}

// Where a column's digits lie in a row of them; for those that begin four, or eight if EACH is.
__device__ __forceinline__ int digit_at(int column) {
    int step = column / STEP * STEP, c = column % STEP;
    int pair = c / 32, t = c % 32 / 8, rest = c % 8;
    if (SCHEME == INT4) return step + pair / 2 * 64 + t * 16 + pair % 2 * 8 + rest;
    if (GROUPED) return step + t * 16 + pair * 8 + rest;
    return column;
}

// The largest, or the sum, among LANES neighbors, for all of them.
template <int LANES> __device__ __forceinline__ u32 largest_of(u32 x) {
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

// Keeps EACH neighbors, from `column` of this block's on. Whole warps call it, with zeros past the end;
// nothing is kept unless `valid`.
template <int EACH>
__device__ __forceinline__ void keep_digits(const float (&x)[EACH], int column, bool valid, u8* vector,
                                            int stride) {
    constexpr int LANES = X_GROUP / EACH;
    float largest = fabsf(x[0]);
#pragma unroll
    for (int i = 1; i < EACH; i++)  // what is no number is the largest
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(largest) : "f"(fabsf(x[i])));
    u32 top = largest_of<LANES>(__float_as_uint(largest));
    // The exponent, one more where 2^14 times the fraction could be rounded to more than two bytes hold;
    // numbers so small that their powers are none are zeros, and what is not finite makes all so.
    u32 exponent = max((top + 0x10800) >> 23, 20u);
    float up = __uint_as_float((268 - exponent) << 23);
    float power = __uint_as_float(exponent >= 255 ? 0x7fc00000u : (exponent - 14) << 23);
    constexpr float AS_BITS = 0x1.8p23f + 128;  // a number added to it is the lower bits, and 128
    constexpr int BITS_OF_0 = 0x4b400000;
    int sum = 0;
    u32 high[EACH / 4], low[EACH / 4];
#pragma unroll
    for (int i = 0; i < EACH / 4; i++) {
        u32 bits[4];  // of which the lower two bytes count; 128 more, so that low digits have signs
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
    u8* to = vector + digit_at(column);
    *(Vec<u32, EACH / 4>*)to = (Vec<u32, EACH / 4>&)high;
    *(Vec<u32, EACH / 4>*)(to + stride) = (Vec<u32, EACH / 4>&)low;
    if (column % X_GROUP == 0)
        powers_of(vector, stride)[column / X_GROUP] = make_float2(power, (float)sum);
}

// Partial sums of a warp: threads (g, 0) have those with the rows g and g + 8.
struct DigitSums {
    static constexpr int MULTIPLIES = SCHEME == INT4 ? 4 : 2;  // of a step
    static constexpr int TOGETHER = MULTIPLIES * X_GROUP / STEP;  // of a group
    float sum[2] = {};

    // Adds a step's products: `low` and `high` are the records of rows 0 … 7 and 8 … 15, `column` the
    // step's first of this block's. High digits are column 0 of the instructions, low ones column 1.
    __device__ __forceinline__ void add(const u8* low, const u8* high, u8* vector, int stride, int,
                                        const Share&, int column, int) {
        int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        uint4 rows[2] = {*(const uint4*)(low + lane * 16), *(const uint4*)(high + lane * 16)};
        const u32(&words)[2][4] = (const u32(&)[2][4])rows;
        uint4 digits[MULTIPLIES / 2] = {};
#pragma unroll
        for (int i = 0; i < MULTIPLIES / 2; i++)
            if (g < 2) digits[i] = *(const uint4*)(vector + g * stride + column + i * 64 + t * 16);
#pragma unroll
        for (int i = 0; i < MULTIPLIES / TOGETHER; i++) {
            int products[4] = {};
#pragma unroll
            for (int j = i * TOGETHER; j < (i + 1) * TOGETHER; j++) {
                u32 a[4];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    a[r] = SCHEME == INT4 ? words[r][j] & 0x0f0f0f0f : words[r][2 * j % 4];
                    a[r + 2] = SCHEME == INT4 ? words[r][j] >> 4 & 0x0f0f0f0f : words[r][2 * j % 4 + 1];
                }
                const u32(&x)[4] = (const u32(&)[4])digits[j / 2];
                multiply_bytes(products, a, x[j % 2 * 2], x[j % 2 * 2 + 1]);
            }
            float2 factors[2] = {{1, 0}, {1, 0}};
            if (GROUPED) {
                int at = BLOCK_ROWS * STEP_BYTES + (i * BLOCK_ROWS + g) * 4;
                factors[0] = __half22float2(*(const __half2*)(low + at));
                factors[1] = __half22float2(*(const __half2*)(high + at));
            }
            float2 power = powers_of(vector, stride)[column / X_GROUP + i];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float total = (products[2 * r] << 8) + products[2 * r + 1];
                if (GROUPED) total += factors[r].y * power.y;
                sum[r] += (GROUPED ? factors[r].x * power.x : power.x) * total;
            }
        }
    }

    __device__ __forceinline__ void store(float (*sums)[SUMS_STRIDE], int) {
        int g = threadIdx.x % WARP / 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (threadIdx.x % 4 == 0) sums[0][g + 8 * r] = sum[r];
            sum[r] = 0;
        }
    }
};
