// embed: look up token embeddings.
//
//   ids        int32 [n]
//   table      T [num_ids, hidden_size] with SCHEME PLAIN, else u8 [row_blocks, block_bytes]: packed by SCHEME and
//              GROUP_SIZE (packed_layout.cuh); the embeddings of the ids from first_id on; other ids give zeros
//   row_scale  fp32 [num_ids] or null: of a packed table
//   out        fp32 [n, hidden_size] = table[ids - first_id] * scale
//
// Algorithm: a thread has 4 accesses of WIDTH elements of one row in flight.
// Requires: hidden_size a multiple of WIDTH (8 or 1; packed tables 8).
// Launch: grid (n, ceil(hidden_size / (WIDTH * 512))), block 128, no shared memory.
// Moves n * hidden_size * (sizeof T + 4) bytes.
// Accuracy: one fp32 rounding for each product; packed values are not rounded to T:
// exact without a scale, else relative 1e-6. Test: tests/cuda/kernels/test_embed.py
#include "schemes/scheme.cuh"
#include "common/pack.cuh"
#if SCHEME != PLAIN
#include "linear/packed_columns.cuh"
#endif

constexpr int THREADS = 128, UNROLL = 4;

#if SCHEME == PLAIN
using Elements = Pack<T, WIDTH>;
__device__ __forceinline__ Elements load_elements(const void* table, i64 row, int column, int hidden_size) {
    return load<WIDTH>((const T*)table + row * hidden_size + column);
}
#else
using Elements = PackedOctet;
__device__ __forceinline__ Elements load_elements(const void* table, i64 row, int column, int hidden_size) {
    i64 tile = row / TILE_ROWS * (padded_columns(hidden_size) / STEP) + column / STEP;
    return PackedOctet((const u8*)table + tile * PACKED_TILE_BYTES, row % TILE_ROWS,
                       octet_of(column % STEP));
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
embed_kernel(const int* ids, const void* table, const float* row_scale, float* out, int hidden_size,
             int first_id, int num_ids, float scale) {
    start_dependents();
    i64 row = blockIdx.x;
    int first = (blockIdx.y * UNROLL * THREADS + threadIdx.x) * WIDTH;
    wait_for_upstream();
    int id = ids[row] - first_id;
    bool in_table = 0 <= id && id < num_ids;
    float id_scale = in_table && row_scale ? row_scale[id] : 1;
    Elements elements[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int column = first + u * THREADS * WIDTH;
        if (column >= hidden_size) continue;
        elements[u] = {};
        if (in_table) elements[u] = load_elements(table, id, column, hidden_size);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int column = first + u * THREADS * WIDTH;
        if (column >= hidden_size) continue;
        float values[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) values[i] = elements[u][i] * id_scale * scale;
        Pack<float, WIDTH> sums;
        sums = values;
        store(out + row * hidden_size + column, sums);
    }
}
