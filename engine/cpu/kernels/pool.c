/* The pool of threads.

   A run is published as a number, and as the target of each phase: what `done`, which counts the
   chunks of all runs ever, is when all chunks of the phase are done. Each thread goes through the
   phases by itself. In a phase it claims chunks, first those of its own range, then those left in the
   ranges of the others; it adds what it computed to `done`, and waits for the phase's target.

   A thread can fall behind at any point, because the system runs something else. Nobody waits for
   it unless it holds a chunk, so the run can end, the next one can begin, and the memory of the old
   one can be gone. Therefore a thread without a chunk reads only memory of the pool, and
   - a claim succeeds only in the phase for which it is made: `claimed` has the sequence number of the
     phase, which is never used again, and the claimed chunks of the range. Sequence numbers in it
     only grow: one that is smaller means that no chunk of the range is claimed yet;
   - targets are valid only if the number of the run is still the same after reading them.
   A thread that has a chunk keeps the run from ending. */
#define _POSIX_C_SOURCE 200809L /* for thread.h */
#include "pool.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "thread.h"
#include "thread_count.h"

enum { CACHE_LINES = 128 }; /* bytes of two lines: processors fetch pairs */
enum { RANGE_BITS = 20 };   /* of `claimed`: the chunks of one range */
enum { PHASES_AHEAD = 4 };  /* that are searched for weights to prefetch */

/* Longer waits are asleep. The steps of an answer follow each other faster, and so do phases, unless
   another program has the core of a thread with a chunk. To sleep at once would let the system move that
   thread to this core, but then the two take turns on it. */
static const uint64_t SPIN_BETWEEN_RUNS_NS = 2000000, SPIN_IN_RUN_NS = 1000000;
static const uint64_t STALL_NS = 200000; /* shorter waits are differences of chunks */

typedef struct {
    _Alignas(CACHE_LINES) _Atomic uint64_t claimed; /* (sequence << RANGE_BITS) + chunks */
    _Alignas(CACHE_LINES) _Atomic uint64_t stall_ns; /* of all runs */
    uint64_t known_stall_ns;                         /* to the caller */
    Scratch scratch;
    uint8_t *memory; /* that of the scratch, before alignment */
    struct Pool *pool;
    Thread thread;
} Worker;

typedef struct Targets {
    struct Targets *older; /* a thread may still read them */
    int32_t capacity;
    _Atomic uint64_t values[]; /* values[i + 1] is that of phase i, values[0] is `done` before */
} Targets;

struct Pool {
    int num_threads;
    ThreadCount thread_count;
    Phase *phases;
    int phases_capacity;
    const Run *run;
    uint64_t next_sequence;
    void *allocation;
    Lock lock; /* of those that sleep */
    Condition wake, more_wanted;
    /* What is published: odd numbers while it changes. */
    _Alignas(CACHE_LINES) _Atomic uint64_t number;
    _Atomic uint64_t sequence; /* of the first phase */
    _Atomic int32_t num_phases, active;
    _Atomic(Targets *) targets;
    atomic_bool quit;
    _Alignas(CACHE_LINES) atomic_int num_sleeping;
    _Alignas(CACHE_LINES) _Atomic uint64_t done;
    Worker workers[]; /* [num_threads]; the first is the caller */
};

/* A valid copy of what is published. */
typedef struct {
    uint64_t number, sequence;
    int num_phases, active;
    Targets *targets;
} Published;

/* Claim a chunk of a range with `size` chunks; -1: all are claimed, or the phase is over. */
static int claim(_Atomic uint64_t *claimed, uint64_t sequence, uint64_t size) {
    uint64_t value = atomic_load_explicit(claimed, memory_order_relaxed);
    for (;;) {
        uint64_t current = value >> RANGE_BITS;
        uint64_t chunk = current == sequence ? value & ((1u << RANGE_BITS) - 1) : 0;
        if (current > sequence || chunk >= size) return -1;
        uint64_t claimed_too = (sequence << RANGE_BITS) + chunk + 1;
        /* What chunks depend on is ordered by `done` and `number`. */
        if (atomic_compare_exchange_weak_explicit(claimed, &value, claimed_too, memory_order_relaxed,
                                                  memory_order_relaxed))
            return (int)chunk;
    }
}

/* Where a thread that computes alone, or as one of `threads`, begins to read after phase `index` of
   num_phases: in the next phase that reads weights. NULL: in none of the next few. */
