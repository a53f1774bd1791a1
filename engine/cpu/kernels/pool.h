/* A pool of threads that computes the phases of programs; see program.h.

   The threads do not change the floating-point environment: subnormal numbers are computed, not
   flushed to zero. Some conversions depend on it (fp8), and activations hardly ever are subnormal. */
#pragma once
#include "common.h"
#include "op_kernels.h"

typedef struct Pool Pool;

/* One phase of one operation. */
typedef struct {
    const OpKernels *kernels;
    const Op *op;
    int32_t phase, num_chunks;
} Phase;

/* A pool of `num_threads` threads, one of which is the caller of `pool_run`. NULL: out of memory, or the
   system starts no more threads. */
EXPORT Pool *pool_create(int num_threads);
/* End and join the threads. NULL is allowed. */
EXPORT void pool_destroy(Pool *pool);
/* Threads that compute the next run: fewer than the pool has, while other programs occupy cores. */
EXPORT int pool_active_threads(const Pool *pool);
/* Threads of the pool. */
int pool_size(const Pool *pool);
/* Memory for the phases of the next run: room for `num_phases`; NULL: out of memory. */
Phase *pool_phases(Pool *pool, int num_phases);
/* Compute the first `num_phases` of `pool_phases`, one after the other, by at most run->num_threads
   threads. Each has at least `scratch_bytes` of scratch. Return 0, or 1 if memory is out. One run at
   a time: only one thread may call these functions. `run` and `pool_phases` are not read after the
   return. */
int pool_run(Pool *pool, const Run *run, int num_phases, size_t scratch_bytes);
