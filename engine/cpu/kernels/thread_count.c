/* A thread that the system does not run delays the others for as long as it holds a chunk: one busy
   core can cost more than its thread gains. Stalls raise the suspicion; then the times of some runs
   with fewer threads decide: one fewer, and after failures 2, 4, ... fewer, since one of several busy
   cores costs as much as all. With fewer threads than there are, one more is tried from time to time. */
#include "thread_count.h"

static const uint64_t LONGEST_RUN_NS = 50000000; /* longer runs outlast the time slices of others */
static const uint64_t AVERAGE_NS = 30000000, SHORTEST_HOLD_NS = 100000000, LONGEST_HOLD_NS = 2000000000;
enum { TRIAL_RUNS = 6 };

void thread_count_create(ThreadCount *count, int most) {
    *count = (ThreadCount){
        .most = most, .active = most, .usual = most, .step = 1, .hold_ns = SHORTEST_HOLD_NS};
}

static void forget_runs(ThreadCount *count) {
    count->num_runs = 0;
    count->usual_ns = count->loss = count->trial_ns = 0;
}

static void begin_trial(ThreadCount *count, int threads) {
    count->usual = count->active;
    count->active = threads;
    count->trial = 1;
    count->num_runs = 0;
    count->trial_ns = 0;
}

/* Keep the number of threads of the trial if it was faster. After failures, and with fewer threads
   than there are, the time to the next trial doubles. */
static void end_trial(ThreadCount *count, uint64_t now_ns) {
    double trial_ns = count->trial_ns / count->num_runs;
    int is_more = count->active > count->usual;
    int is_better = trial_ns < count->usual_ns * (is_more ? 0.97 : 1.0);
    if (!is_more) count->step = is_better || count->active == 1 ? 1 : 2 * count->step;
    if (is_better && is_more)
        count->hold_ns = SHORTEST_HOLD_NS;
    else if (!is_better)
        count->hold_ns = count->hold_ns < LONGEST_HOLD_NS / 2 ? 2 * count->hold_ns : LONGEST_HOLD_NS;
    count->next_trial_ns = now_ns + count->hold_ns;
    if (!is_better) count->active = count->usual;
    count->trial = 0;
    forget_runs(count);
}

/* Moving averages over about AVERAGE_NS. */
static void average(ThreadCount *count, uint64_t run_ns, uint64_t stall_ns) {
    double weight = (double)run_ns / (double)AVERAGE_NS;
    if (weight > 0.25) weight = 0.25;
    if (weight < 1.0 / (count->num_runs + 1)) weight = 1.0 / (count->num_runs + 1);
    count->num_runs++;
    count->usual_ns += weight * ((double)run_ns - count->usual_ns);
    count->loss += weight * ((double)stall_ns / (double)(run_ns + 1) - count->loss);
}

void thread_count_update(ThreadCount *count, uint64_t now_ns, uint64_t run_ns, uint64_t work,
                         uint64_t stall_ns) {
    if (count->most == 1 || run_ns > LONGEST_RUN_NS) return;
    uint64_t difference = work > count->work ? work - count->work : count->work - work;
    if (difference * 16 > count->work) { /* not comparable with the runs before */
        if (count->trial) count->active = count->usual;
        count->trial = 0;
        count->work = work;
        forget_runs(count);
        return;
    }
    if (count->trial) {
        count->num_runs++;
        count->trial_ns += (double)run_ns;
        if (count->num_runs >= TRIAL_RUNS && count->trial_ns >= (double)AVERAGE_NS)
            end_trial(count, now_ns);
        return;
    }
    average(count, run_ns, stall_ns);
    if (count->num_runs < TRIAL_RUNS || now_ns < count->next_trial_ns) return;
    if (count->active > 1 && count->loss > 0.5 / count->active)
        begin_trial(count, count->active > count->step ? count->active - count->step : 1);
    else if (count->active < count->most)
        begin_trial(count, count->active + 1);
}
