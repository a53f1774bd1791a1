/* Norms of single rows: shared by the norm operation and by the operations with a norm before them. */
#pragma once
#include "op_kernels.h"

/* out = norm(x), both fp32 [width], for a norm that is not NORM_NONE. In place if out is x. */
void norm_row(const Norm *norm, const float *x, int width, float *out);
