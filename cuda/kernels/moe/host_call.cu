// host_call: let a thread of the host compute in the middle of a stream or graph, without a node for it.
//
//   inputs       fp32 [num_inputs]
//   host_inputs  fp32 [num_inputs], maybe pinned: written before the call
//   host_outputs fp32 [num_outputs], maybe pinned: written by the call
//   outputs      fp32 [num_outputs]
//   mailbox      int64 [24], maybe pinned: the number of the last request at 0, of the last call at 8, and what is
//                called at 16 (engine/cpu/kernels/program.h)
//   requests     int64 [1], in place: plus one
//
// Algorithm: one block copies the inputs, writes the request, and looks for its number among the calls; then it copies
// the outputs. The fence before the request makes the inputs visible to the host; the acquiring load and the barrier
// make the outputs visible to all threads, whose loads are not cached.
//
// Requires: num_inputs and num_outputs multiples of 4. A host thread that makes the calls.
// Launch: grid 1, block 512, no shared memory. Moves (num_inputs + num_outputs) * 4 bytes over the bus.
// Accuracy: exact. Test: tests/cuda/kernels/test_host_call.py
#include "common/common.cuh"

constexpr int THREADS = 512, UNROLL = 4;
constexpr int DONE = 8, CALL = 16;

__device__ __forceinline__ void copy(const float* from, float* to, int n) {
    const float4* source = (const float4*)from;
    float4* target = (float4*)to;
    for (int first = threadIdx.x; first < n / 4; first += THREADS * UNROLL) {
        float4 vectors[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            if (first + i * THREADS < n / 4) vectors[i] = __ldcv(source + first + i * THREADS);
#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            if (first + i * THREADS < n / 4) target[first + i * THREADS] = vectors[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
host_call_kernel(const float* inputs, float* host_inputs, const float* host_outputs, float* outputs, i64* mailbox,
                 i64* requests, i64 call, int num_inputs, int num_outputs) {
    wait_for_upstream();
    copy(inputs, host_inputs, num_inputs);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        i64 request = *requests + 1, done;
        *requests = request;
        *(volatile i64*)(mailbox + CALL) = call;
        __threadfence_system();
        asm volatile("st.release.sys.s64 [%0], %1;" ::"l"(mailbox), "l"(request) : "memory");
        do {
            asm volatile("ld.acquire.sys.s64 %0, [%1];" : "=l"(done) : "l"(mailbox + DONE) : "memory");
        } while (done != request);
    }
    __syncthreads();
    copy(host_outputs, outputs, num_outputs);
}
