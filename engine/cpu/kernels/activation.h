/* Activation functions: shared by the act_and_mul operation and by the epilogue of linear ones. */
#pragma once
#include "op_kernels.h"

/* x = act(x) for an fp32 array of n elements; `activation` is an enum Activation. */
void activate(int activation, float *x, int n);
/* The elements first .. first + n of the row out [width] = act(gate) * up of x [2 * width], or act(x)
   of x [width] without a gate; in place if out is x, without a gate only. */
void act_and_mul_row(const ActAndMulOp *op, const float *x, int width, int first, int n, float *out);
