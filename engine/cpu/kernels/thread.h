/* Threads, locks, conditions and a clock of POSIX. */
#pragma once
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <time.h>

typedef pthread_t Thread;
typedef pthread_mutex_t Lock;
typedef pthread_cond_t Condition;
#define THREAD_FUNCTION(name, argument) static void *name(void *argument)
#define THREAD_RESULT NULL

typedef void *(*ThreadFunction)(void *);

/* Start a thread; return 0 if that failed. Signals go to the other threads of the process. */
static inline int thread_start(Thread *thread, ThreadFunction function, void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0;
}
static inline void thread_join(Thread thread) { pthread_join(thread, NULL); }
static inline void thread_yield(void) { sched_yield(); }
static inline void thread_sleep_ns(uint64_t ns) {
    struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&time, NULL);
}
static inline void lock_create(Lock *lock) { pthread_mutex_init(lock, NULL); }
static inline void lock_destroy(Lock *lock) { pthread_mutex_destroy(lock); }
static inline void lock_acquire(Lock *lock) { pthread_mutex_lock(lock); }
static inline void lock_release(Lock *lock) { pthread_mutex_unlock(lock); }
static inline void condition_create(Condition *condition) { pthread_cond_init(condition, NULL); }
static inline void condition_destroy(Condition *condition) { pthread_cond_destroy(condition); }
static inline void condition_wait(Condition *condition, Lock *lock) { pthread_cond_wait(condition, lock); }
static inline void condition_wake_all(Condition *condition) { pthread_cond_broadcast(condition); }

/* A clock that does not go back, in nanoseconds. */
static inline uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Wait some 20 to 50 nanoseconds in favor of the core's other thread. */
static inline void cpu_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* `yield` takes one cycle only */
#endif
}
