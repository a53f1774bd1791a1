// count_tokens: notes which ids a sequence has, for `penalties`.
//
//   ids     int32 [n]; those outside 0 ... vocab - 1 are passed over
//   rows    int32 [n] or null (id i belongs to row i): the row of counts; those outside are passed
//           over
//   counts  int32 [max_rows, vocab]: bit 30 of each id's number is set; with `generated` the number
//           also grows by 1
//
// Grid ceil(n / 256), block 256, no shared memory. Moves n * 12 bytes. Integer atomics: an id may
// occur many times in one call.
// Test: tests/cuda/kernels/test_count_tokens.py: equal.
#include "common/common.cuh"

constexpr int THREADS = 256;
constexpr int SEEN = 1 << 30;

extern "C" __global__ void __launch_bounds__(THREADS)
count_tokens_kernel(const int* ids, const int* rows, int* counts, int n, int max_rows, int vocab,
                    int generated) {
    start_dependents();
    wait_for_upstream();
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    int id = ids[i], row = rows ? rows[i] : i;
    if (id < 0 || id >= vocab || row < 0 || row >= max_rows) return;
    int* place = counts + (i64)row * vocab + id;
    if (generated) atomicAdd(place, 1);
    atomicOr(place, SEEN);
}
