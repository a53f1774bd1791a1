/* A thread that makes the calls which a GPU requests in a mailbox; see program.h.

   It looks for requests all the time while steps are computed, since a GPU cannot wake it. Between
   answers it sleeps, for longer the longer there is none: the first request then waits for up to
   LONGEST_SLEEP_NS. */
#define _POSIX_C_SOURCE 200809L /* for thread.h */
#include <stdatomic.h>
#include <stdlib.h>

#include "common.h"
#include "program.h"
#include "thread.h"

static const uint64_t SPIN_NS = 5000000, LONGEST_SLEEP_NS = 1000000;

void run_host_call(HostCall *call);

typedef struct {
    _Atomic int64_t *mailbox;
    atomic_bool quit;
    Thread thread;
} HostCaller;

static int64_t load(HostCaller *caller, int word) {
    return atomic_load_explicit(caller->mailbox + word, memory_order_acquire);
}

/* Wait for a request after number `done`; return its number, or `done` if the thread must end. */
static int64_t wait_for_request(HostCaller *caller, int64_t done) {
    uint64_t start = clock_ns(), waited = 0;
    while (!atomic_load_explicit(&caller->quit, memory_order_relaxed)) {
        for (int i = 0; i < 100; i++) {
            int64_t request = load(caller, 0);
            if (request != done) return request;
            cpu_pause();
        }
        waited = clock_ns() - start;
        if (waited > SPIN_NS)
            thread_sleep_ns(waited / 16 < LONGEST_SLEEP_NS ? waited / 16 : LONGEST_SLEEP_NS);
    }
    return done;
}

THREAD_FUNCTION(make_calls, argument) {
    HostCaller *caller = argument;
    int64_t done = load(caller, MAILBOX_DONE);
    for (;;) {
        int64_t request = wait_for_request(caller, done);
        if (request == done) return THREAD_RESULT;
        run_host_call((HostCall *)(intptr_t)load(caller, MAILBOX_CALL));
        atomic_store_explicit(caller->mailbox + MAILBOX_DONE, request, memory_order_release);
        done = request;
    }
}

/* Start a thread for a mailbox. NULL: out of memory, or the system starts no more threads. */
EXPORT HostCaller *host_caller_create(int64_t *mailbox) {
    HostCaller *caller = calloc(1, sizeof(HostCaller));
    if (!caller) return NULL;
    caller->mailbox = (_Atomic int64_t *)mailbox;
    if (thread_start(&caller->thread, make_calls, caller)) return caller;
    free(caller);
    return NULL;
}

/* End and join the thread, after the call that it makes. No request may come any more. */
EXPORT void host_caller_destroy(HostCaller *caller) {
    atomic_store(&caller->quit, 1);
    thread_join(caller->thread);
    free(caller);
}
