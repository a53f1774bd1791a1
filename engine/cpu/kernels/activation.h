/* Activation functions: shared by the act_and_mul operation and by the epilogue of linear ones. */
#pragma once
#include "program.h"

/* x = act(x) for an fp32 array of n elements; `activation` is an enum Activation. */
void activate(int activation, float *x, int n);
