/* Run many tiny phases with random delays and check that each chunk is computed once, after all chunks
   of the phase before. Arguments: threads, runs, seed. The memory of a run is freed at once after it,
   so that a thread that comes late and reads it is found by AddressSanitizer or ThreadSanitizer. */
#define _POSIX_C_SOURCE 200809L
#include "../../../engine/cpu/kernels/pool.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../../engine/cpu/kernels/thread.h"

enum { MAX_PHASES = 60, MAX_CHUNKS = 40 };

/* `buffers` of a run are these counts: times that a chunk was computed, and its result. */
typedef struct {
    int num_chunks[MAX_PHASES];
    int computed[MAX_PHASES][MAX_CHUNKS];
    atomic_int errors;
} State;

static uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13, *state ^= *state >> 17, *state ^= *state << 5;
    return *state;
}

static void delay(uint32_t random) {
    struct timespec some = {0, (long)(random % 300000)};
    if (random % 211 == 0) nanosleep(&some, NULL);
    if (random % 7 == 0) thread_yield();
    for (uint32_t i = 0; i < random % 64; i++) cpu_pause();
}

static void prepare(const Op *op, const Run *run, int phase, Scratch *scratch) {
    (void)op, (void)run;
    memset(scratch->memory, phase, scratch->nbytes);
}

static void compute(const Op *op, const Run *run, int phase, int chunk, Scratch *scratch) {
    (void)op;
    State *state = (State *)run->workspace;
    uint32_t random = (uint32_t)(phase * 7919 + chunk * 104729 + run->num_tokens) | 1;
    delay(next_random(&random));
    int errors = ++state->computed[phase][chunk] != 1;
    errors += scratch->memory[0] != (uint8_t)phase || scratch->memory[scratch->nbytes - 1] != (uint8_t)phase;
    if (phase > 0)
        for (int i = 0; i < state->num_chunks[phase - 1]; i++) errors += state->computed[phase - 1][i] != 1;
    if (errors) atomic_fetch_add(&state->errors, errors);
}

static const OpKernels kernels = {.prepare = prepare, .compute = compute};

/* Return the number of errors. */
static int one_run(Pool *pool, int threads, uint32_t *random) {
    State *state = calloc(1, sizeof(State));
    Run *run = calloc(1, sizeof(Run));
    if (!state || !run) return 1;
    *run = (Run){.num_threads = 1 + (int)(next_random(random) % (uint32_t)threads),
                 .num_tokens = (int)(next_random(random) & 0xffff),
                 .workspace = (uint8_t *)state};
    int num_phases = 1 + (int)(next_random(random) % MAX_PHASES);
    Phase *phases = pool_phases(pool, num_phases);
    for (int i = 0; i < num_phases; i++) {
        state->num_chunks[i] = (int)(next_random(random) % MAX_CHUNKS) * (next_random(random) % 8 > 0);
        phases[i] = (Phase){&kernels, NULL, i, state->num_chunks[i]};
    }
    int errors = pool_run(pool, run, num_phases, 1 + next_random(random) % 5000);
    for (int i = 0; i < num_phases; i++)
        for (int j = 0; j < state->num_chunks[i]; j++) errors += state->computed[i][j] != 1;
    errors += atomic_load(&state->errors);
    memset(state, 0xdd, sizeof(State));
    memset(run, 0xdd, sizeof(Run));
    free(state);
    free(run);
    delay(next_random(random));
    return errors;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int threads = atoi(argv[1]), runs = atoi(argv[2]), errors = 0;
    uint32_t random = (uint32_t)atoi(argv[3]) * 2654435761u | 1;
    Pool *pool = pool_create(threads);
    for (int i = 0; i < runs && errors == 0; i++) errors += one_run(pool, threads, &random);
    pool_destroy(pool);
    printf("%d errors\n", errors);
    return errors != 0;
}
