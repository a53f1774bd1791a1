/* How many threads compute the next run: fewer, while other programs occupy cores. */
#pragma once
#include <stdint.h>

typedef struct {
    int most, active;      /* threads that there are, and threads of the next run */
    int trial;             /* active is on trial against `usual` */
    int usual;             /* threads before the trial */
    int step;              /* threads fewer in the next trial with fewer */
    uint64_t work;         /* of the runs that are compared */
    double usual_ns, loss; /* moving averages of a run's time, and of its part that a thread stalled */
    int num_runs;          /* in the averages, or in the trial */
    double trial_ns;       /* time of the trial's runs */
    uint64_t next_trial_ns, hold_ns;
} ThreadCount;

void thread_count_create(ThreadCount *count, int most);
/* Take notice of a run that ended at the time `now_ns` and took `run_ns`: `work` is what it computed,
   in any unit; `stall_ns` is the longest time that one of its threads waited for others. */
void thread_count_update(ThreadCount *count, uint64_t now_ns, uint64_t run_ns, uint64_t work,
                         uint64_t stall_ns);