static const uint8_t *next_read(Pool *pool, int index, int num_phases, int thread, int threads) {
    int end = min_int(index + 1 + PHASES_AHEAD, num_phases);
    for (const Phase *p = pool->phases + index + 1; p < pool->phases + end; p++) {
        if (!p->kernels->first_read || !p->num_chunks) continue;
        int chunk = (int)((int64_t)p->num_chunks * thread / threads);
        const uint8_t *read = p->kernels->first_read(p->op, pool->run, p->phase, chunk);
        if (read) return read;
    }
    return NULL;
}

/* Claim and compute chunks of one phase until all are claimed; return how many. */
static uint64_t compute_phase(Worker *worker, int index, const Published *run, uint64_t num_chunks) {
    Pool *pool = worker->pool;
    Scratch *scratch = &worker->scratch;
    const uint64_t sequence = run->sequence + (uint64_t)index;
    const int active = run->active;
    uint64_t computed = 0, threads = (uint64_t)active;
    for (int i = 0; i < active; i++) {
        uint64_t owner = ((uint64_t)scratch->thread + (uint64_t)i) % threads;
        uint64_t first = num_chunks * owner / threads, last = num_chunks * (owner + 1) / threads;
        if (first == last) continue;
        for (;;) {
            int chunk = claim(&pool->workers[owner].claimed, sequence, last - first);
            if (chunk < 0) break;
            /* Without a chunk of it a thread may be late, and the phases be those of another run. */
            const Phase *phase = &pool->phases[index];
            if (!computed++ && phase->kernels->prepare)
                phase->kernels->prepare(phase->op, pool->run, phase->phase, scratch);
            int is_last = i == 0 && first + (uint64_t)chunk + 1 == last;
            scratch->next_read =
                is_last ? next_read(pool, index, run->num_phases, scratch->thread, active) : NULL;
            phase->kernels->compute(phase->op, pool->run, phase->phase, (int)first + chunk, scratch);
        }
    }
    return computed;
}

/* Wake those that sleep; they see what was stored before. Both sides are sequentially consistent: a
   thread counts itself before it looks a last time. */
static void wake_sleeping(Pool *pool) {
    if (atomic_load(&pool->num_sleeping) == 0) return;
    lock_acquire(&pool->lock);
    condition_wake_all(&pool->wake);
    lock_release(&pool->lock);
}

static int is_done(Pool *pool, uint64_t target) {
    return atomic_load_explicit(&pool->done, memory_order_acquire) >= target;
}

static void sleep_until_done(Pool *pool, uint64_t target) {
    lock_acquire(&pool->lock);
    atomic_fetch_add(&pool->num_sleeping, 1);
    while (atomic_load(&pool->done) < target) condition_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->num_sleeping, 1);
    lock_release(&pool->lock);
}

/* Wait for a phase's target: usually some pauses, else with a look at the clock, at last asleep. */
static void wait_until_done(Worker *worker, uint64_t target) {
    Pool *pool = worker->pool;
    for (int i = 0; i < 100; i++) {
        if (is_done(pool, target)) return;
        cpu_pause();
    }
    uint64_t start = clock_ns(), waited = 0;
    while (!is_done(pool, target)) {
        if (waited > SPIN_IN_RUN_NS) sleep_until_done(pool, target);
        for (int i = 0; i < 20 && !is_done(pool, target); i++) cpu_pause();
        waited = clock_ns() - start;
    }
    if (waited > STALL_NS) atomic_fetch_add_explicit(&worker->stall_ns, waited, memory_order_relaxed);
}

/* Take part in a run until it ends, or until it turns out to have ended. */
static void take_part(Worker *worker, const Published *run) {
    Pool *pool = worker->pool;
    for (int i = 0; i < run->num_phases; i++) {
        uint64_t before = atomic_load_explicit(&run->targets->values[i], memory_order_acquire);
        uint64_t target = atomic_load_explicit(&run->targets->values[i + 1], memory_order_acquire);
        if (atomic_load_explicit(&pool->number, memory_order_relaxed) != run->number) return;
        if (before == target) continue;
        uint64_t computed = compute_phase(worker, i, run, target - before);
        if (computed && atomic_fetch_add(&pool->done, computed) + computed == target)
            wake_sleeping(pool);
        else if (worker->scratch.thread == 0 || i + 1 < run->num_phases)
            wait_until_done(worker, target);
    }
}

/* Copy what is published; 0 if it changed meanwhile. The loads are acquiring and the stores releasing,
   so that who reads a newer value sees a newer number, too. */
