/* exp and tanh of vectors. */
#pragma once
#include "vector.h"

/* `fast_exp` (fast_math.h) without subnormal results: 0 below -87.3, NaN for NaN. Not for x above 88.

   The lowest bits of `shifted` are the exponent of 2^n. */
INLINE Floats exp_floats(Floats x) {
    const Floats round = broadcast(0x1.8p23f + 127.0f);
    Floats shifted = add_product(round, x, broadcast(0x1.715476p0f));
    Floats n = shifted - round;
    Floats power = (Floats)((Uints)shifted << 23);
    Floats r = add_product(x, n, broadcast(-0x1.62e4p-1f));
    r = add_product(r, n, broadcast(-0x1.7f7d1cp-20f));
    Floats q = broadcast(0x1.6a2434p-10f);
    q = add_product(broadcast(0x1.1239e2p-7f), q, r);
    q = add_product(broadcast(0x1.5558f2p-5f), q, r);
    q = add_product(broadcast(0x1.555492p-3f), q, r);
    q = add_product(broadcast(0x1.fffffcp-2f), q, r);
    q = add_product(r, q * r, r) + 1.0f;
    return select_floats(x < broadcast(-87.3f), broadcast(0.0f), q * power);
}

/* tanh(x), error below 1e-7. */
INLINE Floats tanh_floats(Floats x) {
    const Uints sign = (Uints)x & 0x80000000u;
    Floats t = exp_floats((Floats)((Uints)(x + x) | 0x80000000u));
    return (Floats)((Uints)((1.0f - t) / (1.0f + t)) | sign);
}
