/* What the kernels of mixers with a state for each sequence share. */
#pragma once
#include "op_kernels.h"

/* Whether the sequence begins with the span, so that its states are zero. */
INLINE int is_first(const Span *span) { return span->num_rows == span->context_len; }

/* The slot that receives the state after row t of the span; -1: it is not kept. */
INLINE int slot_after(const Span *span, int t) {
    if (span->after_slots) return span->after_slots[t];
    return t == span->num_rows - 1 ? span->state_slot : -1;
}

/* log(1 + e^x), as torch's: x itself above 20. */
INLINE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
