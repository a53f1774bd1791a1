/* Stands for linear.c until that is written: the operation does nothing. */
#include "program.h"

static int num_phases(const Op *op, const Run *run) {
    (void)op, (void)run;
    return 0;
}

static size_t no_bytes(const Op *op, const Buffer *buffers, int num_tokens, int num_logits) {
    (void)op, (void)buffers, (void)num_tokens, (void)num_logits;
    return 0;
}

const OpKernels linear_kernels = {num_phases, 0, 0, 0, no_bytes, no_bytes};
