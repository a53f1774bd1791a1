// copy_blocks: copy blocks of the KV cache in every layer.
//
//   source       E [num_layers, num_blocks, ...], maybe pinned
//   destination  E [num_layers, other_blocks, ...], maybe pinned: with its own number of blocks
//   copies       int32 [m, 2]: block copies[i][0] of source becomes copies[i][1] of destination in every
//                layer; one call must not both read and write a block
//   source_layer_vectors, destination_layer_vectors, block_vectors   sizes in 16-byte vectors
//
// Algorithm: a thread has 4 accesses of 16 bytes in flight. source and destination may be one tensor.
// Launch: grid (ceil(block bytes / 16 KiB), m, num_layers), block 256, no shared memory.
// Moves 2 * m * num_layers * block bytes. Accuracy: exact. Test: tests/cuda/kernels/test_copy_blocks.py
#include "common/common.cuh"

using Access = Vec<u32, 4>;
constexpr int THREADS = 256, UNROLL = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
copy_blocks_kernel(const Access* source, Access* destination, const int* copies,
                   i64 source_layer_vectors, i64 destination_layer_vectors, int block_vectors) {
    start_dependents();
    wait_for_upstream();
    i64 layer = blockIdx.z, from = copies[2 * blockIdx.y], to = copies[2 * blockIdx.y + 1];
    source += layer * source_layer_vectors + from * block_vectors;
    destination += layer * destination_layer_vectors + to * block_vectors;
    int first = blockIdx.x * UNROLL * THREADS + threadIdx.x;
    Access values[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int at = first + u * THREADS;
        if (at < block_vectors) values[u] = source[at];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int at = first + u * THREADS;
        if (at < block_vectors) destination[at] = values[u];
    }
}