static int read_published(Pool *pool, uint64_t number, Published *run) {
    run->number = number;
    run->sequence = atomic_load_explicit(&pool->sequence, memory_order_acquire);
    run->num_phases = atomic_load_explicit(&pool->num_phases, memory_order_acquire);
    run->active = atomic_load_explicit(&pool->active, memory_order_acquire);
    run->targets = atomic_load_explicit(&pool->targets, memory_order_acquire);
    return number % 2 == 0 && atomic_load_explicit(&pool->number, memory_order_relaxed) == number;
}

static int has_news(Pool *pool, uint64_t number) {
    return atomic_load(&pool->number) != number || atomic_load(&pool->quit);
}

/* Wait until the published number is no longer `number`, or the pool ends. */
static void wait_for_run(Pool *pool, uint64_t number) {
    uint64_t start = clock_ns();
    while (!has_news(pool, number) && clock_ns() - start < SPIN_BETWEEN_RUNS_NS) {
        for (int i = 0; i < 50 && !has_news(pool, number); i++) cpu_pause();
        if (!has_news(pool, number)) thread_yield(); /* to a thread that works between two runs */
    }
    if (has_news(pool, number)) return;
    lock_acquire(&pool->lock);
    atomic_fetch_add(&pool->num_sleeping, 1);
    while (!has_news(pool, number)) condition_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->num_sleeping, 1);
    lock_release(&pool->lock);
}

/* Sleep until a run wants this worker, or the pool ends. */
static void wait_until_wanted(Worker *worker) {
    Pool *pool = worker->pool;
    lock_acquire(&pool->lock);
    while (atomic_load(&pool->active) <= worker->scratch.thread && !atomic_load(&pool->quit))
        condition_wait(&pool->more_wanted, &pool->lock);
    lock_release(&pool->lock);
}

THREAD_FUNCTION(work, argument) {
    Worker *worker = argument;
    Pool *pool = worker->pool;
    uint64_t seen = 0;
    Published run;
    while (!atomic_load(&pool->quit)) {
        wait_for_run(pool, seen);
        uint64_t number = atomic_load_explicit(&pool->number, memory_order_acquire);
        if (!read_published(pool, number, &run)) continue;
        seen = number;
        if (worker->scratch.thread < run.active)
            take_part(worker, &run);
        else
            wait_until_wanted(worker);
    }
    return THREAD_RESULT;
}

/* Tell the workers about a run of the first `num_phases` of pool->phases. */
static Published publish(Pool *pool, int num_phases, int active) {
    uint64_t number = atomic_load_explicit(&pool->number, memory_order_relaxed);
    int active_before = atomic_load_explicit(&pool->active, memory_order_relaxed);
    Targets *targets = atomic_load_explicit(&pool->targets, memory_order_relaxed);
    uint64_t target = atomic_load_explicit(&pool->done, memory_order_relaxed);
    Published run = {number + 2, pool->next_sequence, num_phases, active, targets};
    atomic_store_explicit(&pool->number, number + 1, memory_order_relaxed);
    atomic_store_explicit(&pool->sequence, run.sequence, memory_order_release);
    atomic_store_explicit(&pool->num_phases, num_phases, memory_order_release);
    atomic_store(&pool->active, active);
    for (int i = 0; i <= num_phases; i++) {
        atomic_store_explicit(&targets->values[i], target, memory_order_release);
        if (i < num_phases) target += (uint64_t)pool->phases[i].num_chunks;
    }
    pool->next_sequence += (uint64_t)num_phases;
    atomic_store(&pool->number, run.number);
    wake_sleeping(pool);
    if (active > active_before) {
        lock_acquire(&pool->lock);
        condition_wake_all(&pool->more_wanted);
        lock_release(&pool->lock);
    }
    return run;
}

/* Compute the phases without the workers. */
static void compute_alone(Pool *pool, int num_phases) {
    for (const Phase *p = pool->phases; p < pool->phases + num_phases; p++) {
        Scratch *scratch = &pool->workers[0].scratch;
        if (p->num_chunks && p->kernels->prepare) p->kernels->prepare(p->op, pool->run, p->phase, scratch);
        for (int chunk = 0; chunk < p->num_chunks; chunk++) {
            int is_last = chunk == p->num_chunks - 1, index = (int)(p - pool->phases);
            scratch->next_read = is_last ? next_read(pool, index, num_phases, 0, 1) : NULL;
            p->kernels->compute(p->op, pool->run, p->phase, chunk, scratch);
        }
    }
}

/* The longest time that one thread stalled since the last call. */
static uint64_t longest_stall(Pool *pool) {
    uint64_t longest = 0;
    for (Worker *w = pool->workers; w < pool->workers + pool->num_threads; w++) {
        uint64_t stall_ns = atomic_load_explicit(&w->stall_ns, memory_order_relaxed);
        if (stall_ns - w->known_stall_ns > longest) longest = stall_ns - w->known_stall_ns;
        w->known_stall_ns = stall_ns;
    }
    return longest;
}

