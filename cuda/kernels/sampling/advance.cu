// advance: end a decode step on the device, so that the next step can start without the host.
//
//   sampled       int32 [num_rows]: ids, negative if there is no token
//   id_map        int32 [num_ids] or null: the id that each sampled one stands for
//   tokens        int32 [num_rows], written: input ids of the next step (0 for a negative one)
//   positions     int32 [num_rows], in place: plus one
//   context_lens  int32 [num_rows], in place: plus one; 0 marks an unused row, which is left alone
//   slot_mapping  int32 [num_rows], written: cache slots of the next step; -1 past the block table's end
//   block_tables  int32 [num_rows, max_blocks]
//   counts        int32 [num_rows, vocab_size] or null, in place: occurrences of ids, for the penalties
//   ring          int32 [ring_steps, ring_rows], maybe pinned: in pinned host memory; row step % ring_steps is written
//   step          int64 [1], in place: plus one
//
// Algorithm: one thread a row. Requires: num_rows <= 256. Launch: grid 1, block 256.
// Moves a few hundred bytes. Accuracy: exact. Test: tests/cuda/kernels/test_advance.py
#include "common/common.cuh"

extern "C" __global__ void __launch_bounds__(256)
advance_kernel(const int* sampled, const int* id_map, int* tokens, int* positions, int* context_lens, int* slot_mapping,
               const int* block_tables, int* counts, int* ring, i64* step, int num_rows, int max_blocks,
               int log2_block_size, int vocab_size, int ring_steps, int ring_rows) {
    start_dependents();
    wait_for_upstream();
    int row = threadIdx.x;
    i64 now = *step;
    if (row < num_rows) {
        int id = sampled[row], length = context_lens[row];
        if (id_map && id >= 0) id = id_map[id];
        ring[now % ring_steps * ring_rows + row] = id;
        if (length > 0) {
            // The next token's index in the cache; its position may be another one.
            int block = length >> log2_block_size;
            if (counts && id >= 0) counts[(i64)row * vocab_size + id]++;
            tokens[row] = max(id, 0);
            bool inside = block < max_blocks;
            if (inside) {
                positions[row]++;
                context_lens[row] = length + 1;
            }
            int size = 1 << log2_block_size;
            slot_mapping[row] =
                inside ? block_tables[(i64)row * max_blocks + block] * size + (length & (size - 1))
                       : -1;
        }
    }
    __syncthreads();  // all threads have read the step
    if (row == 0) *step = now + 1;
}
