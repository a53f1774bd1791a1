// all_gather: joins the columns that ranks have computed of the same rows, on every rank alike.
//
//   inbox  fp32 [world, stride]: of rank r its columns [n, width], EMPTY where nothing has come; left
//          EMPTY. `linear` sends them. The last rank has columns - (world - 1) * width of them.
//   out    fp32 [n, columns]: row by row the ranks' columns in their order
//
// Grid (ceil(width / 512), world, n), block 128, no shared memory. width, columns and stride are
// multiples of 4. Reads and clears 4 * n * columns bytes and writes as many. The protocol is
// all_reduce's; `out` is written only after everything upstream is done.
// Test: tests/cuda/kernels/test_all_gather.py: equal.
#include "comm/peers.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS)
all_gather_kernel(float* inbox, float* out, i64 stride, int width, int columns) {
    start_dependents();
    int i = (blockIdx.x * THREADS + threadIdx.x) * 4, column = blockIdx.y * width + i;
    wait_for_upstream();  // `out` may still be read there
    int own_width = min(width, columns - (int)blockIdx.y * width);
    if (i >= own_width) return;
    float* from = inbox + blockIdx.y * stride + (i64)blockIdx.z * own_width + i;
    Bits4 v = receive(from);
    while (!is_there(v)) v = receive(from);
    clear(from);
    *(Bits4*)(out + (i64)blockIdx.z * columns + column) = v;
}
