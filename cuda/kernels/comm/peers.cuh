// Numbers sent to other GPUs' memory and awaited in this one's.
#pragma once
#include "comm/empty.cuh"

struct alignas(16) Bits4 {
    u32 at[4];
};

// At the scope of the system: the address may be another GPU's.
__device__ __forceinline__ void send(float* to, u32 bits) {
    asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(bits)
                 : "memory");
}
__device__ __forceinline__ void send(float* to, const Bits4& v) {
    asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(v.at[0]), "r"(v.at[1]), "r"(v.at[2]), "r"(v.at[3])
                 : "memory");
}
__device__ __forceinline__ Bits4 receive(const float* from) {
    Bits4 v;
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3])
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return v;
}
__device__ __forceinline__ bool is_there(const Bits4& v) {
    return v.at[0] != EMPTY && v.at[1] != EMPTY && v.at[2] != EMPTY && v.at[3] != EMPTY;
}
__device__ __forceinline__ void clear(float* at) {
    *reinterpret_cast<Bits4*>(at) = {{EMPTY, EMPTY, EMPTY, EMPTY}};
}
