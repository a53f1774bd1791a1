// advance: ends a decode step on the device, so that the next can start without the host.
//
//   sampled       int32 [n], -1 where the logits were not finite
//   tokens        int32 [n], out: the ids the next step computes (0 for -1)
//   positions     int32 [n], in place: their positions, one further
//   context_lens  int32 [n], in place, one longer; 0 marks a lane nobody uses, which is left alone
//   slots         int32 [n], out: where their keys and values go; -1 past the block table's end
//   block_tables  int32 [n, max_blocks]
//   counts        int32 [n, vocab_size], in place: the sampled ids, where a lane has penalties; or null
//   ring          int32 [ring_rows, lanes] in pinned host memory, out: row step % ring_rows
//   step          int64 [1], in place, one more
//
// Grid 1, block 128. Moves a few hundred bytes. Requires n <= 128.
// Test: tests/cuda/kernels/test_advance.py, exact.
#include "common/common.cuh"

extern "C" __global__ void __launch_bounds__(128)
advance_kernel(const int* sampled, int* tokens, int* positions, int* context_lens, int* slots,
               const int* block_tables, int* counts, int* ring, i64* step, int n, int max_blocks,
               int block_bits, int vocab_size, int ring_rows, int lanes) {
    start_dependents();
    wait_for_upstream();
    int lane = threadIdx.x;
    i64 now = *step;
    if (lane < n) {
        int id = sampled[lane];
        ring[now % ring_rows * lanes + lane] = id;
        if (context_lens[lane] > 0) {
            int next = positions[lane] + 1, block = next >> block_bits;
            if (counts && id >= 0) counts[(i64)lane * vocab_size + id]++;
            tokens[lane] = max(id, 0);
            bool inside = block < max_blocks;
            if (inside) {
                positions[lane] = next;
                context_lens[lane] = next + 1;
            }
            int size = 1 << block_bits;
            slots[lane] =
                inside ? block_tables[(i64)lane * max_blocks + block] * size + (next & (size - 1))
                       : -1;
        }
    }
    __syncthreads();  // everybody has read the step
    if (lane == 0) *step = now + 1;
}
