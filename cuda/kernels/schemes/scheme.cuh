// The quantization scheme of a weight: the structure that the macro SCHEME names, in the header of that name here, or
// PLAIN for elements of T. A new scheme is such a header and a row of PACKED_SCHEMES in cuda/packed_layout.py.
//
//   BITS                  of a value
//   ROW_SCALES            rows have scales, fp32
//   ZERO_POINTS           groups of columns have a zero point each, beside their scale
//   SCALED_SUMS           scales of groups multiply the sums of their columns in fp32, else the elements in T, exactly; the
//                         entries of a row are neighbors then
//   INTEGERS              values are integers: one activation row can be multiplied by them as int8 planes
//   SUM_BIAS<A>           by which the operands of `unpack` are too large
//   SHRINK<A>             by which elements that `Group` has scaled are too small
//   Entry, group_of       what is stored for a group of a row, and its scale and minus zero point
//   value_at              one value in fp32, without its scales; i counts in the order of the columns of an octet
//   unpack                a thread's octet as operands of two mma, in linear and the experts' GEMVs
//   integers              a thread's values as operands of an integer mma (INTEGERS)
//   neighbors, scaled     an octet as pairs of neighbors, and times its entry, for mma in grouped GEMMs
//   UPPER_BYTES<A>, pair_of   two values in the bytes 0 and 2 of a register as a pair: of 4 bits below UPPER_BYTES, of 8 bits
//                         selected from an octet
//   Group<A>              the entry of a group as it is applied to such pairs
//
// At the speed of the memory there is time for about seven operations of a lane for an 8-bit weight and half as many
// for a 4-bit one. So bits are moved to a place where they mean a number of T that is off by a known factor or summand.
#pragma once
#include "common/pairs.cuh"

#define PLAIN 1  // the names of structures are no macros: in conditions they are 0
#ifndef GROUP_SIZE
#define GROUP_SIZE 0
#endif
constexpr bool GROUPED = GROUP_SIZE > 0;

struct SchemeDefaults {
    static constexpr bool ROW_SCALES = true, ZERO_POINTS = false, SCALED_SUMS = true, INTEGERS = false;
    template <typename A> static constexpr float SUM_BIAS = 0;
    template <typename A> static constexpr float SHRINK = 1;
    template <typename A> static constexpr u32 UPPER_BYTES = 0;
};

#if SCHEME == PLAIN
constexpr bool PACKED = false;
struct Scheme : SchemeDefaults {
    static constexpr int BITS = 8 * sizeof(T);
    static constexpr bool ROW_SCALES = false;
    using Entry = half;

    static __device__ __forceinline__ float2 group_of(const Entry&) { return {1, 0}; }
    static __device__ __forceinline__ float value_at(const u32* words, int i) { return __uint_as_float(words[i % 4]); }
    template <typename A>
    static __device__ __forceinline__ void unpack(const u32 (&words)[4], u32, int, u32 (&pairs)[4], A) {
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = words[i];
    }
};
#else
constexpr bool PACKED = true;
#define TEXT(path) #path
#define HEADER(name) TEXT(schemes/name.cuh)
#include HEADER(SCHEME)
using Scheme = SCHEME;
#endif
