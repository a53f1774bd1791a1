/* The pool of threads. */
#include "pool.h"

#include <stdlib.h>

struct Pool {
    uint8_t *memory;
    size_t nbytes;
};

Pool *pool_create(int num_threads) {
    (void)num_threads;
    return calloc(1, sizeof(Pool));
}

void pool_destroy(Pool *pool) {
    if (pool) free(pool->memory);
    free(pool);
}

int pool_run(Pool *pool, const Run *run, const Phase *phases, int num_phases, size_t scratch_bytes) {
    if (scratch_bytes > pool->nbytes) {
        free(pool->memory);
        pool->memory = malloc(scratch_bytes + 64);
        pool->nbytes = pool->memory ? scratch_bytes : 0;
        if (!pool->memory) return 1;
    }
    uintptr_t address = ((uintptr_t)pool->memory + 63) & ~(uintptr_t)63;
    Scratch scratch = {(uint8_t *)address, pool->nbytes, 0};
    for (const Phase *p = phases; p < phases + num_phases; p++) {
        if (p->num_chunks && p->kernels->prepare) p->kernels->prepare(p->op, run, p->phase, &scratch);
        for (int chunk = 0; chunk < p->num_chunks; chunk++)
            p->kernels->compute(p->op, run, p->phase, chunk, &scratch);
    }
    return 0;
}
