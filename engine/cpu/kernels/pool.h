/* A pool of threads that computes the phases of programs; see program.h. */
#pragma once
#include "common.h"
#include "program.h"

typedef struct Pool Pool;

/* One phase of one operation. */
typedef struct {
    const OpKernels *kernels;
    const Op *op;
    int32_t phase, num_chunks;
} Phase;

/* A pool of `num_threads` threads, one of which is the caller of `pool_run`. NULL: out of memory. */
EXPORT Pool *pool_create(int num_threads);
/* End and join the threads. NULL is allowed. */
EXPORT void pool_destroy(Pool *pool);
/* Compute the phases one after the other. Each thread has at least `scratch_bytes` of scratch. Return
   0, or 1 if memory is out. One run at a time. */
int pool_run(Pool *pool, const Run *run, const Phase *phases, int num_phases, size_t scratch_bytes);
