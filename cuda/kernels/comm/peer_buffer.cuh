// Stores to peer buffers (other GPUs' memory) and loads from this GPU's own one.
#pragma once
#include "comm/sentinel.cuh"

struct alignas(16) Bits4 {
    u32 at[4];
};

// System scope, because the address may be in another GPU's memory.
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
__device__ __forceinline__ Bits4 load_received(const float* from) {
    Bits4 v;
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3])
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return v;
}
__device__ __forceinline__ bool arrived(const Bits4& v) {
    return v.at[0] != SENTINEL && v.at[1] != SENTINEL && v.at[2] != SENTINEL && v.at[3] != SENTINEL;
}
__device__ __forceinline__ void reset(float* at) {
    *reinterpret_cast<Bits4*>(at) = {{SENTINEL, SENTINEL, SENTINEL, SENTINEL}};
}
