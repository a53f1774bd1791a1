// Packs of neighboring elements, loaded and stored with the widest instructions up to 16 bytes.
#pragma once
#include "common/common.cuh"

__device__ __forceinline__ float from_bits(u32 bits, float) { return __uint_as_float(bits); }
__device__ __forceinline__ float from_bits(u32 bits, bf16) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ float from_bits(u32 bits, half) {
    return __half2float(__ushort_as_half((unsigned short)bits));
}
__device__ __forceinline__ u32 to_bits(float a) { return __float_as_uint(a); }
__device__ __forceinline__ u32 to_bits(bf16 a) { return __bfloat16_as_ushort(a); }
__device__ __forceinline__ u32 to_bits(half a) { return __half_as_ushort(a); }

// W neighboring elements as in memory: 4-byte words with two 16-bit elements each. `[i]` converts one
// element to fp32. Because elements are unpacked only there, a pack takes few registers and the loads
// of several packs can be in flight together.
template <typename A, int W> struct Pack {
    using Word = typename Choose<W * sizeof(A) >= 4, u32, unsigned short>::type;
    static constexpr int WORDS = W * sizeof(A) / sizeof(Word);
    static constexpr int PER_WORD = W / WORDS;
    static constexpr int STEP = WORDS > 4 ? 4 : WORDS;  // words of one instruction
    Vec<Word, STEP> part[WORDS / STEP];

    __device__ __forceinline__ float operator[](int i) const {
        u32 word = part[i / PER_WORD / STEP].at[i / PER_WORD % STEP];
        if (PER_WORD == 1) return from_bits(word, A());
        return from_bits(i % 2 ? word >> 16 : word & 0xffff, A());
    }
    __device__ __forceinline__ Pack& operator=(const float (&values)[W]) {
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            Word& word = part[i / STEP].at[i % STEP];
            if constexpr (PER_WORD == 1) word = to_bits(from_float<A>(values[i]));
            else word = pair_bits(values[2 * i], values[2 * i + 1], A());
        }
        return *this;
    }
};

template <int W, typename A> __device__ __forceinline__ Pack<A, W> load(const A* from) {
    using Part = Vec<typename Pack<A, W>::Word, Pack<A, W>::STEP>;
    Pack<A, W> pack;
#pragma unroll
    for (int i = 0; i < pack.WORDS / pack.STEP; i++)
        pack.part[i] = reinterpret_cast<const Part*>(from)[i];
    return pack;
}

// The same from L2, past L1: for what an upstream kernel writes while this kernel may already share a
// multiprocessor with an earlier reader of the same addresses. W elements are a multiple of 16 bytes.
template <int W, typename A> __device__ __forceinline__ Pack<A, W> load_from_l2(const A* from) {
    Pack<A, W> pack;
    static_assert(pack.STEP == 4);
#pragma unroll
    for (int i = 0; i < pack.WORDS / pack.STEP; i++) {
        uint4 words = __ldcg(reinterpret_cast<const uint4*>(from) + i);
        pack.part[i] = {words.x, words.y, words.z, words.w};
    }
    return pack;
}

template <typename A, int W> __device__ __forceinline__ void store(A* to, const Pack<A, W>& pack) {
    using Part = Vec<typename Pack<A, W>::Word, Pack<A, W>::STEP>;
#pragma unroll
    for (int i = 0; i < pack.WORDS / pack.STEP; i++) reinterpret_cast<Part*>(to)[i] = pack.part[i];
}
