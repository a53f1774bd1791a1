// all_reduce: adds the sum of all ranks' parts to the residual stream, or makes it the stream, on
// every rank alike.
//
//   y          T [numbers], this rank's part, with SEND; without, `linear` has sent it already
//   x          fp32 [numbers], in place: x += the parts, added in the order of the ranks; or = if not
//              `adds`
//   inbox      fp32 [world, stride], EMPTY where nothing has come; left EMPTY
//   addresses  u64 [world]: where this rank's part goes in each rank's inbox, as seen from here
//
// One shot: each rank's part goes to all ranks at once, and each adds up all parts itself; for the
// few KiB of a decode step the time is that of one trip. Numbers are their own flags (Lamport's
// protocol, as in NCCL's LL): what is read is cleared, and comes again when another exchange has been
// in between, so that nobody can be a round ahead. Without SEND nothing is awaited but the parts: the
// own one comes after its kernel has seen everything upstream, and so the stream x is settled then.
//
// Grid ceil(numbers / 512), block 128, no shared memory; `numbers` and stride are multiples of 4. Every
// rank sends (world - 1) * 4 * numbers bytes over its links. All blocks of all ranks must become
// resident while others wait: true for launches in the same order on every rank. Sums in fp32.
// Test: tests/cuda/kernels/test_all_reduce.py: equal to the sum in this order; ranks have equal bits.
#include "comm/peers.cuh"
#include "common/vectors.cuh"

constexpr int THREADS = 128;

// The parts of all ranks, when they are all there.
__device__ __forceinline__ void await_all(Bits4 (&parts)[WORLD_SIZE], const float* from, i64 stride) {
    bool there;
    do {
        there = true;
#pragma unroll
        for (int r = 0; r < WORLD_SIZE; r++) parts[r] = receive(from + r * stride);
#pragma unroll
        for (int r = 0; r < WORLD_SIZE; r++) there &= is_there(parts[r]);
    } while (!there);
}

extern "C" __global__ void __launch_bounds__(THREADS)
all_reduce_kernel(const T* y, float* x, float* inbox, float* const* addresses, i64 stride,
                  int numbers, int rank, int adds) {
    start_dependents();
    int i = (blockIdx.x * THREADS + threadIdx.x) * 4;
    bool inside = i < numbers;
#if SEND
    float* to[WORLD_SIZE];
#pragma unroll
    for (int r = 0; r < WORLD_SIZE; r++) to[r] = addresses[r];  // constant
    wait_for_upstream();
    if (inside) {
        Pack<T, 4> mine = load<4>(y + i);
        Bits4 bits = {{never_empty(mine[0]), never_empty(mine[1]), never_empty(mine[2]),
                       never_empty(mine[3])}};
#pragma unroll
        for (int r = 0; r < WORLD_SIZE; r++) send(to[r] + i, bits);
    }
#endif
    if (inside) {
        while (!is_there(receive(inbox + rank * stride + i)))
            ;  // from here on x is settled
        float4 sum = {};
        if (adds) sum = __ldcg((const float4*)(x + i));
        Bits4 parts[WORLD_SIZE];
        await_all(parts, inbox + i, stride);
        float total[4] = {};
#pragma unroll
        for (int r = 0; r < WORLD_SIZE; r++) {
#pragma unroll
            for (int j = 0; j < 4; j++) total[j] += __uint_as_float(parts[r].at[j]);
            clear(inbox + r * stride + i);
        }
        *(float4*)(x + i) = {sum.x + total[0], sum.y + total[1], sum.z + total[2],
                             sum.w + total[3]};
    }
#if !SEND
    wait_for_upstream();  // for the chain of dependent launches
#endif
}
