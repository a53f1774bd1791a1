// top_logprobs: the most probable ids of each row, their logprobs, and the row's log of summed exponentials.
//
//   logits     fp32 [n, vocab_size], unaligned
//   logprobs   fp32 [n, num_top], largest first; of equal ones the lower id comes first
//   ids        int32 [n, num_top]
//   log_sums   fp32 [n]: log(sum(exp(logits))); logprob = logit - log_sum
//              A row with a NaN or an infinite logit gets NaN and ids of 0.
//   workspace  u64 [n, row_words]: 1 + blocks * (num_top + 1) words: the number of finished blocks, zero before and after a
//              call; then the keys and the sum of each of the `blocks` of a row
//
// Algorithm: each block holds 4096 logits as sort keys in registers. It takes their largest `num_top` times,
// largest first, and sums the exponentials relative to its own largest. The row's last block merges these
// lists: each thread has the head of one list; the largest head is taken `num_top` times.
// Launch: grid (ceil(vocab_size / 4096), n), block 256, no dynamic shared memory; at most 256 blocks a row.
// Moves n * vocab_size * 4 bytes.
// Accuracy: ids exact, sums in fp32. Test: tests/cuda/kernels/test_top_logprobs.py
#include "common/sort_key.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 256, PER_THREAD = 16;
constexpr float LARGEST = 3.402823466e38f;

extern "C" __global__ void __launch_bounds__(THREADS)
top_logprobs_kernel(const float* logits, float* logprobs, int* ids, float* log_sums, u64* workspace,
                    int vocab_size, int num_top) {
    __shared__ u64 key_scratch[THREADS / WARP];
    __shared__ float sum_scratch[THREADS / WARP];
    __shared__ bool is_last;
    start_dependents();
    wait_for_upstream();
    int row = blockIdx.y, blocks = gridDim.x;
    u64* finished = workspace + row * (1 + (i64)blocks * (num_top + 1));
    u64 *keys = finished + 1, *sums = keys + (i64)blocks * num_top;
    logits += (i64)row * vocab_size;

    int first = blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
    u64 own[PER_THREAD], best = 0;
    bool is_finite = true;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        int id = first + j * THREADS;
        float logit = id < vocab_size ? logits[id] : 0.f;
        is_finite = is_finite && fabsf(logit) <= LARGEST;
        own[j] = id < vocab_size ? sort_key(logit, id) : 0;
        best = Max()(best, own[j]);
    }
    u64 top = block_reduce<THREADS>(best, Max(), key_scratch);
    float max_logit = key_logit(top), sum = 0.f;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++)
        if (own[j]) sum += expf(key_logit(own[j]) - max_logit);
    if (!is_finite) sum = __uint_as_float(0x7fc00000u);  // NaN
    sum = block_reduce<THREADS>(sum, Sum(), sum_scratch);
    for (int i = 0; i < num_top; i++) {  // 0 once all keys are taken
        if (i) top = block_reduce<THREADS>(best, Max(), key_scratch);
        if (threadIdx.x == 0) keys[(i64)blockIdx.x * num_top + i] = top;
        if (best != top || !top) continue;
        best = 0;
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) {
            if (own[j] == top) own[j] = 0;
            best = Max()(best, own[j]);
        }
    }
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = __float_as_uint(sum);
        is_last = count_arrival(finished) + 1 == blocks;
    }
    __syncthreads();
    if (!is_last) return;

    const u64* list = keys + (i64)threadIdx.x * num_top;
    bool has_list = threadIdx.x < blocks;
    u64 head = has_list ? __ldcg(list) : 0;
    top = block_reduce<THREADS>(head, Max(), key_scratch);
    max_logit = key_logit(top);
    sum = 0.f;
    if (has_list) sum = __uint_as_float((u32)__ldcg(sums + threadIdx.x)) * expf(key_logit(head) - max_logit);
    float log_sum = max_logit + logf(block_reduce<THREADS>(sum, Sum(), sum_scratch));
    int next = 1;
    for (int i = 0; i < num_top; i++) {
        if (i) top = block_reduce<THREADS>(head, Max(), key_scratch);
        if (head == top) head = next < num_top ? __ldcg(list + next++) : 0;
        if (threadIdx.x == 0) {
            logprobs[(i64)row * num_top + i] = key_logit(top) - log_sum;
            ids[(i64)row * num_top + i] = log_sum == log_sum ? key_id(top) : 0;
        }
    }
    if (threadIdx.x == 0) {
        log_sums[row] = log_sum;
        *finished = 0;
    }
}