/* Replace scratch that is too small. Return 0 if memory is out. Only between runs. */
static int grow_scratch(Worker *worker, size_t nbytes) {
    if (worker->scratch.nbytes >= nbytes) return 1;
    free(worker->memory);
    worker->memory = malloc(nbytes + 63);
    worker->scratch.memory = (uint8_t *)round_up_64((size_t)worker->memory);
    worker->scratch.nbytes = worker->memory ? nbytes : 0;
    return worker->memory != NULL;
}

int pool_run(Pool *pool, const Run *run, int num_phases, size_t scratch_bytes) {
    int is_limited = run->num_threads < pool->num_threads;
    int active = min_int(max_int(1, run->num_threads), pool->thread_count.active);
    uint64_t start = clock_ns(), num_chunks = 0;
    /* Of all threads, so that a program that has run once needs no more memory. */
    for (int i = 0; i < pool->num_threads; i++)
        if (!grow_scratch(&pool->workers[i], scratch_bytes)) return 1;
    for (int i = 0; i < num_phases; i++) {
        num_chunks += (uint64_t)pool->phases[i].num_chunks;
        if (pool->phases[i].num_chunks / active >= (1 << RANGE_BITS) - 1) active = 1;
    }
    pool->run = run;
    if (active == 1) {
        compute_alone(pool, num_phases);
    } else {
        Published published = publish(pool, num_phases, active);
        take_part(&pool->workers[0], &published);
    }
    uint64_t end = clock_ns(), stall_ns = longest_stall(pool);
    uint64_t work = num_chunks + 4096 * (uint64_t)run->num_tokens;
    if (!is_limited) thread_count_update(&pool->thread_count, end, end - start, work, stall_ns);
    return 0;
}

Phase *pool_phases(Pool *pool, int num_phases) {
    if (num_phases <= pool->phases_capacity) return pool->phases;
    int capacity = max_int(num_phases, 2 * pool->phases_capacity);
    Targets *targets = malloc(sizeof(Targets) + sizeof(uint64_t) * ((size_t)capacity + 1));
    Phase *phases = malloc(sizeof(Phase) * (size_t)capacity);
    if (!targets || !phases) {
        free(targets);
        free(phases);
        return NULL;
    }
    free(pool->phases);
    pool->phases = phases;
    pool->phases_capacity = capacity;
    targets->older = atomic_load(&pool->targets);
    atomic_store(&pool->targets, targets);
    return phases;
}

int pool_size(const Pool *pool) { return pool->num_threads; }

int pool_active_threads(const Pool *pool) { return pool->thread_count.active; }

Pool *pool_create(int num_threads) {
    num_threads = max_int(1, num_threads);
    size_t nbytes = sizeof(Pool) + sizeof(Worker) * (size_t)num_threads;
    void *allocation = calloc(1, nbytes + CACHE_LINES);
    if (!allocation) return NULL;
    Pool *pool = (Pool *)(((uintptr_t)allocation + CACHE_LINES - 1) / CACHE_LINES * CACHE_LINES);
    pool->allocation = allocation;
    pool->next_sequence = 1;
    pool->num_threads = 1;
    lock_create(&pool->lock);
    condition_create(&pool->wake);
    condition_create(&pool->more_wanted);
    pool->workers[0].pool = pool;
    for (int i = 1; i < num_threads; i++) {
        Worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->scratch.thread = i;
        if (!thread_start(&worker->thread, work, worker)) {
            pool_destroy(pool);
            return NULL;
        }
        pool->num_threads++;
    }
    thread_count_create(&pool->thread_count, num_threads);
    return pool;
}

void pool_destroy(Pool *pool) {
    if (!pool) return;
    atomic_store(&pool->quit, 1);
    lock_acquire(&pool->lock);
    condition_wake_all(&pool->wake);
    condition_wake_all(&pool->more_wanted);
    lock_release(&pool->lock);
    for (int i = 1; i < pool->num_threads; i++) thread_join(pool->workers[i].thread);
    for (int i = 0; i < pool->num_threads; i++) free(pool->workers[i].memory);
    for (Targets *targets = atomic_load(&pool->targets), *older; targets; targets = older) {
        older = targets->older;
        free(targets);
    }
    condition_destroy(&pool->more_wanted);
    condition_destroy(&pool->wake);
    lock_destroy(&pool->lock);
    free(pool->phases);
    free(pool->allocation);
}
