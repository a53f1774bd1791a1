/* What the kernels of mixers with a state for each sequence share. */
#pragma once
#include "program.h"

/* Whether the sequence begins with the span, so that its states are zero. */
INLINE int is_first(const Span *span) { return span->num_rows == span->context_len; }

/* log(1 + e^x), as torch's: x itself above 20. */
INLINE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
