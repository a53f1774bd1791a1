/* Integer dot products of a block of 16 rows by instructions that multiply four bytes with four bytes;
   interface: dot_plain.h. Activations are 256 * high + low. */
#pragma once
#include "quantized_rows.h"
#include "tile_rows.h"
#include "tile_values.h"

enum { VECTORS_PER_PASS = LANES == 16 ? 8 : 2 };

/* x86 multiplies unsigned weights by signed activations: the center is added to the weights, and the
   center times the sum of the activations subtracted. NEON multiplies signed weights. */
#if defined(__aarch64__)
INLINE Ints weights_at(Values v, const uint8_t *block, int j, int r) {
    return signed_columns(v, block, j, r);
}
INLINE int32_t added_center(Values v) { return (void)v, 0; }
INLINE Ints add_bytes(Ints sum, Ints weights, Ints x) {
    return (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)weights, (int8x16_t)x);
}
INLINE void pin(Ints *v) { (void)v; }
#else
INLINE Ints weights_at(Values v, const uint8_t *block, int j, int r) {
    return (Ints)unsigned_columns(v, block, j, r);
}
INLINE int32_t added_center(Values v) { return v.center; }
#if defined(__AVX512VNNI__)
INLINE Ints add_bytes(Ints sum, Ints weights, Ints x) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)x);
}
INLINE void pin(Ints *v) { (void)v; }
#else
INLINE Ints add_bytes(Ints sum, Ints weights, Ints x) {
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, (__m256i)x);
}
/* Keep the compiler from moving the computation of a register past this point: it would compute all
   sums of one vector after those of another, and spill the operands that they share. */
INLINE void pin(Ints *v) { __asm__ volatile("" : "+x"(*v) : : "memory"); }
#endif
#endif

INLINE void dot(Values v, const uint8_t *values, const QuantizedRows *x, size_t block, int n, int half,
                Ints16 *sums) {
    const size_t distance = (size_t)x->blocks * BLOCK_COLS;
    Ints16 high[VECTORS_PER_PASS], low[VECTORS_PER_PASS];
#pragma GCC unroll 8
    for (int k = 0; k < n; k++) EACH_PART high[k].part[i] = low[k].part[i] = (Ints){0};
#pragma GCC unroll 8
    for (int step = 0; step < 8; step++) {
        /* Both halves of a plane of four bits one after the other. */
        const int j = v.bits < 8 ? step / 2 + step % 2 * 4 : step;
        if ((half == FIRST_HALF && j >= 4) || (half == SECOND_HALF && j < 4)) continue;
        Ints16 weights;
        EACH_PART weights.part[i] = weights_at(v, values, j, LANES * i);
#pragma GCC unroll 8
        for (int k = 0; k < n; k++) {
            const size_t at = block * BLOCK_COLS + k * distance + 4 * j;
            const Ints h = broadcast_int(x->high + at), l = broadcast_int(x->low + at);
            EACH_PART {
                high[k].part[i] = add_bytes(high[k].part[i], weights.part[i], h);
                low[k].part[i] = add_bytes(low[k].part[i], weights.part[i], l);
                if (n > 1) pin(&high[k].part[i]), pin(&low[k].part[i]);
            }
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < n; k++) {
        const int32_t center = added_center(v);
        const int32_t added = center ? center * block_sum(x, block + k * (size_t)x->blocks, half) : 0;
        EACH_PART sums[k].part[i] = (high[k].part[i] << 8) + low[k].part[i] - added;
    }
}
