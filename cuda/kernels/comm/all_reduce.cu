// all_reduce: add the sum of all ranks' parts to the residual stream, with the same bits on every rank.
//
//   part       T [n, hidden_size] with SEND, else null: this rank's part; without SEND `linear` has already sent it
//   x          fp32 [n, hidden_size]: in place, x += the parts in the order of the ranks; without
//              `accumulate` x = the sum
//   buffer     fp32 [WORLD_SIZE, stride]: the received parts; an element that has not arrived is the
//              sentinel. All are the sentinel afterwards
//   addresses  u64 [WORLD_SIZE]: where this rank writes its part in each rank's buffer
//
// Algorithm: one-shot all-reduce. Every rank writes its part to all ranks, and each rank adds all
// parts. For the few KiB of a decode step this takes the time of one trip over the link. The
// elements are their own flags (Lamport's protocol, as in NCCL's LL): a reader resets them to the
// sentinel. An exchange with another buffer must come before the buffer is used again, so no rank is
// a round ahead. Without SEND only the parts are awaited: this rank's own part arrives after its
// kernel has waited for everything upstream, so x is final by then.
//
// Requires: num_elements and stride multiples of 4; peer access between the GPUs. All blocks of all
// ranks must become resident while others wait: true if all ranks launch in the same order.
// Launch: grid ceil(num_elements / 512), block 128, no shared memory.
// Moves: every rank sends (world_size - 1) * 4 * num_elements bytes over its links.
// Accuracy: fp32 sums in the order of the ranks. Test: tests/cuda/kernels/test_all_reduce.py
#include "comm/peer_buffer.cuh"
#include "common/pack.cuh"

constexpr int THREADS = 128;

// Returns the parts of all ranks as soon as all have arrived.
__device__ __forceinline__ void wait_for_parts(Bits4 (&received)[WORLD_SIZE], const float* from, i64 stride) {
    bool all_arrived;
    do {
        all_arrived = true;
#pragma unroll
        for (int r = 0; r < WORLD_SIZE; r++) received[r] = load_received(from + r * stride);
#pragma unroll
        for (int r = 0; r < WORLD_SIZE; r++) all_arrived &= arrived(received[r]);
    } while (!all_arrived);
}

extern "C" __global__ void __launch_bounds__(THREADS)
all_reduce_kernel(const T* part, float* x, float* buffer, float* const* addresses, i64 stride,
                  int num_elements, int rank, int accumulate) {
    start_dependents();
    int i = (blockIdx.x * THREADS + threadIdx.x) * 4;
    bool inside = i < num_elements;
#if SEND
    float* to[WORLD_SIZE];
#pragma unroll
    for (int r = 0; r < WORLD_SIZE; r++) to[r] = addresses[r];  // constant: read before the wait
    wait_for_upstream();
    if (inside) {
        Pack<T, 4> own = load<4>(part + i);
        Bits4 bits = {{not_sentinel(own[0]), not_sentinel(own[1]), not_sentinel(own[2]),
                       not_sentinel(own[3])}};
#pragma unroll
        for (int r = 0; r < WORLD_SIZE; r++) send(to[r] + i, bits);
    }
#endif
    if (inside) {
        while (!arrived(load_received(buffer + rank * stride + i)))
            ;  // x is final now
        float4 sum = {};
        if (accumulate) sum = __ldcg((const float4*)(x + i));
        Bits4 received[WORLD_SIZE];
        wait_for_parts(received, buffer + i, stride);
        float total[4] = {};
#pragma unroll
        for (int r = 0; r < WORLD_SIZE; r++) {
#pragma unroll
            for (int j = 0; j < 4; j++) total[j] += __uint_as_float(received[r].at[j]);
            reset(buffer + r * stride + i);
        }
        *(float4*)(x + i) = {sum.x + total[0], sum.y + total[1], sum.z + total[2],
                             sum.w + total[3]};
    }
#if !SEND
    wait_for_upstream();  // keeps the chain of dependent launches intact
#endif
}
