// latent_rotary: rotate queries and the shared key of multi-head latent attention, and store a token's latent.
//
//   q             T [n, num_heads, head_dim], rows q_stride elements apart: the last rope_dim elements of each head are
//                 rotated in place
//   row           T [n, rank + rope_dim], rows row_stride elements apart, unaligned: projected latent and shared key
//   norm_weight   T [rank]
//   cos_sin       fp32 [num_positions, rope_dim] or null: cosines of all pairs, then sines; null: no rotation
//   positions     int32 [n]
//   slot_mapping  int32 [n]: the cache row of a token; below 0 it is not stored
//   cache         T [num_blocks, 1, block_size, row_size]: RMSNorm(latent) * norm_weight * kv_scale, then the rotated key
//   interleaved   pairs are neighbors in q and row; the results always have the first elements of all pairs, then
//                 the second ones
//
// Algorithm: a block norms and stores a token's row, others rotate heads, a thread for each pair.
// DeepSeek-V2, arXiv:2405.04434, section 2.1; rotation: Su et al., 2021, arXiv:2104.09864.
//
// Requires: rope_dim even, at most 256.
// Launch: grid (n, 1 + ceil(num_heads / (256 / rope_dim))), block 128, no dynamic shared memory.
// Accuracy: fp32, rounded once. Test: tests/cuda/kernels/test_latent_rotary.py
#include "common/reduce.cuh"

constexpr int THREADS = 128;

// The two rotated elements of pair `i` of `from`.
__device__ __forceinline__ float2 rotated(const T* from, const float* cos_sin, int i, int pairs, int interleaved) {
    float a = to_float(from[interleaved ? 2 * i : i]), b = to_float(from[interleaved ? 2 * i + 1 : i + pairs]);
    float cosine = cos_sin ? cos_sin[i] : 1.f, sine = cos_sin ? cos_sin[pairs + i] : 0.f;
    return {a * cosine - b * sine, b * cosine + a * sine};
}

__device__ void store_row(const T* row, const T* norm_weight, const float* cos_sin, T* to, int rank, int pairs,
                          int interleaved, float eps, float kv_scale) {
    __shared__ float scratch[THREADS / WARP];
    float squares = 0;
    for (int i = threadIdx.x; i < rank; i += THREADS) {
        float x = to_float(row[i]);
        squares += x * x;
    }
    float by = rsqrtf(block_reduce<THREADS>(squares, Sum(), scratch) / rank + eps) * kv_scale;
    for (int i = threadIdx.x; i < rank; i += THREADS)
        to[i] = from_float<T>(to_float(row[i]) * by * to_float(norm_weight[i]));
    for (int i = threadIdx.x; i < pairs; i += THREADS) {
        float2 pair = rotated(row + rank, cos_sin, i, pairs, interleaved);
        to[rank + i] = from_float<T>(pair.x);
        to[rank + pairs + i] = from_float<T>(pair.y);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
latent_rotary_kernel(T* q, const T* row, const T* norm_weight, const float* cos_sin, const int* positions,
                     const int* slot_mapping, T* cache, i64 q_stride, i64 row_stride, int num_heads, int head_dim,
                     int rank, int rope_dim, int row_size, int interleaved, float eps, float kv_scale) {
    start_dependents();
    wait_for_upstream();
    i64 token = blockIdx.x;
    int pairs = rope_dim / 2, slot = slot_mapping[token];
    const float* angles = cos_sin ? cos_sin + (i64)positions[token] * rope_dim : nullptr;
    if (blockIdx.y == 0) {
        if (slot >= 0)
            store_row(row + token * row_stride, norm_weight, angles, cache + (i64)slot * row_size, rank, pairs,
                      interleaved, eps, kv_scale);
        return;
    }
    int per_block = THREADS / pairs, i = threadIdx.x % pairs;
    int head = (blockIdx.y - 1) * per_block + threadIdx.x / pairs;
    bool inside = threadIdx.x / pairs < per_block && head < num_heads;
    T* own = q + token * q_stride + (i64)(inside ? head : 0) * head_dim + head_dim - rope_dim;
    float2 pair = rotated(own, angles, i, pairs, interleaved);
    __syncthreads();  // all pairs of a head have been read
    if (!inside) return;
    own[i] = from_float<T>(pair.x);
    own[pairs + i] = from_float<T>(pair.y);
}
