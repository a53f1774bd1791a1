// all_gather: concatenate the ranks' shards of columns, on every rank.
//
//   buffer   fp32 [world_size, stride]: rank r's shard [n, its columns], which `linear` sends; an
//            element that has not arrived is the sentinel. All are the sentinel afterwards
//   out      fp32 [n, width]: the shards of each row in the order of the ranks
//   shard_width  columns of every rank but the last, which has width - (world_size - 1) * shard_width
//
// Algorithm: each thread polls its 4 elements until they have arrived, copies them and resets them
// (see all_reduce.cu). It writes `out` only after the upstream kernel has ended.
// Requires: shard_width, width and stride multiples of 4. Any compute capability from 8.0 on.
// Launch: grid (ceil(shard_width / 512), world_size, n), block 128, no shared memory.
// Moves 4 * n * width bytes three times: reads, resets and writes them.
// Accuracy: exact. Test: tests/cuda/kernels/test_all_gather.py
#include "comm/peer_buffer.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS)
all_gather_kernel(float* buffer, float* out, i64 stride, int shard_width, int width) {
    start_dependents();
    int i = (blockIdx.x * THREADS + threadIdx.x) * 4, column = blockIdx.y * shard_width + i;
    wait_for_upstream();  // which may still read `out`
    int own_width = min(shard_width, width - (int)blockIdx.y * shard_width);
    if (i >= own_width) return;
    float* from = buffer + blockIdx.y * stride + (i64)blockIdx.z * own_width + i;
    Bits4 v = load_received(from);
    while (!arrived(v)) v = load_received(from);
    reset(from);
    *(Bits4*)(out + (i64)blockIdx.z * width + column) = v;
}
